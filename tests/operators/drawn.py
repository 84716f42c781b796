r"""Operators on random values, compared with many draws.

Each sample is tried with deviations of a tenth of its size and of all of it. The draws have errors of their own: a mean
may be off by `Z` standard errors, a variance too. Beside that a rule may be off by the error that it states, relative
to the deviation. Where few draws decide, as for heavy tails, draws cannot tell, and the sample is left out.
"""

import contextlib
import math
import warnings
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_leaves

from momentprop import MissingRule, Normal
from momentprop.dispatch import Kind
from momentprop.mode import Propagation
from momentprop.torch_compat.batching import RefuseWrong
from momentprop.values import Categorical, Value
from tests.operators.catalogue import Operator, Sample
from tests.operators.certain import Verdict, run

DRAWS = 4096
SINGLE_DRAWS = 512  # where they are made one by one
LEVELS = (0.1, 1.0)  # deviations, relative to the size of a sample
Z = 6.0
LARGEST = 1000  # elements of an argument
UNSURE = 3.2  # the relative error of the variance of one draw, 1.4 for a normal one, beyond which draws cannot tell
EXACT = 1e-4
SINGLY = ("conv",)  # `vmap` over kernels is slow

STATED = {  # of the deviation of the result, as the rules state it; all others are below `EXACT`
    **dict.fromkeys("max min amax amin".split(), 0.13),
    **dict.fromkeys((f"{kind}max_pool{n}d" for kind in ("", "adaptive_") for n in (1, 2, 3)), 0.13),
    **dict.fromkeys("norm linalg_norm linalg_vector_norm std std_mean pairwise_distance".split(), 0.08),
    **dict.fromkeys("cosine_similarity cosine_embedding_loss".split(), 0.1),
    "scaled_dot_product_attention": 0.2,
    "softmax": 0.02,
    "softmin": 0.02,
    "logsumexp": 3e-4,
    "local_response_norm": 0.01,
    "atan2": 1e-3,
}
LOGNORMAL = {  # the arguments that the rule takes as lognormal, by their places
    **dict.fromkeys("log log10 log2 reciprocal rsqrt sqrt".split(), 0),
    "div": 1,
    "addcdiv": 2,
}


def drawable(operator: Operator, sample: Sample, places: tuple[int, ...]) -> str:
    """Return why a sample is not drawn, or nothing."""
    if operator.kind is Kind.PLAIN:
        return "not random"
    tensors = [sample.leaves[place] for place in places]
    if any(leaf.numel() > LARGEST for leaf in sample.leaves if isinstance(leaf, Tensor)):
        return "large"
    if not all(tensor.numel() for tensor in tensors):
        return "empty"
    if not all(bool(tensor.isfinite().all()) for tensor in tensors):
        return "infinite"
    return ""


def judge(operator: Operator, sample: Sample, places: tuple[int, ...], level: float) -> Verdict:
    """Compare a call on random values with draws."""
    with warnings.catch_warnings(), torch.random.fork_rng(devices=[]):
        warnings.simplefilter("ignore")
        torch.manual_seed(1)
        return _judge(operator, sample, places, level)


def _judge(operator: Operator, sample: Sample, places: tuple[int, ...], level: float) -> Verdict:
    spreads = {place: level * sample.leaves[place].square().mean().sqrt() for place in places}
    function = operator.spellings()["function"]
    try:
        values = {p: Normal(sample.leaves[p].clone(), spread.square()) for p, spread in spreads.items()}
        with Propagation(Normal):  # noise on plain tensors makes values of them
            got = _called(function, sample, values)
    except MissingRule as missing:
        return Verdict("missing", str(missing).splitlines()[0])
    except Exception as error:
        if isinstance(run(function, sample, lambda tensor: tensor, places), Exception):
            return Verdict("both refuse")
        return Verdict("refused", f"{type(error).__name__}: {str(error).splitlines()[:1]}")
    mine = tree_leaves(got, is_leaf=lambda x: isinstance(x, Value))
    lognormal = LOGNORMAL.get(operator.op)
    drawn = {p: _draws(sample.leaves[p], spread, p == lognormal) for p, spread in spreads.items()}
    if any(bool(tensor.isnan().any()) for tensor in drawn.values()):
        return Verdict("left out", "outside of the domain")
    try:
        results = _many(operator, sample, drawn)
    except Exception as error:
        return Verdict("left out", f"torch refuses: {type(error).__name__}")
    widest = max(float(spread) for spread in spreads.values())
    verdicts = [
        _compare(ours, theirs, operator, widest)
        for ours, theirs in zip(mine, results, strict=False)
        if ours is not None
    ]
    order = ("different", "left out", "agrees", "not random")
    return min(verdicts, key=lambda verdict: order.index(verdict.verdict), default=Verdict("not random"))


