import pytest
import torch

from momentprop.torch_compat import tensors
from tests.torch_compat.gone import loaded_without


def test_a_write_changes_the_count() -> None:
    x = torch.ones(2)
    before = tensors.writes(x)
    assert tensors.writes(x) == before
    x.add_(1)
    assert tensors.writes(x) != before


def test_inference_tensors_have_no_count() -> None:
    with torch.inference_mode():
        assert tensors.writes(torch.ones(2)) == 0


def test_without_a_count_every_look_is_as_after_a_write(monkeypatch: pytest.MonkeyPatch) -> None:
    module = loaded_without("torch.Tensor._version", "tensors", monkeypatch)
    x = torch.ones(2)
    assert module.writes(x) != module.writes(x)
