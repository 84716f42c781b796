"""Two processes with values in and out of the wrapped module give the gradients of one process on the joint batch."""

import datetime
import os
import time
import traceback
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch import Tensor, nn
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel

from momentprop import Normal, Statistics, normalize

WORLD = 2
SECONDS = 60  # after which a collective, and then the test, gives up

pytestmark = pytest.mark.skipif(
    not dist.is_available() or not dist.is_gloo_available(), reason="torch was built without gloo"
)


class Net(nn.Module):
    """A network with a skip connection, two results in a dictionary, and parameters that it does not use."""

    def __init__(self) -> None:
        super().__init__()
        self.enter = nn.Linear(5, 8)
        self.body = nn.Sequential(nn.Linear(8, 8), nn.ReLU(inplace=True), nn.LayerNorm(8))
        self.leave = nn.Linear(8, 3)
        self.idle = nn.Linear(2, 2)

    def forward(self, x: Any, *, scale: float) -> dict[str, Any]:
        hidden = torch.tanh(self.enter(x))
        hidden = hidden + self.body(hidden)
        return {"result": self.leave(hidden) * scale, "hidden": hidden}


def _model(idle: bool) -> Net:
    torch.manual_seed(0)
    model = Net().double()
    if not idle:
        model.idle = nn.Identity()  # type: ignore[assignment]
    return model


def _batch() -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(1)
    return tuple(torch.rand(4, 5, generator=generator, dtype=torch.float64) for _ in range(2))  # type: ignore[return-value]


def _loss(out: dict[str, Any]) -> Tensor:
    """An average over the batch, so that the average over processes is that over the joint batch."""
    y = out["result"]
    assert isinstance(y, Normal)
    return (y.loc.square() + y.variance).sum(1).mean() + out["hidden"].variance.sum(1).mean()


def _step(model: nn.Module, rows: slice) -> dict[str, Tensor]:
    loc, variance = _batch()
    _loss(model(Normal(loc[rows], variance[rows]), scale=0.5)).backward()
    return {name: p.grad for name, p in model.named_parameters() if p.grad is not None}


def _normalized_step(wrap: Callable[[nn.Module], nn.Module], rows: slice) -> dict[str, Tensor]:
    """A step of a model that computes the statistics of its weights before every pass."""
    torch.manual_seed(0)
    layers = nn.Sequential(nn.Linear(5, 8), nn.ReLU(), nn.Linear(8, 3)).double()
    model = wrap(normalize(layers, Statistics(torch.zeros(5), torch.ones(5))))
    loc, variance = _batch()
    y: Any = model(Normal(loc[rows], variance[rows]))
    (y.loc.square() + y.variance).sum(1).mean().backward()
    return {name.removeprefix("module."): p.grad for name, p in model.named_parameters() if p.grad is not None}


def _ddp(**options: Any) -> Callable[[nn.Module], nn.Module]:
    return lambda model: DistributedDataParallel(model, **options)


def _fsdp(model: Any) -> nn.Module:
    mesh = dist.init_device_mesh("cpu", (WORLD,))
    for part in (model.enter, model.body):
        fully_shard(part, mesh=mesh)
    return fully_shard(model, mesh=mesh)


WRAPPERS: dict[str, tuple[Callable[[Any], nn.Module], bool]] = {
    "DDP": (_ddp(), False),
    "DDP(find_unused_parameters=True)": (_ddp(find_unused_parameters=True), True),
    "DDP(static_graph=True)": (_ddp(static_graph=True), False),
    "DDP(gradient_as_bucket_view=True)": (_ddp(gradient_as_bucket_view=True), False),
    "fully_shard": (_fsdp, False),
}


def _full(gradient: Any) -> Tensor:
    return gradient.full_tensor() if hasattr(gradient, "full_tensor") else gradient


def _work(rank: int, folder: str) -> None:
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    torch.set_num_threads(1)
    limit = datetime.timedelta(seconds=SECONDS)
    dist.init_process_group("gloo", f"file://{folder}/meet", timeout=limit, rank=rank, world_size=WORLD)
    found: dict[str, Any] = {}
    for name, (wrap, idle) in WRAPPERS.items():
        try:
            gradients: dict[str, Tensor] = {}
            model = wrap(_model(idle))
            for _ in range(2):  # a static graph is learned in the first step and used in the second
                model.zero_grad()
                gradients = _step(model, slice(2 * rank, 2 * rank + 2))
            found[name] = {key.removeprefix("module."): _full(g) for key, g in gradients.items()}
        except Exception:
            found[name] = traceback.format_exc()
    found["normalized"] = _normalized_step(_ddp(), slice(2 * rank, 2 * rank + 2))
    torch.save(found, f"{folder}/rank{rank}.pt")
    dist.destroy_process_group()


@pytest.fixture(scope="module")
def ranks(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    """What each of two processes found, by wrapper; both are started once for all tests."""
    folder = tmp_path_factory.mktemp("processes")
    context = mp.start_processes(_work, (str(folder),), WORLD, join=False, start_method="spawn")
    deadline = time.monotonic() + 2 * SECONDS
    try:
        while not context.join(timeout=1):
            assert time.monotonic() < deadline, f"the processes did not end within {2 * SECONDS} seconds"
    finally:
        for process in context.processes:
            if process.is_alive():
                process.kill()
    return [torch.load(folder / f"rank{rank}.pt", weights_only=True) for rank in range(WORLD)]


@pytest.mark.parametrize("name", WRAPPERS)
def test_two_processes_have_the_gradients_of_the_joint_batch(name: str, ranks: list[dict[str, Any]]) -> None:
    wanted = _step(_model(WRAPPERS[name][1]), slice(None))
    for found in ranks:
        assert isinstance(found[name], dict), found[name]
        torch.testing.assert_close(found[name], wanted, rtol=1e-10, atol=1e-12)


def test_gradients_of_a_normalized_model_are_those_of_one_process(ranks: list[dict[str, Any]]) -> None:
    wanted = _normalized_step(lambda model: model, slice(None))
    for found in ranks:
        torch.testing.assert_close(found["normalized"], wanted, rtol=1e-10, atol=1e-12)
