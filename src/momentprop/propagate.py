r"""Run an unmodified model by one of the three methods: means only, means and variances, or many draws."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal

import torch
from torch import Tensor

from momentprop.dispatch.context import Fallback
from momentprop.joint_outputs import Wanted, run_jointly
from momentprop.recording import Recording
from momentprop.running import Run
from momentprop.sampling import stream
from momentprop.torch_compat import pytrees as pytree
from momentprop.undoing import leaves_no_trace
from momentprop.values import Categorical, Estimate, Fitted, Logistic, Mean, Normal, Sample, Statistics, Value
from momentprop.values.conversion import is_value
from momentprop.values.independent import Independent
from momentprop.values.structures import leaves_of, mapped

Method = Literal["ap1", "ap2", "sample"]
Family = Literal["normal", "logistic", "fitted"]

FAMILIES: dict[str, type[Independent]] = {"normal": Normal, "logistic": Logistic, "fitted": Fitted}
"""The types of values of AP2, by the name of the family."""


@leaves_no_trace
def propagate(
    model: Callable[..., Any],
    *args: Any,
    method: Method | None = None,
    family: Family | None = None,
    input_variance: Tensor | float | None = None,
    dropout: bool = False,
    samples: int = 1000,
    record: bool | Sequence[str] = False,
    calibration: Any = None,
    fallback: Literal["quadrature", "monte_carlo", "linearize"] | Fallback | None = None,
    seed: int | None = None,
    covariance: bool | None = None,
    outputs: Any = None,
    batch_dim: int | None = 0,
    **kwargs: Any,
) -> Any:
    r"""Run `model(*args, **kwargs)` by one of three methods and return its output with values in place of tensors.

    >>> import torch, momentprop
    >>> model = torch.nn.Sequential(torch.nn.Identity(), torch.nn.ReLU(), torch.nn.Dropout(0.5)).eval()
    >>> x = torch.tensor([-1.0, 2.0])
    >>> momentprop.propagate(model, x, method="ap1")
    Mean(loc=tensor([0., 2.]))
    >>> momentprop.propagate(model, x, input_variance=1.0)
    Normal(loc=tensor([0.0833, 2.0085]),
           variance=tensor([0.0684, 0.9602]))
    >>> y, inside = momentprop.propagate(model, x, input_variance=1.0, dropout=True, record=True)
    >>> list(inside), y.variance
    (['0', '1', '2'], tensor([0.1437, 5.9544]))
    >>> many = momentprop.propagate(model, x, method="sample", input_variance=1.0, dropout=True, samples=4000, seed=0)
    >>> bool(((many.variance - y.variance).abs() < 4 * many.variance_error).all())
    True

    Args:
        model: any module or function. A module is left as it was, but for running statistics and plain tensors that its
            forward pass assigns in training mode. Threads may share it.
        *args: copies of them go to the model, tensors as well as values.
        method: `"ap1"` propagates means (`Mean`), `"ap2"` means and variances, `"sample"` makes many draws and gives
            an `Estimate`. By default a value among the arguments keeps its type, and tensors are run by `"ap2"`.
        family: of `"ap2"`: `"normal"` (the default), `"logistic"` or `"fitted"` values.
        input_variance: the variance of the first floating-point argument, a number or a tensor that broadcasts to it.
            Refused if an argument is a value already.
        dropout: let dropout act although the model is in evaluation mode, attention dropout included. Every module but
            the normalizations is told that it is training.
        samples: the number of draws of `"sample"`.
        record: also return a dictionary with copies of the value at every module, or at the modules named. Its keys are
            the paths of the modules, and `path#2` for the second call of one.
        calibration: corrections of `"ap2"`, as `momentprop.calibrate` gives them. Refused if a module, a constant or a
            weight of the model has changed since; the check reads every weight once.
        fallback: what to do with an operation that has no rule. By default it raises `MissingRule`.
            `"quadrature"` is for elementwise ones, `"monte_carlo"` for any, `"linearize"` for smooth ones.
        seed: makes draws repeatable, and leaves torch's own generators as they were.
        **kwargs: go to the model.
    """
    if method == "sample" and samples < 2:
        raise ValueError(f"a variance takes at least 2 samples, but samples is {samples}")
    kind = _type_for(method, family, args, kwargs)
    then = outputs if callable(outputs) else None
    run = Run(model, args, kwargs, input_variance, dropout, fallback, seed, then)
    watcher = None if calibration is None else calibration.corrections(model, kind, dropout)
    if _follows(covariance, outputs, kind):
        how = Wanted(covariance, outputs, batch_dim)
        output, recorded = run_jointly(run, kind, Recording(model, kind, record), watcher, how)
        return output if record is False else (output, recorded)
    with run.by(kind, Recording(model, kind, record), watcher) as once:
        output, recorded = _estimated(once, samples, run.may_vectorize) if method == "sample" else once()
    return output if record is False else (output, recorded)


def _follows(covariance: bool | None, outputs: Any, kind: type[Value]) -> bool:
    """Return whether correlations are followed: by default they are wherever AP2 runs."""
    if covariance is False or not issubclass(kind, Independent) or issubclass(kind, Statistics):
        if covariance or (outputs is not None and not callable(outputs)):
            what = "covariance=False" if covariance is False else f"values of type {kind.__name__}"
            raise ValueError(f"correlations are followed by method='ap2' and not for {what}")
        return False
    if torch.compiler.is_compiling():
        raise RuntimeError(
            "correlations cannot be followed inside `torch.compile`: compile the model itself and write "
            "`propagate(torch.compile(model), ...)`, or give `covariance=False`"
        )
    return True


def _type_for(method: str | None, family: str | None, args: Sequence[Any], kwargs: Mapping[str, Any]) -> type[Value]:
    """Return the type of value to run a model with: that of the method, or that of the values it is given."""
    if method not in (None, "ap1", "ap2", "sample"):
        raise ValueError(f"unknown method {method!r}: choose 'ap1', 'ap2' or 'sample'")
    if family is not None and family not in FAMILIES:
        raise ValueError(f"unknown family {family!r}: choose 'normal', 'logistic' or 'fitted'")
    if method is None and family is None:
        return _type_given(args, kwargs)
    types: dict[str, type[Value]] = {"ap1": Mean, "ap2": FAMILIES[family or "normal"], "sample": Sample}
    return types[method or "ap2"]


def _type_given(args: Sequence[Any], kwargs: Mapping[str, Any]) -> type[Value]:
    leaves = pytree.tree_leaves((tuple(args), dict(kwargs)), is_leaf=is_value)
    types = list(dict.fromkeys(type(leaf) for leaf in leaves if is_value(leaf)))
    if not types:
        return Normal
    if len(types) > 1:
        names = " and a ".join(each.__name__ for each in types)
        raise TypeError(f"the model is given a {names}: say by which method it is to run, as `method='ap2'`")
    if issubclass(types[0], Estimate | Categorical):
        raise TypeError(
            f"a {types[0].__name__} is a result and does not pass a model: give `method='ap2'` to take its mean and "
            "variance as those of a `Normal`"
        )
    return types[0]


def _estimated(run: Callable[[], Any], samples: int, together: bool) -> Any:
    """Return the result of many runs, with an `Estimate` in the place of every draw."""
    kept: list[Any] = []

    def draw() -> list[Tensor]:
        output = run()
        if not kept:
            kept.append(output)
        return [leaf.loc for leaf in leaves_of(output) if isinstance(leaf, Sample)]

    estimates = iter(stream(draw, samples, together=together))
    return mapped(lambda leaf: next(estimates) if isinstance(leaf, Sample) else leaf, kept[0])
