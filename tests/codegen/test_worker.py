"""The thread behind the scenes."""

import threading

from momentprop.codegen.worker import Worker


def test_jobs_are_done_in_their_order():
    worker, done = Worker(), []
    for number in range(5):
        worker.do(lambda number=number: done.append(number))
    worker.wait()
    assert done == [0, 1, 2, 3, 4]


def test_closing_drops_the_jobs_that_wait_and_gives_the_present_one_its_time():
    worker, started, done = Worker(), threading.Event(), []

    def first():
        started.set()
        while not worker._closed:
            pass
        done.append("first")

    worker.do(first)
    worker.do(lambda: done.append("second"))
    started.wait()
    worker.close(5)
    assert done == ["first"]
    assert worker._thread is not None
    assert not worker._thread.is_alive()


def test_a_worker_that_was_forgotten_starts_again():
    """As in a forked child, whose parent's thread is busy."""
    worker, hold, done = Worker(), threading.Event(), []
    worker.do(hold.wait)
    worker.forget()
    worker.do(lambda: done.append("here"))
    worker.wait()
    assert done == ["here"]
    hold.set()
