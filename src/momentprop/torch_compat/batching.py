"""Where `vmap` is silently wrong.

`roll` of a scalar moves elements across the batch, and `index_fill` can fill all of them with one value.
`tests/operators/batched.py` looks for such operators.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from torch import Tensor
from torch.overrides import TorchFunctionMode


class RefuseWrong(TorchFunctionMode):
    """Refuses the calls that `vmap` is wrong for."""

    def __torch_function__(
        self,
        function: Callable[..., Any],
        types: Any,
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        """Torch calls this for every operation inside the context."""
        kwargs = kwargs or {}
        name = getattr(function, "__name__", "")
        if name in _WRONG and _WRONG[name]({**dict(enumerate(args)), **kwargs}):
            raise NotImplementedError(f"torch's `vmap` gives wrong results for {name!r} with these arguments")
        return function(*args, **kwargs)


def _of_scalar(given: Mapping[Any, Any]) -> bool:
    first = given.get(0, given.get("input"))
    return isinstance(first, Tensor) and first.ndim == 0


def _with_tensor(given: Mapping[Any, Any]) -> bool:
    return isinstance(given.get(3, given.get("value")), Tensor)


_WRONG: dict[str, Callable[[Mapping[Any, Any]], bool]] = {
    "roll": _of_scalar,
    "index_fill": _with_tensor,
    "index_fill_": _with_tensor,
}
