"""Launches of Triton's kernels, without Triton: what its compiled kernels get."""

from typing import Any

import pytest

from momentprop.codegen import triton_launch


class _Run:
    global_scratch_size = profile_scratch_size = 0
    launch_cooperative_grid, launch_pdl = False, True

    def __init__(self, launched: list[Any]) -> None:
        self.launched = launched

    def launch(self, *given: Any) -> None:
        self.launched.append(given)


class _Kernel:
    """A kernel as Triton compiles it: `kernel[grid](...)` is its own launch."""

    function, packed_metadata = "function", (4, 1, 0)

    def __init__(self, launched: list[Any]) -> None:
        self.run = _Run(launched)

    def __getitem__(self, grid: Any) -> Any:
        return lambda *given: self.run.launched.append((grid, given))


@pytest.fixture
def launched(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    monkeypatch.setattr(triton_launch, "stream_of", lambda: lambda device: f"stream of {device}")
    return []


def _of_version(version: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(triton_launch.metadata, "version", lambda name: version)


def test_a_launcher_that_we_know_gets_all_that_triton_gives_it(
    launched: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    _of_version("3.6.0", monkeypatch)
    launch = triton_launch.direct(_Kernel(launched), 1)
    assert launch is not None
    launch(7, 100, 200, 5)
    rest = (False, True, None, None, (4, 1, 0), None, None, None)
    assert launched == [(7, 1, 1, "stream of 1", "function", *rest, 100, 200, 5)]


@pytest.mark.parametrize("needs", ["version", "memory"])
def test_otherwise_triton_launches(needs: str, launched: list[Any], monkeypatch: pytest.MonkeyPatch) -> None:
    _of_version("3.9.1" if needs == "version" else "3.6.0", monkeypatch)
    kernel = _Kernel(launched)
    if needs == "memory":
        kernel.run.global_scratch_size = 8
    launch = triton_launch.direct(kernel, 0)
    assert launch is not None
    launch(7, 100, 200, 5)
    assert launched == [((7, 1, 1), (100, 200, 5))]


def test_what_is_no_compiled_kernel_is_not_launched_again() -> None:
    assert triton_launch.direct(None, 0) is None
