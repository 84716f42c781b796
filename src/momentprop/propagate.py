r"""Run an unmodified model by one of the three methods: means only, means and variances, or many draws."""

import contextlib
import difflib
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Literal

import torch
from torch import Tensor, nn

from momentprop import fallbacks
from momentprop.dispatch import dispatch, is_noise, values_in, where
from momentprop.dispatch.composites import OPENED
from momentprop.dispatch.context import Context, Fallback, Watcher
from momentprop.sampling import stream
from momentprop.torch_compat import pytrees as pytree
from momentprop.torch_compat.dynamo import traceable
from momentprop.torch_compat.modules import RunningNorm
from momentprop.values import Certain, Fitted, Logistic, Mean, Normal, Sample, Statistics, Value

Method = Literal["ap1", "ap2", "sample"]
Family = Literal["normal", "logistic", "fitted"]

_FAMILIES: dict[str, type[Normal]] = {"normal": Normal, "logistic": Logistic, "fitted": Fitted}
_DRAWS = frozenset(
    "bernoulli bernoulli_ exponential_ gumbel_softmax multinomial normal normal_ poisson "
    "rand rand_like randn randn_like uniform_".split()
)


def propagate(
    model: Callable[..., Any],
    *args: Any,
    method: Method = "ap2",
    family: Family = "normal",
    input_variance: Tensor | float | None = None,
    dropout: bool = False,
    samples: int = 1000,
    record: bool | Sequence[str] = False,
    calibration: Any = None,
    fallback: Literal["quadrature", "monte_carlo", "linearize"] | Fallback | None = None,
    seed: int | None = None,
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
        model: any module or function; it is left as it was, but for what its forward pass changes in training mode.
        *args: go to the model, tensors as well as values.
        method: `"ap1"` propagates means (`Mean`), `"ap2"` means and variances, `"sample"` makes many draws and gives
            an `Estimate`.
        family: of `"ap2"`: `"normal"`, `"logistic"` or `"fitted"` values.
        input_variance: the variance of the first floating-point argument, a number or a tensor that broadcasts to it.
            Refused if an argument is a value already.
        dropout: let dropout act although the model is in evaluation mode, attention dropout included. Every module but
            the normalizations is told that it is training.
        samples: the number of draws of `"sample"`.
        record: also return a dictionary with copies of the value at every module, or at the modules named. Its keys are
            the paths of the modules, and `path#2` for the second call of one.
        calibration: corrections of `"ap2"`, as `momentprop.calibrate` gives them.
        fallback: what to do with an operation that has no rule. By default it raises `MissingRule`.
            `"quadrature"` is for elementwise ones, `"monte_carlo"` for any, `"linearize"` for smooth ones.
        seed: makes draws repeatable, and leaves torch's own generators as they were.
        **kwargs: go to the model.
    """
    if method == "sample" and samples < 2:
        raise ValueError(f"a variance takes at least 2 samples, but samples is {samples}")
    kind = _kind(method, family)
    watcher = None if calibration is None else calibration.corrections(model, kind, dropout)
    recording = Recording(model, kind, record)
    with prepared(model, args, kwargs, kind, recording, input_variance, dropout, fallback, seed, watcher) as run:
        output, recorded = _estimated(run, samples, may_vectorize(model)) if method == "sample" else run()
    return output if record is False else (output, recorded)


@contextlib.contextmanager
def prepared(
    model: Callable[..., Any],
    args: Sequence[Any],
    kwargs: Mapping[str, Any],
    kind: type[Value],
    recording: "Recording",
    input_variance: Tensor | float | None,
    dropout: bool,
    fallback: Any,
    seed: int | None,
    watcher: Watcher | None = None,
) -> Iterator[Callable[[], tuple[Any, dict[str, Any]]]]:
    """Make the model ready for a method; inside, a function runs it and gives its output and what was recorded."""
    inputs = _Inputs(args, kwargs, input_variance)
    propagation = Propagation(kind, fallbacks.named(fallback), watcher)

    def run() -> tuple[Any, dict[str, Any]]:
        recording.start()
        if watcher is not None:
            watcher.start(inputs.leaves)
        with propagation:
            given, named = inputs.of_kind(kind)
            output = model(*given, **named)
        if watcher is not None:
            watcher.finish()
        return _as_values(output, kind), recording.values

    with _seeded(seed), _training_all_but_norms(model) if dropout else contextlib.nullcontext(), recording:
        yield run


def _kind(method: str, family: str) -> type[Value]:
    if method not in ("ap1", "ap2", "sample"):
        raise ValueError(f"unknown method {method!r}: choose 'ap1', 'ap2' or 'sample'")
    if family not in _FAMILIES:
        raise ValueError(f"unknown family {family!r}: choose 'normal', 'logistic' or 'fitted'")
    kinds: dict[str, type[Value]] = {"ap1": Mean, "ap2": _FAMILIES[family], "sample": Sample}
    return kinds[method]


class Propagation(Context):
    """Makes values of plain tensors that meet noise, and says what happens to operations without a rule."""

    def __init__(self, kind: type[Value], fallback: Fallback | None = None, watcher: Watcher | None = None) -> None:
        super().__init__()
        self.kind = kind
        self.fallback = fallback
        self.watcher = watcher

    def __torch_function__(
        self,
        function: Callable[..., Any],
        types: Any,
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        """Torch calls this for every operation inside the context."""
        kwargs = kwargs or {}
        if self.suspended:
            return function(*args, **kwargs)
        if self.kind is not Sample and getattr(function, "__name__", "") in _DRAWS:
            _warn_of_draw(function.__name__, self.kind)
        if not any(True for _ in values_in(args, kwargs)):
            return self.on_plain(function, function, args, kwargs)
        args, kwargs = _converted((args, kwargs), self.kind)
        if function.__name__ in OPENED:
            with self:  # noise on plain tensors may be inside
                return OPENED[function.__name__](*args, **kwargs)
        return dispatch(function, args, kwargs, self)

    def on_plain(
        self, function: Callable[..., Any], body: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any]
    ) -> Any:
        """Apply an operation without a value among its arguments; noise makes a value of the first one."""
        name = getattr(function, "__name__", "")
        if name in OPENED:
            with self:
                return OPENED[name](*args, **kwargs)
        if is_noise(name, Mean):
            return self._noise(function, args, kwargs)
        return traceable(name, body)(*args, **kwargs)

    def _noise(self, function: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        leaves, structure = pytree.tree_flatten((args, kwargs))
        first = next(i for i, leaf in enumerate(leaves) if _is_floating(leaf))
        lifted = as_kind(leaves[first], self.kind)
        given, named = pytree.tree_unflatten([*leaves[:first], lifted, *leaves[first + 1 :]], structure)
        result = dispatch(function, given, named, self)
        return leaves[first] if result is lifted else result  # noise that does not act leaves a tensor plain


class _Inputs:
    """The arguments of a model, and the variance of one of them."""

    def __init__(self, args: Sequence[Any], kwargs: Mapping[str, Any], variance: Tensor | float | None) -> None:
        leaves, self.structure = pytree.tree_flatten((tuple(args), dict(kwargs)), is_leaf=_is_value)
        if variance is not None:
            if any(_is_value(leaf) for leaf in leaves):
                raise TypeError("input_variance was given beside an argument that is a value and has its own variance")
            first = next((i for i, leaf in enumerate(leaves) if _is_floating(leaf)), None)
            if first is None:
                raise TypeError("input_variance was given, but no argument is a floating-point tensor")
            leaves[first] = Normal(leaves[first], variance)
        self.leaves = leaves

    def of_kind(self, kind: type[Value]) -> Any:
        """The arguments with each value as one of this kind; a value that is given twice remains one."""
        converted = {id(leaf): as_kind(leaf, kind) for leaf in self.leaves if _is_value(leaf)}
        return pytree.tree_unflatten([converted.get(id(leaf), leaf) for leaf in self.leaves], self.structure)


def as_kind(x: Any, kind: type[Value]) -> Any:
    """A value or a tensor as a value of another kind: its mean, its moments, or a draw of it."""
    if type(x) is kind:
        return x
    if issubclass(kind, Normal):
        loc = getattr(x, "loc", x)
        return kind.of(loc, getattr(x, "variance", torch.zeros_like(loc)))
    if kind is Sample and isinstance(x, Value):
        return Sample.of(x.sample())
    return kind.of(getattr(x, "loc", x))


def _converted(tree: Any, kind: type[Value]) -> Any:
    """The tree with the moments among its values, a random weight say, as values of this kind."""
    return pytree.tree_map(
        lambda x: as_kind(x, kind) if isinstance(x, Normal | Certain) else x, tree, is_leaf=_is_value
    )


def _as_values(tree: Any, kind: type[Value]) -> Any:
    """The tree with values in place of floating-point tensors."""
    return pytree.tree_map(lambda x: as_kind(x, kind) if _is_floating(x) else x, tree, is_leaf=_is_value)


def _is_value(x: Any) -> bool:
    return isinstance(x, Value)


def _is_floating(x: Any) -> bool:
    return isinstance(x, Tensor) and x.is_floating_point()


class Recording(contextlib.AbstractContextManager["Recording"]):
    """Keeps what `keep` makes of the value at every module, or at the modules named; by default a copy."""

    def __init__(
        self,
        model: Callable[..., Any],
        kind: type[Value],
        record: bool | Sequence[str],
        keep: Callable[[str, Any], Any] | None = None,
    ) -> None:
        self.kind = kind
        self.keep = keep or _copies
        self.values: dict[str, Any] = {}
        self.modules = _recorded_modules(model, record)
        self.handles: list[Any] = []

    def __enter__(self) -> "Recording":
        self.handles = [module.register_forward_hook(self._hook(path)) for path, module in self.modules.items()]
        return self

    def __exit__(self, *_: object) -> None:
        for handle in self.handles:
            handle.remove()

    def start(self) -> None:
        """Begin a new forward pass."""
        self.values = {}

    def _hook(self, path: str) -> Callable[..., None]:
        def keep(module: nn.Module, args: Any, output: Any) -> None:
            if isinstance(output, Statistics) and not issubclass(self.kind, Statistics):
                return  # a pass of one pixel, for the sake of an `AnalyticNorm`
            calls = sum(key.split("#")[0] == path for key in self.values)
            key = f"{path}#{calls + 1}" if calls else path
            self.values[key] = self.keep(key, _as_values(output, self.kind))

        return keep


def _copies(path: str, tree: Any) -> Any:
    return pytree.tree_map(_copied, tree, is_leaf=_is_value)


def _copied(x: Any) -> Any:
    if isinstance(x, Value):
        return x.each(torch.clone)
    return x.clone() if isinstance(x, Tensor) else x


def _recorded_modules(model: Callable[..., Any], record: bool | Sequence[str]) -> dict[str, nn.Module]:
    if record is False:
        return {}
    if not isinstance(model, nn.Module):
        raise TypeError(f"record needs a module to look into, but the model is a {type(model).__name__}")
    modules = {path: module for path, module in model.named_modules() if path}
    if record is True:
        return modules
    every = dict(model.named_modules(remove_duplicate=False))
    for path in record:
        if path not in every:
            near = difflib.get_close_matches(path, every, n=1)
            hint = f"; did you mean {near[0]!r}?" if near else ""
            raise ValueError(f"the model has no module {path!r} to record{hint}")
    return {path: every[path] for path in record}


def _estimated(run: Callable[[], Any], samples: int, together: bool) -> Any:
    """The result of many runs, with an `Estimate` in the place of every draw."""
    kept: list[tuple[list[Any], Any]] = []

    def draw() -> list[Tensor]:
        leaves, structure = pytree.tree_flatten(run(), is_leaf=_is_value)
        if not kept:
            kept.append((leaves, structure))
        return [leaf.loc for leaf in leaves if isinstance(leaf, Sample)]

    estimates = iter(stream(draw, samples, together=together))
    leaves, structure = kept[0]
    return pytree.tree_unflatten([next(estimates) if isinstance(leaf, Sample) else leaf for leaf in leaves], structure)


def may_vectorize(model: Callable[..., Any]) -> bool:
    """Whether draws may be made at once: not where a module in training keeps running statistics."""
    modules = model.modules() if isinstance(model, nn.Module) else ()
    return not any(module.training and getattr(module, "running_mean", None) is not None for module in modules)


@contextlib.contextmanager
def _training_all_but_norms(model: Callable[..., Any]) -> Iterator[None]:
    """Tell all modules that they are training, but for those that would then take the statistics of the batch."""
    modules = model.modules() if isinstance(model, nn.Module) else ()
    resting = [m for m in modules if not m.training and not isinstance(m, RunningNorm)]
    try:
        for module in resting:
            module.training = True
        yield
    finally:
        for module in resting:
            module.training = False


@contextlib.contextmanager
def _seeded(seed: int | None) -> Iterator[None]:
    """Start torch's generators at a seed, and put them back afterwards."""
    if seed is None:
        yield
        return
    with torch.random.fork_rng(devices=range(torch.cuda.device_count())):
        torch.manual_seed(seed)
        yield


def _warn_of_draw(name: str, kind: type[Value]) -> None:
    warnings.warn(
        f"the model draws random numbers by {name!r} at {where()}; as a {kind.__name__} they are kept as constants, "
        "and their variance is lost: use a layer that momentprop knows, or method='sample'",
        stacklevel=2,
    )
