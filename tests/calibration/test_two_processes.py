"""Two processes share the inputs of a calibration, and both get the same one."""

import datetime
import os
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch import nn

from momentprop import Calibration, calibrate, propagate

WORLD = 2
SECONDS = 60

pytestmark = pytest.mark.skipif(
    not dist.is_available() or not dist.is_gloo_available(), reason="torch was built without gloo"
)


def _model() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(6, 12), nn.ReLU(), nn.Linear(12, 12), nn.ReLU(), nn.Linear(12, 3)).eval()


def _calibrated() -> Calibration:
    x = torch.randn(201, 6, generator=torch.Generator().manual_seed(1))
    return calibrate(_model(), [x[:101], x[101:]], input_variance=0.2, samples=1500)


def _work(rank: int, folder: str) -> None:
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    torch.set_num_threads(1)
    limit = datetime.timedelta(seconds=SECONDS)
    dist.init_process_group("gloo", f"file://{folder}/meet", timeout=limit, rank=rank, world_size=WORLD)
    _calibrated().save(Path(folder, f"{rank}.safetensors"))
    with pytest.raises(ValueError, match="2 processes cannot share 1 inputs"):
        calibrate(nn.Linear(2, 2), torch.ones(1, 2), input_variance=0.1)
    dist.destroy_process_group()


def test_two_processes_calibrate_as_one_does(tmp_path: Path) -> None:
    mp.start_processes(_work, (str(tmp_path),), WORLD, start_method="spawn")
    one, other = (Calibration.load(tmp_path / f"{rank}.safetensors") for rank in range(WORLD))
    assert torch.equal(one.numbers, other.numbers)
    assert one.to_dict() == other.to_dict()
    alone = _calibrated()
    assert one.about["inputs"] == alone.about["inputs"] == 201
    assert one.noise == alone.noise
    x = torch.randn(40, 6)
    found, wanted, plain = (
        propagate(_model(), x, input_variance=0.2, calibration=each, covariance=False).variance.log()
        for each in (one, alone, None)
    )
    assert (found - wanted).abs().mean() < 0.3 * (plain - wanted).abs().mean()
