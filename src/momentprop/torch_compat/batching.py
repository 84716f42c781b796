"""Where `vmap` is silently wrong.

Torch takes the dimension of the batch for one of a scalar: `roll` then exchanges the elements of the batch, and
`index_fill` fills all of them with one value. `python -m tests.operators.batched` looks for such operators.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from torch import Tensor
from torch.overrides import TorchFunctionMode

_WRONG_ON_SCALARS = frozenset(("index_fill", "index_fill_", "roll"))


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
        if name in _WRONG_ON_SCALARS:
            first = args[0] if args else kwargs.get("input")
            if isinstance(first, Tensor) and first.ndim == 0:
                raise NotImplementedError(f"`vmap` of {name!r} on a scalar is wrong")
        return function(*args, **kwargs)
