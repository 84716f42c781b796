r"""Run an unmodified model: with means only, with means and variances or covariances, or by many draws."""

import functools
from collections.abc import Callable, Mapping, Sequence
from numbers import Integral
from typing import Any, Literal

import torch
from torch import Tensor

from momentprop.correlation.following import Following
from momentprop.correlation.linearly import Linearly
from momentprop.correlation.probes import Probing
from momentprop.dispatch.context import Chain, Fallback
from momentprop.given import (
    refuse_unknown,
    require_calibration,
    require_flags,
    require_model,
    with_covariance,
    with_values,
)
from momentprop.joint_outputs import LIMIT, JointRun, Wanted
from momentprop.kept_draws import KeptDraws
from momentprop.nothing_random import warn_if_nothing_is_random
from momentprop.recording import Recording
from momentprop.running import Run, is_tensor
from momentprop.sampling import Batches, RunningCovariance, RunningMoments, stream
from momentprop.torch_compat import pytrees as pytree
from momentprop.torch_compat.dynamo import is_compiled
from momentprop.torch_compat.functorch import is_known_to_transform
from momentprop.undoing import leaves_no_trace
from momentprop.values import Categorical, Estimate, Fitted, Joint, Logistic, Mean, Normal, Sample, Statistics, Value
from momentprop.values.conversion import copied, is_value
from momentprop.values.full import Full
from momentprop.values.given_noise import the_variance
from momentprop.values.independent import Independent
from momentprop.values.probed import as_normal, with_probes
from momentprop.values.structures import leaves_of, mapped
from momentprop.weights import Weights, with_weights

Method = Literal["ap1", "ap2", "sample", "full", "linear"]
Family = Literal["normal", "logistic", "fitted"]

FAMILIES: dict[str, type[Independent]] = {"normal": Normal, "logistic": Logistic, "fitted": Fitted}
"""The types of AP2's values, by the name of the family."""


