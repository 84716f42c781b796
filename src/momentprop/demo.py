r"""A small network, noisy inputs, and three estimates of its outputs side by side: `python -m momentprop.demo`.

A plain multilayer perceptron is trained on the embedded digits. Then each test image $x$ gets independent normal noise,
and the mean and standard deviation of the logits are computed three ways:

* AP1 passes the clean image through the network and knows no deviation;
* AP2 propagates means and variances through the same, unmodified network in one pass;
* MC (Monte Carlo) runs the network on many noisy copies of the image and serves as the truth.

The summary has the paper's two figures: the error of the means, average $|\mu - \mu^*|$ over average $\sigma^*$, and
the factor of the standard deviations, the geometric mean of $\sigma/\sigma^*$, where a star marks Monte Carlo.
"""

import math
import sys
import time
from typing import NamedTuple

import torch
from torch import Tensor, nn

import momentprop
from momentprop.data import Digits, digits


class Comparison(NamedTuple):
    """Logits and class probabilities of noisy images under AP1, AP2 and Monte Carlo, each of shape (images, 10)."""

    ap1: Tensor
    ap2: Tensor
    ap2_stddev: Tensor
    mc: Tensor
    mc_stddev: Tensor
    ap1_probs: Tensor
    ap2_probs: Tensor
    mc_probs: Tensor


class Summary(NamedTuple):
    """How far AP1 and AP2 are from Monte Carlo, over all images and classes."""

    ap1_mean_error: float
    ap2_mean_error: float
    ap2_stddev_factor: float
    ap1_divergence: float
    ap2_divergence: float


def build_network() -> nn.Sequential:
    """Return an ordinary multilayer perceptron for images of digits; nothing in it knows of variances."""
    return nn.Sequential(nn.Flatten(), nn.Linear(784, 100), nn.ReLU(), nn.Linear(100, 10))


def train(model: nn.Module, data: Digits, epochs: int, batch_size: int = 128) -> None:
    """Train the classifier with Adam, in the ordinary way."""
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    for epoch in range(1, epochs + 1):
        total = 0.0
        for batch in torch.randperm(len(data.labels)).split(batch_size):
            loss = nn.functional.cross_entropy(model(data.images[batch]), data.labels[batch])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            total += loss.item() * len(batch)
        _progress(f"epoch {epoch} of {epochs}, training loss {total / len(data.labels):.3f}", last=epoch == epochs)


@torch.no_grad()
def accuracy(model: nn.Module, data: Digits) -> float:
    """Return the fraction of images that the model classifies correctly."""
    return float((model(data.images).argmax(-1) == data.labels).double().mean())


@torch.no_grad()
def compare(model: nn.Module, images: Tensor, variance: float, draws: int) -> Comparison:
    """Propagate noise of the given variance through the model by AP1, AP2 and Monte Carlo."""
    ap1 = model(momentprop.Mean(images))
    ap2 = model(momentprop.Normal(images, variance))
    posterior = ap2.log_softmax(-1)  # a Categorical, whose mean is the class posterior
    mc, mc_stddev, mc_probs = monte_carlo(model, images, variance, draws)
    return Comparison(ap1.loc, ap2.loc, ap2.stddev, mc, mc_stddev, torch.softmax(ap1.loc, -1), posterior.loc, mc_probs)


def monte_carlo(
    model: nn.Module, images: Tensor, variance: float, draws: int, chunk: int = 20
) -> tuple[Tensor, Tensor, Tensor]:
    """Return the mean and standard deviation of the logits and the mean class probabilities over noisy copies.

    The copies are drawn a few at a time and only running sums are kept, in float64. The sums are of differences from
    the clean image's logits, so that a small variance does not cancel.
    """
    noise = variance**0.5
    origin = model(images)
    first, second, probs = (torch.zeros_like(origin, dtype=torch.float64) for _ in range(3))
    for start in range(0, draws, chunk):
        count = min(chunk, draws - start)
        noisy = images + noise * torch.randn(count, *images.shape)
        logits = model(noisy.flatten(0, 1)).unflatten(0, (count, len(images)))  # shape: (count, images, 10)
        difference = (logits - origin).double()
        first += difference.sum(0)
        second += difference.square().sum(0)
        probs += torch.softmax(logits.double(), -1).sum(0)
        _progress(f"Monte Carlo, draw {start + count} of {draws}", last=start + count == draws)
    spread = (second - first.square() / draws) / (draws - 1)
    return origin + first / draws, spread.sqrt(), probs / draws


