r"""The score function estimator of gradients through drawn units.

For draws $y \sim p_\theta$ and a loss $L$ that can depend on $\theta$ itself,
$$\nabla E[L] = E[\nabla L + (L - b)\,\nabla\log p_\theta(y)]$$
for any baseline $b$ that does not depend on the draws (Williams 1992, "REINFORCE"). A unit cannot know the loss, so it
adds the log probability of its draws to the active `ScoreFunction`, which computes the estimate once the losses are
known.
"""

from torch import Tensor

_ENTERED: list["ScoreFunction"] = []


class ScoreFunction:
    r"""Collects the probabilities of draws by units with `gradient="score"`, for an unbiased gradient.

    >>> import torch
    >>> from momentprop.nn import LogisticBernoulli, ScoreFunction
    >>> model = torch.nn.Sequential(torch.nn.Linear(4, 3), LogisticBernoulli(gradient="score"))
    >>> with ScoreFunction() as score:
    ...     losses = model(torch.ones(100, 4)).sum(-1)
    >>> score.surrogate(losses, baseline=losses.mean().detach()).mean().backward()
    >>> model[0].weight.grad.shape
    torch.Size([3, 4])

    Unlike the straight-through gradient, the estimate is unbiased, but its variance grows with the number of units; a
    baseline near the mean loss lowers it. (The batch mean above depends on the draws, which causes a relative bias of
    one over the batch size.)
    """

    def __init__(self) -> None:
        self.log_probabilities: list[Tensor] = []

    def __enter__(self) -> "ScoreFunction":
        self.log_probabilities = []
        _ENTERED.append(self)
        return self

    def __exit__(self, *_: object) -> None:
        _ENTERED.remove(self)

    def surrogate(self, losses: Tensor, baseline: Tensor | float = 0.0) -> Tensor:
        """The losses, with the estimator's gradient.

        Args:
            losses: one for each example, or for each independent group of draws; the shape is that of the first
                dimensions of the units' outputs. A single number works too, but its estimate varies more.
            baseline: a number to subtract from the losses before they weight the scores.
        """
        advantage = (losses - baseline).detach()
        result = losses
        for log_probability in self.log_probabilities:
            score = _summed(log_probability, losses)
            result = result + advantage * (score - score.detach())
        return result


def _summed(log_probability: Tensor, losses: Tensor) -> Tensor:
    if log_probability.shape[: losses.ndim] != losses.shape:
        raise ValueError(
            f"losses of shape {tuple(losses.shape)} do not fit draws of shape {tuple(log_probability.shape)}: give one "
            "loss for each example, not reduced, or their mean"
        )
    return log_probability.reshape(*losses.shape, -1).sum(-1)


def leave(log_probability: Tensor) -> None:
    """Add a draw's log probability to the active estimator."""
    if _ENTERED:
        _ENTERED[-1].log_probabilities.append(log_probability)
    elif log_probability.requires_grad:
        raise RuntimeError(
            "a unit with gradient='score' was drawn outside a `ScoreFunction`, where its gradient would be lost: "
            "write `with momentprop.nn.ScoreFunction() as score:` around the model, or run it under `torch.no_grad()`"
        )