def _draws(mean: Tensor, spread: Tensor, lognormal: bool) -> Tensor:
    noise = torch.randn(DRAWS, *mean.shape, dtype=mean.dtype)
    if not lognormal:
        return mean + spread * noise
    variance = torch.log1p((spread / mean) ** 2)
    sign = torch.where(mean > 0, 1.0, math.nan)
    return sign * torch.exp(torch.log(mean) - variance / 2 + variance.sqrt() * noise)


def _called(function: Callable[..., Any], sample: Sample, stand_ins: dict[int, Any]) -> Any:
    rest = iter([stand_ins[place] for place in sorted(stand_ins)])
    return sample.call(function, lambda _: next(rest), tuple(stand_ins))


def _many(operator: Operator, sample: Sample, drawn: dict[int, Tensor]) -> list[Tensor]:
    function = operator.spellings()["function"]

    def once(*tensors: Tensor) -> tuple[Tensor, ...]:
        return tuple(tree_leaves(_called(function, sample, dict(zip(drawn, tensors, strict=True)))))

    with contextlib.suppress(Exception), RefuseWrong():  # a single call works, or the loop below says why not
        if not any(name in operator.op for name in SINGLY):
            return list(torch.func.vmap(once, randomness="different")(*drawn.values()))
    few = (tensor[:SINGLE_DRAWS] for tensor in drawn.values())
    several = [once(*tensors) for tensors in zip(*few, strict=True)]
    return [torch.stack(results) for results in zip(*several, strict=True)]


def _compare(ours: Any, draws: Tensor, operator: Operator, widest: float) -> Verdict:
    if not draws.is_floating_point():
        return Verdict("not random")
    stated = max(STATED.get(operator.op, 0.0), EXACT)
    if isinstance(ours, Categorical):
        draws, mean, variance = draws.exp(), ours.loc, None  # a posterior is a mean of probabilities
    elif isinstance(ours, Value):
        mean, variance = ours.loc, ours.variance
    else:
        mean, variance = ours, None
    if not bool(draws.isfinite().all()):
        return Verdict("left out", "outside of the domain")
    if mean.shape != draws.shape[1:]:
        return Verdict("different", f"shape {mean.shape}, not {draws.shape[1:]}")
    count = draws.shape[0]
    centre = draws.mean(0)
    square = (draws - centre).square()
    spread = square.mean(0)
    unsure = (square.square().mean(0) - spread.square()).clamp(min=0).div(count).sqrt()
    whole = max(spread.max().item() if spread.numel() else 0.0, widest**2)  # for events that no draw has seen
    if bool((unsure > UNSURE / math.sqrt(count) * spread).any()):
        return Verdict("left out", "tails too heavy for draws")
    size = 1e-12 * centre.abs().max() if centre.numel() else 0.0
    allowed = stated * spread.sqrt() + Z * (spread / count).sqrt() + Z / count * math.sqrt(whole) + size
    off = (mean - centre).abs() / allowed.clamp(min=1e-300)
    if not bool((off <= 1).all()):
        worst = off.nan_to_num(math.inf).argmax()
        apart = (mean - centre).flatten()[worst] / spread.sqrt().flatten()[worst]
        return Verdict("different", f"mean off by {apart:.2g} of the deviation")
    if variance is not None:
        allowed = 2 * stated * spread + Z * unsure + 20 / count * whole + size**2
        off = (variance - spread).abs() / allowed.clamp(min=1e-300)
        if not bool((off <= 1).all()):
            worst = off.nan_to_num(math.inf).argmax()
            ratio = (variance.flatten()[worst] / spread.flatten()[worst]).sqrt()
            return Verdict("different", f"deviation times {ratio:.2g}")
    return Verdict("agrees")