def summarize(result: Comparison) -> Summary:
    """Return the paper's figures and the divergences of the class probabilities, in nats."""
    scale = result.mc_stddev.mean()
    return Summary(
        ap1_mean_error=((result.ap1 - result.mc).abs().mean() / scale).item(),
        ap2_mean_error=((result.ap2 - result.mc).abs().mean() / scale).item(),
        ap2_stddev_factor=(result.ap2_stddev / result.mc_stddev).log().mean().exp().item(),
        ap1_divergence=_divergence(result.mc_probs, result.ap1_probs),
        ap2_divergence=_divergence(result.mc_probs, result.ap2_probs),
    )


def _divergence(truth: Tensor, estimate: Tensor) -> float:
    """Average KL divergence of the estimated from the true class probabilities."""
    return torch.xlogy(truth, truth / estimate.double()).sum(-1).mean().item()


def _progress(text: str, *, last: bool) -> None:
    """Show how far the work is: one line, written over on a terminal, printed once at the end elsewhere."""
    if sys.stdout.isatty():
        print(f"\r\x1b[K{text}", end="\n" if last else "", flush=True)
    elif last:
        print(text)


def show_images(result: Comparison, labels: Tensor, count: int) -> None:
    """Print the winning logit and its class probability for the first images."""
    print("  image  digit  logit of |      mean               |   std. deviation  |  class probability")
    print("                         |    AP1     AP2      MC  |     AP2      MC   |   AP1    AP2     MC")
    top = result.mc.argmax(-1)
    for i in range(count):
        k = int(top[i])
        print(
            f"  {i:5d}  {int(labels[i]):5d}  {k:8d} |"
            f"{result.ap1[i, k]:7.2f} {result.ap2[i, k]:7.2f} {result.mc[i, k]:7.2f}  |"
            f" {result.ap2_stddev[i, k]:7.2f} {result.mc_stddev[i, k]:7.2f}   |"
            f" {result.ap1_probs[i, k]:5.3f}  {result.ap2_probs[i, k]:5.3f}  {result.mc_probs[i, k]:5.3f}"
        )


def show_summary(summary: Summary, images: int, draws: int) -> None:
    """Print the figures over all images, beside the best that can be measured with so many draws."""
    floor = math.sqrt(2 / (math.pi * draws))  # the average |z| of a mean over `draws`, in deviations
    rows = [
        ("error of the means, in units of the MC deviation", summary.ap1_mean_error, summary.ap2_mean_error, floor),
        ("deviation, as a factor of the MC deviation", None, summary.ap2_stddev_factor, 1.0),
        ("class probabilities, KL divergence from MC (nats)", summary.ap1_divergence, summary.ap2_divergence, 0.0),
    ]
    print(f"  {f'over {images} images':49s}     AP1      AP2     best")
    for what, ap1, ap2, best in rows:
        print(f"  {what:49s} {'      -' if ap1 is None else f'{ap1:7.4f}'}  {ap2:7.4f}  {best:7.4f}")


def main(
    variances: tuple[float, ...] = (0.1, 0.01),
    *,
    epochs: int = 10,
    images: int = 200,
    draws: int = 1000,
    shown: int = 5,
) -> list[Summary]:
    """Run the demo and return a summary for each variance of the input noise."""
    started = time.perf_counter()
    torch.manual_seed(0)
    training, test = digits("train"), digits("test")
    print(f"Training a network 784-100-10 with ReLU on {len(training.labels)} embedded digits.")
    model = build_network()
    train(model, training, epochs)
    print(f"Test accuracy on {len(test.labels)} clean images: {accuracy(model, test):.1%}")

    summaries = []
    for variance in variances:
        print(f"\nEvery pixel gets independent normal noise of variance {variance}. What happens to the outputs?")
        result = compare(model, test.images[:images], variance, draws)
        summaries.append(summarize(result))
        show_images(result, test.labels, shown)
        show_summary(summaries[-1], images, draws)

    print(
        "\nAP1 passes the clean image through the network. AP2 is one pass of `model(momentprop.Normal(x, variance))`\n"
        f"through the same network. MC averages {draws} noisy passes and is the truth, up to its own noise.\n"
        "AP2 treats the units of a layer as independent. The means hardly suffer from that, but training makes hidden\n"
        "units agree with each other, so that the true deviation of the logits is larger than AP2's.\n"
        "Next: put a `momentprop.Normal` into a network of yours; docs/quickstart.md shows how.\n"
        f"({time.perf_counter() - started:.0f} s)"
    )
    return summaries


if __name__ == "__main__":
    main()
