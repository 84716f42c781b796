"""The peak memory of a run: the most that a GPU holds, or on a CPU the most that the run itself allocates."""

import gc
import itertools

import torch
from torch.profiler import ProfilerActivity, profile
from turns import Run, wait


def peak(run: Run, device: str) -> int:
    """Return the peak number of bytes, after a run that warms up."""
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
    """Add up what torch's allocator notes, in order; memory freed from earlier runs does not count below zero."""
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as found:
        run()
    assert found.profiler is not None
    noted = [event for event in found.profiler.kineto_results.events() if event.name() == "[memory]"]
    sizes = (event.nbytes() for event in sorted(noted, key=lambda event: event.start_ns()))
    return max(itertools.accumulate(sizes, initial=0))
