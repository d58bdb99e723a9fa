"""
Who examines many files: this process, a pool of processes, a Dask cluster, or any executor of ``concurrent.futures``.

None of it is ours: an executor runs one function on one source after the other, and what comes back is added up here.
On a cluster a worker that is lost is Dask's to replace; in a pool of this machine the files that it had go to the next.

Source:
    ``concurrent.futures`` for executors and broken pools; Dask's documentation for ``Client.get_executor``.
"""

from __future__ import annotations

import contextlib
import multiprocessing
from concurrent.futures import (
    FIRST_COMPLETED,
    BrokenExecutor,
    CancelledError,
    Executor,
    Future,
    ProcessPoolExecutor,
    wait,
)
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

from layoutdoctor._version import __version__
from layoutdoctor.diagnosis.scan import ScannedFile, ScannedRows
from layoutdoctor.errors import UsageError, first_line
from layoutdoctor.fleet.examining import examine_source

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from layoutdoctor.fleet.examining import Work

    Result = tuple[Work, ScannedRows | None]

Value = TypeVar("Value")

_WAITING_PER_WORKER = 4
_WAITING_IN_ALL = 64
_CONNECT_SECONDS = 10


@contextlib.contextmanager
def examined(
    works: Sequence[Work], *, jobs: int = 1, scheduler: str | None = None, executor: Executor | None = None
) -> Iterator[Iterator[Result]]:
    """
    What examines the sources: an executor where one is given, else a Dask cluster, else this machine.

    Args:
        jobs: Processes of this machine; 1 is this one.
        scheduler: Address of Dask's.

    Raises:
        UsageError: The cluster cannot be used.
    """
    if executor is not None:
        yield examine_by_executor(works, executor, _WAITING_IN_ALL)
    elif scheduler is not None:
        with dask_executor(scheduler) as (cluster, threads):
            yield examine_by_executor(works, cluster, max(_WAITING_IN_ALL, _WAITING_PER_WORKER * threads))
    elif min(jobs, len(works)) > 1:
        yield examine_in_processes(works, jobs)
    else:
        yield ((work, examine_source(work)) for work in works)


def examine_in_processes(works: Sequence[Work], jobs: int) -> Iterator[Result]:
    """In a pool of processes of this machine; what runs when one is killed is examined again, each file by itself."""
    make = partial(ProcessPoolExecutor, mp_context=multiprocessing.get_context("spawn"))
    left = {work.source.name: work for work in works}
    alone: list[Work] = []
    while left:
        lost: list[Work] = []
        together = alone[:1] or list(left.values())
        with make(min(jobs, len(together))) as pool:
            for work, found in _results(pool, together, _WAITING_PER_WORKER * jobs, lost):
                del left[work.source.name]
                yield work, found
        for work in lost if alone else ():
            del left[work.source.name]
            yield work, _lost(work, "the process that examined it was killed twice; it may be too large for the memory")
        alone = alone[1:] or ([] if alone else lost)


def examine_by_executor(works: Sequence[Work], executor: Executor, most_waiting: int) -> Iterator[Result]:
    """
    By an executor of the caller's.

    Args:
        most_waiting: How many files to hand out before the first comes back.
    """
    left = {work.source.name: work for work in works}
    for work, found in _results(executor, works, most_waiting, []):
        del left[work.source.name]
        yield work, found
    for work in left.values():
        yield work, _lost(work, "the executor broke before it was examined")


@contextlib.contextmanager
def dask_executor(address: str) -> Iterator[tuple[Executor, int]]:
    """
    The executor of a Dask cluster, and how many threads its workers have.

    Args:
        address: Of the scheduler, such as ``tcp://10.0.0.1:8786``.

    Raises:
        UsageError: Dask is not installed, no scheduler answers, it has no workers, or they have another layoutdoctor.
    """
    try:
        import distributed
    except ImportError as error:
        raise UsageError("cannot use --scheduler: Dask is not installed; pip install 'layoutdoctor[fleet]'") from error
    try:
        client = distributed.Client(address, timeout=_CONNECT_SECONDS, set_as_default=False)
    except (OSError, ValueError, TimeoutError) as error:
        raise UsageError(
            f"cannot reach a Dask scheduler at {address!r}: {first_line(error)}; start one with dask scheduler"
        ) from error
    with client:
        _check_workers(client, address)
        threads = sum(client.nthreads().values())
        with client.get_executor(pure=False) as executor:
            yield executor, threads


def _check_workers(client: Any, address: str) -> None:
    def installed() -> str:  # travels by value: a worker need not have layoutdoctor to say so
        try:
            from layoutdoctor import _version
        except ImportError:
            return "none"
        return _version.__version__

    versions: dict[str, str] = client.run(installed)
    if not versions:
        raise UsageError(
            f"cannot scan on {address!r}: the scheduler has no workers; start some with dask worker {address}"
        )
    other = sorted(set(versions.values()) - {__version__})
    if other:
        count = sum(version != __version__ for version in versions.values())
        raise UsageError(
            f"cannot scan on {address!r}: {count} of {len(versions)} workers have layoutdoctor {', '.join(other)}, "
            f"this is {__version__}; install the same on all of them"
        )


def _results(executor: Executor, works: Sequence[Work], most_waiting: int, lost: list[Work]) -> Iterator[Result]:
    """Each as it ends; those that a broken executor lost are added to ``lost``."""
    left = iter(works)
    running: dict[Future[ScannedRows | None], Work] = {}
    is_broken = False
    try:
        while True:
            while len(running) < most_waiting and not is_broken and (work := next(left, None)) is not None:
                try:
                    running[executor.submit(examine_source, work)] = work
                except BrokenExecutor:
                    is_broken = True
                    lost.append(work)
            if not running:
                return
            ended, _ = wait(running, return_when=FIRST_COMPLETED)
            for future in ended:
                work = running.pop(future)
                try:
                    found = future.result()
                except (BrokenExecutor, CancelledError):
                    is_broken = True
                    lost.append(work)
                except Exception as error:  # what a cluster says of a worker that was lost too often, and the like
                    yield work, _lost(work, f"the worker was lost: {first_line(error)}")
                else:
                    yield work, found
    finally:
        for future in running:
            future.cancel()


def _lost(work: Work, why: str) -> ScannedRows:
    source = work.source
    rank = source.rank if source.rank is not None else source.folder_rank
    return ScannedRows(file=ScannedFile(name=source.name, rank=rank, failure=why))
