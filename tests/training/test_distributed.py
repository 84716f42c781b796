"""Training under `torchrun`: two processes give what one gives with the same batches, and write once."""

import copy
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from momentprop import propagate
from momentprop.training import Settings, fit, over_ranks
from momentprop.training.distributed import Ranks

pytestmark = pytest.mark.skipif(
    not dist.is_available() or not dist.is_gloo_available(), reason="torch was built without gloo"
)

FEW = Settings(optimizer="sgd", learning_rate=0.1, dtype="float64", epochs=2, batch_size=4, device="cpu")


def _small() -> tuple[nn.Module, tuple[torch.Tensor, torch.Tensor]]:
    """A model and nine examples: the last batch has one, so that one process has none."""
    generator = torch.Generator().manual_seed(0)
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Dropout(0.2), nn.Linear(4, 2))
    return model, (torch.randn(9, 3, generator=generator), torch.randint(0, 2, (9,), generator=generator))


def _references(model: nn.Module, inputs: torch.Tensor) -> dict[str, torch.Tensor]:
    """What is computed for each input, and drawn for each."""
    drawn = over_ranks(lambda x: propagate(model, x, method="sample", input_variance=0.1, samples=400), inputs)
    exact = over_ranks(lambda x: propagate(model, x, input_variance=0.1, covariance=False), inputs)
    return {"drawn": drawn.loc, "error": drawn.loc_error, "mean": exact.loc, "variance": exact.variance}


def _read(out: Path | None = None) -> dict[str, torch.Tensor]:
    """The weights after a training with a loader, whose last batch has one example."""
    model, examples = _small()
    loader = DataLoader(TensorDataset(*examples), batch_size=4, shuffle=True)
    fit(model, loader, FEW, validation=loader, out=out, progress=False)
    return model.state_dict()


def _work(folder: Path) -> None:
    """What each process of the test does; `torchrun` runs this file."""
    torch.set_num_threads(1)
    model, examples = _small()
    history = fit(model, examples, FEW, out=folder / "small")
    found = {
        "small": copy.deepcopy(model.state_dict()),
        "history": history,
    }
    found["references"] = _references(model.eval().requires_grad_(False), examples[0].double())
    sampling = Settings(**{**FEW.as_dict(), "method": "sample", "evaluate": "sample"})
    found["sampled"] = fit(model.requires_grad_(), examples, sampling, validation=examples, progress=False)[-1][
        "validation_loss"
    ]
    found["read"] = _read(folder / "read")
    torch.save(found, folder / f"rank{dist.get_rank()}.pt")


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """The folder in which two processes have worked, and what they have printed."""
    folder = tmp_path_factory.mktemp("processes")
    launcher = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2", "--standalone"]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo"}
    environment["PYTHONPATH"] = os.pathsep.join([str(Path(__file__).parents[1]), *sys.path])
    done = subprocess.run(
        [*launcher, __file__, str(folder)], env=environment, capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode == 0, done.stderr
    (folder / "printed").write_text(done.stderr)
    return folder


@pytest.fixture(scope="module")
def ranks(folder):
    return [torch.load(folder / f"rank{rank}.pt", weights_only=True) for rank in range(2)]


def test_the_batches_of_a_loader_are_divided(ranks, folder):
    alone = _read()
    for found in ranks:
        torch.testing.assert_close(found["read"], alone, rtol=1e-12, atol=1e-14)
    assert (folder / "read" / "model.safetensors").exists()


def test_a_process_without_an_example_takes_part(ranks):
    model, examples = _small()
    history = fit(model, examples, FEW, progress=False)
    for found in ranks:
        torch.testing.assert_close(found["small"], dict(model.state_dict()), rtol=1e-10, atol=1e-12)
        assert found["history"][-1]["train_loss"] == pytest.approx(history[-1]["train_loss"], rel=1e-9)


def test_only_the_first_process_writes_and_speaks(folder):
    printed = (folder / "printed").read_text()
    assert printed.count("epoch 1 of 2:") == 1
    assert (folder / "small" / "log.csv").read_text().count("\n") == 3


def test_references_split_over_processes_come_back_in_order(ranks):
    model, examples = _small()
    fit(model, examples, FEW, progress=False)
    wanted = propagate(model.eval().requires_grad_(False), examples[0].double(), input_variance=0.1, covariance=False)
    for found in ranks:
        references = found["references"]
        torch.testing.assert_close(references["mean"], wanted.loc, rtol=1e-9, atol=1e-11)
        torch.testing.assert_close(references["variance"], wanted.variance, rtol=1e-9, atol=1e-11)
        assert ((references["drawn"] - wanted.loc).abs() < 5 * references["error"]).all()
    assert torch.equal(ranks[0]["references"]["drawn"], ranks[1]["references"]["drawn"])
    assert ranks[0]["sampled"] == ranks[1]["sampled"]


def test_parts_of_a_batch_cover_it_in_order():
    parts = [Ranks(rank, 3, torch.device("cpu")).shard(torch.arange(7)) for rank in range(3)]
    assert torch.equal(torch.cat(parts), torch.arange(7))
    assert [len(part) for part in parts] == [3, 2, 2]


if __name__ == "__main__":
    _work(Path(sys.argv[1]))
