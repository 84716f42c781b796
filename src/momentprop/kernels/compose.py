r"""Kernels made from kernels: a change of units, a mirror image, or a choice between two formulas."""

import torch
from torch import Tensor

from momentprop.kernels.moments import Kernel, Moments, Partials


def rescaled(kernel: Kernel, *, inner: float = 1.0, shift: float = 0.0, outer: float = 1.0) -> Kernel:
    r"""The kernel of $\gamma f(\beta x + \delta)$, with $\beta$ = `inner`, $\delta$ = `shift` and $\gamma$ = `outer`.

    `kernel` is the kernel of $f$ and has closed-form partial derivatives.
    """

    def changed(mean: Tensor, variance: Tensor) -> Moments:
        moments = kernel(inner * mean + shift, inner * inner * variance)

        def partials() -> Partials:
            assert moments.partials is not None
            return tuple(
                (outer * rate * of_mean, outer * outer * rate * of_variance)
                for rate, (of_mean, of_variance) in zip((inner, inner * inner), moments.partials(), strict=True)
            )

        return Moments(outer * moments.mean, outer * outer * moments.variance, partials)

    return changed


def odd(kernel: Kernel) -> Kernel:
    r"""The kernel of an odd function, evaluated at $|\mu|$ only, so that its mean is odd to the last digit."""

    def mirrored(mean: Tensor, variance: Tensor) -> Moments:
        negative = mean < 0
        moments = kernel(torch.where(negative, -mean, mean), variance)

        def partials() -> Partials:
            assert moments.partials is not None
            (mean_by_mean, variance_by_mean), (mean_by_variance, variance_by_variance) = moments.partials()
            return (
                (mean_by_mean, torch.where(negative, -variance_by_mean, variance_by_mean)),
                (torch.where(negative, -mean_by_variance, mean_by_variance), variance_by_variance),
            )

        return Moments(torch.sign(mean) * moments.mean, moments.variance, partials)

    return mirrored


def complementary(kernel: Kernel) -> Kernel:
    r"""The kernel of a function with $f(-x) = 1 - f(x)$, evaluated at $-|\mu|$ only, where nothing cancels."""

    def mirrored(mean: Tensor, variance: Tensor) -> Moments:
        positive = mean > 0
        moments = kernel(torch.where(positive, -mean, mean), variance)

        def partials() -> Partials:
            assert moments.partials is not None
            (mean_by_mean, variance_by_mean), (mean_by_variance, variance_by_variance) = moments.partials()
            return (
                (mean_by_mean, torch.where(positive, -variance_by_mean, variance_by_mean)),
                (torch.where(positive, -mean_by_variance, mean_by_variance), variance_by_variance),
            )

        return Moments(torch.where(positive, 1 - moments.mean, moments.mean), moments.variance, partials)

    return mirrored


def antisymmetric(kernel: Kernel) -> Kernel:
    r"""The kernel of $g(x) - g(-x)$ for a function $g$ that vanishes for $x \le 0$.

    At most one of $A = g(X)$ and $B = g(-X)$ is not zero, so $E[AB] = 0$ and, without cancellation,
    $\sigma'^2 = \mathrm{Var} A + \mathrm{Var} B + 2\,E A\,E B$.
    """

    def both(mean: Tensor, variance: Tensor) -> Moments:
        up, down = kernel(mean, variance), kernel(-mean, variance)

        def partials() -> Partials:
            assert up.partials is not None
            assert down.partials is not None
            pairs = zip((-1, 1), up.partials(), down.partials(), strict=True)  # the mirror image has the opposite mean
            return tuple(
                (
                    mean_up - sign * mean_down,
                    variance_up + sign * variance_down + 2 * (mean_up * down.mean + sign * mean_down * up.mean),
                )
                for sign, (mean_up, variance_up), (mean_down, variance_down) in pairs
            )

        return Moments(up.mean - down.mean, up.variance + down.variance + 2 * up.mean * down.mean, partials)

    return both


def chosen(condition: Tensor, first: Moments, second: Moments) -> Moments:
    """The moments by the first formula where the condition holds and by the second elsewhere.

    Both must be finite everywhere, or second derivatives are NaN.
    """

    def partials() -> Partials:
        assert first.partials is not None
        assert second.partials is not None
        return tuple(
            (torch.where(condition, mean, other_mean), torch.where(condition, variance, other_variance))
            for (mean, variance), (other_mean, other_variance) in zip(first.partials(), second.partials(), strict=True)
        )

    return Moments(
        torch.where(condition, first.mean, second.mean),
        torch.where(condition, first.variance, second.variance),
        partials,
    )