@leaves_no_trace
def propagate(
    model: Callable[..., Any],
    *args: Any,
    method: Method | None = None,
    family: Family | None = None,
    input_variance: Tensor | float | None = None,
    input_std: Tensor | float | None = None,
    input_covariance: Tensor | None = None,
    dropout: bool = False,
    samples: int | None = None,
    record: bool | Sequence[str] = False,
    calibration: Any = None,
    fallback: Literal["quadrature", "monte_carlo", "linearize"] | Fallback | None = None,
    seed: int | None = None,
    covariance: bool | None = None,
    outputs: Any = None,
    batch_dim: int | None = 0,
    probes: int = 0,
    weights: Weights | None = None,
    **kwargs: Any,
) -> Any:
    r"""Run `model(*args, **kwargs)` by the chosen method and return its output with values instead of tensors.

    >>> import torch, momentprop
    >>> model = torch.nn.Sequential(torch.nn.Linear(2, 2), torch.nn.ReLU(), torch.nn.Dropout(0.5))
    >>> model = model.eval().requires_grad_(False)
    >>> _ = model[0].weight.copy_(torch.tensor([[1.0, 1.0], [1.0, -1.0]])), model[0].bias.zero_()
    >>> x = torch.tensor([[1.0, 0.0]])
    >>> momentprop.propagate(model, x, method="ap1")
    Mean(loc=tensor([[1., 1.]]))
    >>> y = momentprop.propagate(model, x, input_variance=torch.tensor([0.2, 0.1]))
    >>> y
    Joint(loc=tensor([[1.0073, 1.0073]]),
          covariance=<on request>)
    >>> y.covariance
    tensor([[[0.2824, 0.0933],
             [0.0933, 0.2824]]])
    >>> momentprop.propagate(model, x, input_variance=0.2, covariance=False)
    Normal(loc=tensor([[1.0154, 1.0154]]),
           variance=tensor([[0.3616, 0.3616]]))
    >>> y, inside = momentprop.propagate(model, x, input_variance=0.2, dropout=True, record=True)
    >>> list(inside), y.variance
    (['0', '1', '2'], tensor([[1.7542, 1.7542]]))
    >>> many = momentprop.propagate(model, x, method="sample", input_variance=0.2, dropout=True, samples=4000, seed=0)
    >>> bool(((many.variance - y.variance).abs() < 4 * many.variance_error).all())
    True

    Args:
        model: any module or function. The call leaves a module as it was, except for running statistics and plain
            tensors that its forward pass assigns in training mode. Threads may share it.
        *args: copies of them go to the model, tensors as well as values. Distributions of torch become values with
            their moments, and a `MultivariateNormal` a `Joint`.
        method: `"ap1"` propagates means (`Mean`), `"ap2"` means and variances, `"sample"` makes many draws and gives an
            `Estimate`. By default a value among the arguments keeps its type, and tensors run by `"ap2"`. `"full"`
            carries the covariance of all units through the network, for a few hundred units per item; `"linear"` is the
            delta method: the plain network at the mean, and its Jacobian. Both give a `Joint`.
        family: of `"ap2"`: `"normal"` (the default), `"logistic"` or `"fitted"` values.
        input_variance: the variance of the first floating-point argument, a number or a tensor that broadcasts to it.
            Refused if an argument is already a value.
        input_std: the standard deviation instead.
        input_covariance: the covariance of the flattened features of an item instead, a matrix for all items or
            one for each.
        dropout: let dropout act although the model is in evaluation mode, including attention dropout. All modules but
            the normalizations are in training mode.
        samples: the number of draws of `"sample"`, by default 1000.
        record: also return a dictionary with copies of the value at every module, or at the named modules. Its keys are
            the paths of the modules, and `path#2` for the second call of one.
        calibration: corrections for `"ap2"`, from `momentprop.calibrate`. Refused if a module, a constant or a
            weight of the model has changed since; the check reads every weight once.
        fallback: what to do with an operation that has no rule. By default it raises `MissingRule`.
            `"quadrature"` is for elementwise operations, `"monte_carlo"` for any, `"linearize"` for smooth ones.
        seed: makes draws repeatable, and leaves torch's own generators as they were. Probes take 0 by default.
        covariance: follow correlations between units, so that outputs of `"ap2"` are `Joint` values with a covariance.
            It is computed when you first ask for it, by one backward pass for each unit of an item. By default this
            holds for outputs of at most 128 units per item; larger ones are as with `False`, with a warning. `True`
            refuses them. `False` is AP2 as in the paper, which treats units as independent. With `"sample"`, `True`
            gives the covariance of the draws.
        outputs: the units to follow, as an index of the flattened units of an item; or a linear function of what the
            model returns, such as a sum or the difference of two logits, which is applied inside the pass. Apply other
            functions to the result, which knows how its units depend on each other.
        batch_dim: the dimension of arguments and outputs along which the items lie. Items must not influence
            each other. None treats everything as one item. An output without it is one item, and so is a vector.
        probes: a number of random directions that travel with the values of `"ap2"` and show how units depend on each
            other: 16 are good, 64 better. They correct the variances inside the network and so the means, the means of
            products, attention, normalization and maxima, and the covariance where noise is large. Each takes a plain
            pass, and the memory of a plain result. `record` shows what is corrected. Gradients treat the corrections
            as constants.
        weights: the variances of parameters, by name, or one for all: see `momentprop.with_weights`.
        **kwargs: go to the model.

    Several outputs share their sources if together they have at most 128 units per item, so their difference is right;
    otherwise, and if one has items and the other has none, they count as independent of each other. A pass that is too
    large for `momentprop.joint_outputs.MEMORY` runs in pieces of the batch.
    """
    require_model(model)
    require_calibration(calibration)
    samples = _number_of_draws(samples, method)
    refuse_unknown(model, kwargs, propagate)
    require_flags(dropout, covariance)
    args, kwargs = with_values(args, kwargs)  # type: ignore[assignment]
    input_variance = the_variance(input_variance, input_std)
    if isinstance(input_variance, Sequence):
        raise TypeError("the noise of the input must be a number or a tensor, not a list: write `torch.tensor([...])`")
    if input_covariance is not None:
        args, kwargs = with_covariance(args, kwargs, input_variance, input_covariance, batch_dim)  # type: ignore[assignment]
    if weights is not None:
        model = with_weights(model, weights)  # type: ignore[arg-type]
    kind = _type_for(method, family, args, kwargs)
    follows = _follows(method, covariance, kind)
    _require_probes(probes, method, kind)
    then = outputs if callable(outputs) else None
    if outputs is not None and then is None and not follows:
        then = functools.partial(_chosen, outputs, batch_dim)
    run = Run(model, args, kwargs, input_variance, dropout, fallback, seed, then)
    if method == "full" and run.has_random_weights:
        raise ValueError("method='full' does not take random weights: use method='ap2'")
    run = run.settled() if method == "sample" else run
    watcher = None if calibration is None else calibration.corrections(model, kind, dropout)
    recording = Recording(model, kind, record, _copied_as_normal if probes else None)
    kind = with_probes(probes) if probes else kind
    if follows:
        watched = Linearly if method == "linear" else Following
        how = Wanted(covariance, outputs, batch_dim, watched, probes)
        output, recorded = JointRun(run, kind, recording, watcher, how).run()
    else:
        if probes:
            watcher = Chain(*([] if watcher is None else [watcher]), Probing(probes, seed or 0, batch_dim))
        with run.by(kind, recording, watcher) as once:
            if method == "sample":
                moments = _moments(run, batch_dim) if covariance else None
                folds = None if watcher is not None or is_known_to_transform() else Folds(run, recording)
                output, recorded = _estimated(once, samples, run.may_vectorize, moments, folds)
            else:
                output, recorded = once()
                output = mapped(as_normal, output)
    if input_variance is None and calibration is None:  # which warns by itself
        warn_if_nothing_is_random((args, kwargs), (output, recorded), dropout, lambda: run.has_random_weights)
    return output if record is False else (output, recorded)


