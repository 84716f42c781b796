"""Work shared by several processes, and the exchange of results. With one process, all of this does nothing."""

import atexit
import datetime
import os
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from momentprop.errors import UserError
from momentprop.torch_compat import pytrees as pytree

_TIMEOUT = datetime.timedelta(minutes=10)
_PAUSE = 0.2  # seconds


@dataclass(frozen=True)
class Ranks:
    """This process among all processes of a run, and its device."""

    rank: int
    world: int
    device: torch.device

    @property
    def is_first(self) -> bool:
        """Whether this process is the first, the only one that writes files."""
        return self.rank == 0

    def shard(self, batch: Tensor) -> Tensor:
        """Return the part of a batch for this process; parts keep the order and differ in size by at most one."""
        return batch.tensor_split(self.world)[self.rank]

    def sum(self, tensor: Tensor) -> Tensor:
        """Return the sum of a tensor over all processes."""
        if self.world > 1:
            tensor = tensor.clone()
            dist.all_reduce(tensor)
        return tensor

    def gather(self, tensor: Tensor) -> list[Tensor]:
        """Return the tensors of all processes on every process; their first dimensions may differ."""
        if self.world == 1:
            return [tensor]
        counts = [torch.zeros(1, dtype=torch.int64, device=tensor.device) for _ in range(self.world)]
        dist.all_gather(counts, torch.tensor([len(tensor)], device=tensor.device))
        most = max(int(count) for count in counts)
        padded = torch.cat([tensor, tensor.new_zeros(most - len(tensor), *tensor.shape[1:])])
        parts = [torch.empty_like(padded) for _ in range(self.world)]
        dist.all_gather(parts, padded.contiguous())
        return [part[: int(count)] for part, count in zip(parts, counts, strict=True)]

    def wait(self) -> None:
        """Wait until all processes have arrived here."""
        if self.world > 1:
            dist.barrier(device_ids=[self.device.index] if self.device.type == "cuda" else None)

    def share_buffers(self, model: nn.Module) -> None:
        """Copy the buffers of the first process, such as running statistics, to all processes."""
        if self.world > 1:
            for buffer in model.buffers():
                dist.broadcast(buffer, 0)

    def wrap(self, model: nn.Module) -> nn.Module:
        """Return the model, with gradients averaged over all processes."""
        return DistributedDataParallel(model) if self.world > 1 else model


def processes(device: str = "auto") -> Ranks:
    """Return this process and its device, and join the other processes if `torchrun` has started them."""
    place = as_device(device, int(os.environ.get("LOCAL_RANK", "0")))
    if not dist.is_available():
        return Ranks(0, 1, place)
    if not dist.is_initialized() and int(os.environ.get("WORLD_SIZE", "1")) > 1:
        dist.init_process_group("cpu:gloo,cuda:nccl" if place.type == "cuda" else "gloo", timeout=_TIMEOUT)
        atexit.register(_leave)  # a process cannot leave and join again
    if not dist.is_initialized():
        return Ranks(0, 1, place)
    return Ranks(dist.get_rank(), dist.get_world_size(), place)


def _leave() -> None:
    """Leave the other processes, and let torch's threads drop the tensors of the last exchange.

    DistributedDataParallel keeps the group's threads alive. One that drops a tensor while Python ends aborts the
    process (pytorch issue 190489). To drop it, the thread needs Python's lock, which this pause gives up.
    """
    if dist.is_initialized():
        dist.destroy_process_group()
        time.sleep(_PAUSE)


def as_device(name: str, local_rank: int = 0) -> torch.device:
    """Return a device by name; `auto` is a GPU if there is one, and each process takes its own."""
    if name == "auto":
        name = "cuda" if torch.cuda.is_available() else "cpu"
    if name == "cuda":
        name = f"cuda:{local_rank}"
    try:
        device = torch.device(name)
        torch.empty(0, device=device)
    except (RuntimeError, AssertionError) as error:
        reason = str(error).splitlines()[0]
        raise UserError(f"device {name!r} cannot be used, so choose another, such as 'cpu': {reason}") from error
    if device.type == "cuda":
        torch.cuda.set_device(device)
    return device


def over_ranks(function: Callable[[Tensor], Any], inputs: Tensor) -> Any:
    """Run a function on one part of `inputs` per process, and return the joint result on every process.

    The function returns a tree of tensors or values with one row for each input, as `propagate` does. A Monte Carlo
    reference, for example, then takes a fraction of its time:

    >>> import torch
    >>> from momentprop import propagate
    >>> from momentprop.training import over_ranks
    >>> model, images = torch.nn.Linear(4, 2), torch.rand(10, 4)
    >>> reference = over_ranks(lambda x: propagate(model, x, method="sample", input_variance=0.1, samples=50), images)
    >>> reference.variance.shape
    torch.Size([10, 2])
    """
    ranks = processes(str(inputs.device))
    if ranks.world == 1:
        return function(inputs)
    leaves, structure = pytree.tree_flatten(function(ranks.shard(inputs)))
    joint = [torch.cat(ranks.gather(leaf)) if isinstance(leaf, Tensor) else leaf for leaf in leaves]
    return pytree.tree_unflatten(joint, structure)
