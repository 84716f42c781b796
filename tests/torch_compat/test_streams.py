import pytest
import torch

from momentprop.torch_compat import UnknownTorchWarning, guard
from momentprop.torch_compat.streams import stream_of


@pytest.fixture(autouse=True)
def _asked_anew() -> None:
    stream_of.cache_clear()


def test_without_the_private_name_the_public_way_serves(monkeypatch: pytest.MonkeyPatch) -> None:
    class Stream:
        cuda_stream = 17

    monkeypatch.setattr(guard, "_at", lambda path: None)
    monkeypatch.setattr(torch.cuda, "current_stream", lambda device: Stream())
    with pytest.warns(UnknownTorchWarning, match="small operations on a GPU are slower"):
        assert stream_of()(0) == 17
    assert stream_of()(0) == 17  # and warns once
    stream_of.cache_clear()


@pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU")
def test_it_is_the_stream_that_torch_uses() -> None:
    with torch.cuda.stream(torch.cuda.Stream()):
        assert stream_of()(0) == torch.cuda.current_stream(0).cuda_stream
