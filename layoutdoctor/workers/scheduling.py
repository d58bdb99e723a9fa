"""Which workers compile beside each other, and when those that compile are stopped so that others can be timed."""

from __future__ import annotations

import contextlib
import os
import selectors
import time
from typing import TYPE_CHECKING

from layoutdoctor.diagnosis.configurations import BASELINE
from layoutdoctor.workers.processes import stop_all

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from layoutdoctor.workers.worker import Worker

_FIRST = (BASELINE, "inductor-channels-last-freezing", "inductor-channels-last", "eager")
"""Compiled first, so that the first table has the configurations that matter most."""


def compile_side_by_side(
    workers: Sequence[Worker],
    earlier: Sequence[Worker],
    on_done: Callable[[Worker, Sequence[Worker]], object],
    *,
    most: int | None = None,
) -> None:
    """
    Compiles configurations, as many at once as there are cores and one more.

    Args:
        earlier: Workers that have compiled before, which one of these may turn out to be the same as.
        on_done: Called with each that has compiled, failed or is the same as another one, and those still compiling.
        most: At most so many at once.
    """
    most = most or (os.cpu_count() or 1) + 1
    waiting = sorted(workers, key=lambda worker: _FIRST.index(worker.name) if worker.name in _FIRST else len(_FIRST))
    running: list[Worker] = []
    begun = [*earlier]
    while waiting or running:
        while waiting and len(running) < most:
            worker = waiting.pop(0)
            worker.begin()
            if worker.process is None:
                on_done(worker, running)
                continue
            running.append(worker)
            begun.append(worker)
        for worker in _that_say_something(running):
            if worker not in running or not worker.hear(begun):
                continue
            running.remove(worker)
            on_done(worker, running)
        for worker in [one for one in running if one.process is None]:  # the same as one begun before
            running.remove(worker)
            on_done(worker, running)


def _that_say_something(running: Sequence[Worker]) -> list[Worker]:
    """Those whose message has come, or whose time is over."""
    with selectors.DefaultSelector() as selector:
        for worker in running:
            assert worker.process is not None
            selector.register(worker.process.channel.fileno(), selectors.EVENT_READ, worker)
        limits = [left for worker in running if (left := worker.seconds_left) is not None]
        ready = [key.data for key, _ in selector.select(min(limits, default=None))]
    overdue = [worker for worker in running if worker not in ready and (worker.seconds_left or 1.0) <= 1e-3]
    return [*ready, *overdue] if running else []


@contextlib.contextmanager
def stopped(running: Sequence[Worker]) -> Iterator[None]:
    """A block in which workers that compile are stopped, so that nothing disturbs what is timed."""
    pids = [worker.process.pid for worker in running if worker.process is not None]
    stop_all(pids)
    begin = time.monotonic()
    try:
        yield
    finally:
        stop_all(pids, goes_on=True)
        for worker in running:
            worker.postpone(time.monotonic() - begin)
