from types import SimpleNamespace

import pytest
import torch

from momentprop.torch_compat.streams import stream_of


def test_without_the_private_name_the_public_way_serves(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(torch._C, "_cuda_getCurrentRawStream", raising=False)
    monkeypatch.setattr(torch.cuda, "current_stream", lambda device: SimpleNamespace(cuda_stream=17 + device))
    assert stream_of()(1) == 18


@pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU")
def test_it_is_the_stream_that_torch_uses() -> None:
    with torch.cuda.stream(torch.cuda.Stream()):
        assert stream_of()(0) == torch.cuda.current_stream(0).cuda_stream
