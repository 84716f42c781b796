"""The peak memory of a run: all that a GPU holds at once, or on a CPU all that the run itself allocates at once."""

import gc
import itertools

import torch
from torch.profiler import ProfilerActivity, profile
from turns import Run, wait


def peak(run: Run, device: str) -> int:
    """Return the largest number of bytes at once, after a run that warms up."""
    run()
    gc.collect()
    return _on_gpu(run) if device == "cuda" else _on_cpu(run)


def _on_gpu(run: Run) -> int:
    wait()
    torch.cuda.empty_cache()
    torch.cuda.reset_peak_memory_stats()
    run()
    wait()
    return torch.cuda.max_memory_allocated()


def _on_cpu(run: Run) -> int:
    """Add up what torch's allocator notes, in the order of time; what is freed of earlier runs is not below zero."""
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as found:
        run()
    assert found.profiler is not None
    noted = [event for event in found.profiler.kineto_results.events() if event.name() == "[memory]"]
    sizes = (event.nbytes() for event in sorted(noted, key=lambda event: event.start_ns()))
    return max(itertools.accumulate(sizes, initial=0))