_WRITTEN = {
    "joint": "covariance=True",
    "probes": "probes=16",
    "calibrated": "calibration=..., covariance=False",
    "draws": "method='sample'",
}
"""What to write for methods that the documentation and `check` name, but that are options of another one."""


def _number_of_draws(samples: int | None, method: str | None) -> int:
    """Return the number of draws; refuse one that would have no effect because no method is named."""
    if samples is not None and method is None:
        raise ValueError(f"samples={samples} has an effect only on draws: write `method='sample'`, too")
    if method == "sample" and samples is not None and samples < 2:
        raise ValueError(f"a variance takes at least 2 samples, but samples is {samples}")
    return 1000 if samples is None else samples


def _follows(method: str | None, covariance: bool | None, kind: type[Value]) -> bool:
    """Return whether to follow correlations with the adjoint: by default wherever AP2 runs."""
    if method in ("linear", "full") and covariance is False:
        raise ValueError(f"method={method!r} always gives a covariance: leave out `covariance=False`")
    if method in ("full", "sample"):
        return False
    if method != "linear" and (covariance is False or not issubclass(kind, Independent) or kind is Statistics):
        if covariance:
            raise ValueError(
                f"a {kind.__name__} has no correlations to follow: give method='ap2', or leave out `covariance=True`"
            )
        return False
    if is_compiled() or is_known_to_transform():
        raise RuntimeError(
            "correlations cannot be followed inside `torch.compile` or transforms of `torch.func`: write "
            "`covariance=False`, or compile the model alone, as in `propagate(torch.compile(model), ...)`"
        )
    return True


def _chosen(index: Any, batch_dim: int | None, output: Any) -> Any:
    """Return some units of every item of the one tensor or value that a model returns."""
    if not is_tensor(output):
        raise ValueError(
            "`outputs=` chooses units of one output, but the model returns several: give a function of what the model "
            "returns, such as `outputs=lambda y: y[0]`"
        )
    if batch_dim is None or output.ndim == 1:
        return output.flatten()[index]
    return output.movedim(batch_dim, 0).flatten(1)[:, index]


def _require_probes(probes: Any, method: str | None, kind: type[Value]) -> None:
    if isinstance(probes, bool) or not isinstance(probes, Integral) or probes < 0 or probes == 1:
        raise ValueError(
            f"probes must be 0, or a whole number from 2 on, because a variance takes two, but is {probes}"
        )
    if probes and (kind is not Normal or method == "linear"):
        what = f"method={method!r}" if method == "linear" else f"{kind.__name__} values"
        raise ValueError(f"probes work with the `Normal` values of method='ap2', not with {what}: leave out `probes`")


def _copied_as_normal(path: str, tree: Any) -> Any:
    return mapped(lambda x: copied(as_normal(x)), tree)


