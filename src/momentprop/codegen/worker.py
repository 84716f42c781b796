"""A background thread that lives as long as the process; a forked child has its own."""

import os
import queue
import threading
from collections.abc import Callable


class Worker:
    """Does one job after another, in a thread that starts with the first."""

    def __init__(self) -> None:
        self.forget()
        if hasattr(os, "register_at_fork"):
            os.register_at_fork(after_in_child=self.forget)

    def forget(self) -> None:
        """Forget all jobs and the thread, which a forked child lacks."""
        self._jobs: queue.Queue[Callable[[], None] | None] = queue.Queue()
        self._lock = threading.Lock()
        self._thread: threading.Thread | None = None
        self._closed = False

    def do(self, job: Callable[[], None]) -> None:
        """Do a job, which must not raise, after the waiting ones."""
        with self._lock:
            if self._thread is None:
                # a daemon: before exiting, the interpreter would wait for all jobs of any other thread
                self._thread = threading.Thread(target=self._work, name="momentprop-kernels", daemon=True)
                self._thread.start()
        self._jobs.put(job)

    def wait(self) -> None:
        """Wait until all jobs are done."""
        self._jobs.join()

    def close(self, seconds: float) -> None:
        """Drop the waiting jobs, and give the current one this many seconds to end."""
        self._closed = True
        self._jobs.put(None)
        if self._thread is not None:
            self._thread.join(seconds)

    def _work(self) -> None:
        jobs = self._jobs
        while (job := jobs.get()) is not None:
            try:
                if not self._closed:
                    job()
            finally:
                jobs.task_done()
