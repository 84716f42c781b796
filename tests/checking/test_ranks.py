"""Two processes share the inputs of a check, and both get the whole report."""

import datetime
import json
import os
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch import Tensor, nn

from momentprop import check

WORLD = 2
SECONDS = 60

pytestmark = pytest.mark.skipif(
    not dist.is_available() or not dist.is_gloo_available(), reason="torch was built without gloo"
)


class Masked(nn.Module):
    """A network with a second argument that has a row for every input."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(6, 4)

    def forward(self, x: Any, *, mask: Tensor, scale: Tensor) -> Any:
        return self.linear(x * mask) * scale


def _checked() -> Any:
    torch.manual_seed(0)
    model, x = Masked(), torch.randn(5, 6)
    mask = (torch.rand(5, 6) > 0.3).float()
    return check(
        model, x, mask=mask, scale=torch.ones(4), input_variance=torch.full((5, 6), 0.2), samples=2000, show=(1, 4)
    )


def _work(rank: int, folder: str) -> None:
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    torch.set_num_threads(1)
    limit = datetime.timedelta(seconds=SECONDS)
    dist.init_process_group("gloo", f"file://{folder}/meet", timeout=limit, rank=rank, world_size=WORLD)
    Path(folder, f"{rank}.json").write_text(_checked().to_json())
    with pytest.raises(ValueError, match="2 processes cannot share 1 inputs"):
        check(nn.Linear(2, 2), torch.ones(1, 2), input_variance=0.1)
    dist.destroy_process_group()


def test_two_processes_report_what_one_does(tmp_path: Path) -> None:
    mp.start_processes(_work, (str(tmp_path),), WORLD, start_method="spawn")
    one, other = (json.loads((tmp_path / f"{rank}.json").read_text()) for rank in range(WORLD))
    same = ("modules", "posterior", "examples", "inputs", "call")
    assert {key: one[key] for key in same} == {key: other[key] for key in same}
    alone = json.loads(_checked().to_json())
    assert one["modules"]["linear"]["shape"] == alone["modules"]["linear"]["shape"] == [5, 4]
    assert one["modules"]["linear"]["units"] == 20
    assert [example["name"] for example in one["examples"]] == ["input 1", "input 4"]
    for found, wanted in zip(one["examples"], alone["examples"], strict=True):
        assert found["probabilities"]["ap2"] == pytest.approx(wanted["probabilities"]["ap2"], rel=1e-6)
        assert found["probabilities"]["sampled"] == pytest.approx(wanted["probabilities"]["sampled"], abs=0.02)
    joint, of_one = (found["modules"]["output"]["methods"]["joint"] for found in (one, alone))
    assert joint["correlation_error"] == pytest.approx(of_one["correlation_error"], abs=0.01)
    assert joint["correlation_error"] < 0.03
    ap1, ap2 = (one["modules"]["output"]["methods"][name] for name in ("ap1", "ap2"))
    assert ap1["eps_mean"] == pytest.approx(ap2["eps_mean"], rel=1e-4)  # a linear network
    assert ap2["eps_mean"] < 0.035