def _type_for(method: str | None, family: str | None, args: Sequence[Any], kwargs: Mapping[str, Any]) -> type[Value]:
    """Return the type of value to run a model with: the method's, or that of the values among the arguments."""
    if method not in (None, "ap1", "ap2", "sample", "full", "linear"):
        instead = f"write `{_WRITTEN[method]}`, or " if method in _WRITTEN else ""
        raise ValueError(f"unknown method {method!r}: {instead}choose 'ap1', 'ap2', 'sample', 'full' or 'linear'")
    if family is not None and family not in FAMILIES:
        raise ValueError(f"unknown family {family!r}: choose 'normal', 'logistic' or 'fitted'")
    if family is not None and method not in (None, "ap2"):
        raise ValueError(f"family={family!r} is for method='ap2', not for {method!r}: leave out one of the two")
    if method is None and family is None:
        return _type_given(args, kwargs)
    ap2 = FAMILIES[family or "normal"]
    types: dict[str, type[Value]] = {"ap1": Mean, "ap2": ap2, "sample": Sample, "full": Full, "linear": Mean}
    return types[method or "ap2"]


def _type_given(args: Sequence[Any], kwargs: Mapping[str, Any]) -> type[Value]:
    plain = not kwargs and all(type(x) is Tensor for x in args)
    leaves = args if plain else pytree.tree_leaves((tuple(args), dict(kwargs)), is_leaf=is_value)
    types = list(dict.fromkeys(type(leaf) for leaf in leaves if is_value(leaf)))
    if not types:
        return Normal
    if len(types) > 1:
        names = " and a ".join(each.__name__ for each in types)
        raise TypeError(f"the model was given a {names}: choose how to run it, for example with `method='ap2'`")
    if issubclass(types[0], Estimate | Categorical):
        raise TypeError(
            f"the {types[0].__name__} is a result and cannot enter a model: write `method='ap2'` to take its mean and "
            "variance as those of a `Normal`"
        )
    return Normal if types[0] is Joint else types[0]


def _moments(run: Run, batch_dim: int | None) -> Callable[[Tensor], RunningMoments]:
    """Return an accumulator for the covariance of stacked draws over the units of an item, as `JointRun` takes it."""
    first, items = run.first_tensor, run.items(batch_dim or 0)

    def of_items(draws: Tensor) -> RunningMoments:
        shape = draws.shape[1:]
        is_vector = first is not None and first.ndim == 1 and shape.numel() <= LIMIT
        if batch_dim is None or is_vector or not -len(shape) <= batch_dim < len(shape) or shape[batch_dim] != items:
            return RunningCovariance(None)
        return RunningCovariance(batch_dim % len(shape))

    return of_items


class Folds(Batches):
    """Makes the draws of a run as batches, and keeps the first output and what was recorded.

    `tensors_of` picks the tensors whose draws are stacked from an output and what was recorded; by default all.
    """

    def __init__(
        self, run: Run, recording: Recording, tensors_of: Callable[[Any, dict[str, Any]], list[Tensor]] | None = None
    ) -> None:
        super().__init__(size=run.nbytes, is_known=run.is_of_torch)
        self.run, self.recording = run, recording
        self.tensors_of = tensors_of or _all_draws
        self.first: Any = None

    @property
    def device(self) -> torch.device | None:
        """The device of the first tensor among the arguments."""
        first = self.run.first_tensor
        return None if first is None else first.device

    def make(self, count: int, most: int) -> tuple[Sequence[Tensor], int]:
        """Return stacked draws and the bytes they took."""
        output, recorded, size = self.run.folded(self.recording, count, most)
        if self.first is None:
            self.first = output, recorded
        return self.tensors_of(output, recorded), size


def _all_draws(output: Any, recorded: dict[str, Any]) -> list[Tensor]:
    return _draws_in((output, recorded) if recorded else output)


def _estimated(
    run: Callable[[], Any],
    samples: int,
    together: bool,
    moments: Callable[[Tensor], RunningMoments] | None,
    folds: Folds | None,
) -> Any:
    """Return the result of many runs, with an `Estimate` instead of every draw, and what was recorded."""
    kept: list[Any] = []

    def draw() -> list[Tensor]:
        output = run()
        if not kept:
            kept.append(output)
        return _draws_in(output)

    kept_draws = KeptDraws(samples, moments)
    estimates = iter(stream(draw, samples, together=together, moments_of=kept_draws, batches=folds))
    structure = kept[0] if kept or folds is None else folds.first
    return tuple(
        mapped(lambda leaf: next(estimates) if isinstance(leaf, Sample) else leaf, part) if part != {} else part
        for part in structure
    )


def _draws_in(output: Any) -> list[Tensor]:
    return [leaf.loc for leaf in leaves_of(output) if isinstance(leaf, Sample)]
