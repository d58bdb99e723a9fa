"""
Examines many files in this process, a pool of processes, a Dask cluster, or any executor of ``concurrent.futures``.

Dask replaces a lost worker itself. If a process of a local pool is killed, the files that were under way are examined
again, one after the other.

Source:
    ``concurrent.futures`` for executors and broken pools; Dask's documentation for ``Client.get_executor``.
"""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import re
import shutil
import signal
import tempfile
import threading
from collections.abc import Generator, Iterator, Sequence
from concurrent.futures import (
    FIRST_COMPLETED,
    BrokenExecutor,
    CancelledError,
    Executor,
    Future,
    ProcessPoolExecutor,
    wait,
)
from pathlib import Path
from typing import TYPE_CHECKING, Any

from layoutdoctor._version import __version__
from layoutdoctor.errors import UsageError, first_line
from layoutdoctor.files.scratch import private_directory
from layoutdoctor.fleet.examining import examine_source, failed
from layoutdoctor.fleet.sources import Source

if TYPE_CHECKING:
    from layoutdoctor.diagnosis.scan import ScannedRows

    Result = tuple[Source, list[ScannedRows]]
    _Left = tuple[list[Source], list[Source]]

_WAITING_IN_ALL = 64
_WAITING_PER_WORKER = 4
_CONNECT_SECONDS = 10
_LOOK_SECONDS = 0.2
_KILLED = "the process that examined this file was killed twice; the file may be too large for the memory"
_BROKEN = "the executor broke before this file was examined"


@contextlib.contextmanager
def examined(
    sources: Sequence[Source], *, jobs: int, scheduler: str | None, executor: Executor | None
) -> Iterator[Iterator[Result]]:
    """
    A block with an iterator over the results of all sources, which yields each result when it is ready.

    The sources are examined by ``executor``, else on the cluster of ``scheduler``, else on this machine.

    Args:
        jobs: Number of processes on this machine; 1 means this process alone.
        scheduler: Address of a Dask scheduler.

    Raises:
        UsageError: The cluster cannot be used.
    """
    if executor is not None:
        yield _by_executor(executor, sources, _WAITING_IN_ALL)
    elif scheduler is not None:
        with _dask_executor(scheduler) as (cluster, threads):
            yield _by_executor(cluster, sources, max(_WAITING_IN_ALL, _WAITING_PER_WORKER * threads))
    elif min(jobs, len(sources)) > 1:
        yield _in_processes(sources, jobs)
    else:
        yield ((source, examine_source(source)) for source in sources)


def _in_processes(sources: Sequence[Source], jobs: int) -> Iterator[Result]:
    with private_directory() as folder:

        def pool_of(jobs: int) -> Executor:
            return ProcessPoolExecutor(jobs, multiprocessing.get_context("spawn"), _begin, (folder,))

        def results(pool: Executor, sources: Sequence[Source], most: int) -> Generator[Result, None, _Left]:
            try:
                return (yield from _results(pool, sources, most, cancels=False))
            except BaseException:
                shutil.rmtree(folder, ignore_errors=True)  # the pool's processes end when the folder is gone
                raise

        left = list(sources)
        while left:
            with pool_of(min(jobs, len(left))) as pool:
                lost, left = yield from results(pool, left, 2 * jobs)
            for source in lost:
                with pool_of(1) as pool:
                    lost_again, _ = yield from results(pool, [source], 1)
                if lost_again:
                    yield source, [failed(source.name, _KILLED)]


def _begin(folder: str) -> None:
    """Makes a pool's process use ``folder`` for temporary files, and end when the scan or ``folder`` is gone."""
    tempfile.tempdir = folder
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the scan gets the signal, too, and ends this process
    parent = multiprocessing.parent_process()

    def watch() -> None:
        while parent is not None and parent.is_alive() and Path(folder).is_dir():
            parent.join(_LOOK_SECONDS)
        shutil.rmtree(folder, ignore_errors=True)
        os._exit(1)

    threading.Thread(target=watch, daemon=True).start()


def _by_executor(executor: Executor, sources: Sequence[Source], most_waiting: int) -> Iterator[Result]:
    lost, left = yield from _results(executor, sources, most_waiting)
    for source in (*lost, *left):
        yield source, [failed(source.name, _BROKEN)]


def _results(
    executor: Executor, sources: Sequence[Source], most_waiting: int, *, cancels: bool = True
) -> Generator[Result, None, _Left]:
    """
    Yields each result when it is ready.

    Args:
        cancels: Whether an interruption cancels the sources that wait. False for a local pool: its processes end at an
            interruption, and cancelling would fail then.

    Returns:
        The sources that were lost because the executor broke, and the sources that were not yet submitted.
    """
    left, lost = list(reversed(sources)), list[Source]()
    running: dict[Future[list[ScannedRows]], Source] = {}
    try:
        while (left and not lost) or running:
            with contextlib.suppress(BrokenExecutor):
                while left and not lost and len(running) < most_waiting:
                    future = executor.submit(examine_source, left[-1])
                    running[future] = left.pop()
            if not running:
                break
            ended, _ = wait(running, return_when=FIRST_COMPLETED)
            for future in ended:
                source = running.pop(future)
                try:
                    found = future.result()
                except (BrokenExecutor, CancelledError):
                    lost.append(source)
                except Exception as error:  # such as a cluster's error for a worker that was lost too often
                    yield source, [failed(source.name, f"the worker was lost: {first_line(error)}")]
                else:
                    yield source, found
    finally:
        for future in running if cancels else ():
            future.cancel()
    return lost, left[::-1]


@contextlib.contextmanager
def _dask_executor(address: str) -> Iterator[tuple[Executor, int]]:
    """
    A block with the executor of a Dask cluster, and the number of threads of its workers.

    Args:
        address: Address of the scheduler, such as ``tcp://10.0.0.1:8786``.

    Raises:
        UsageError: Dask is not installed, no scheduler answers, the scheduler has no workers, or the workers have
            another version of layoutdoctor.
    """
    try:
        import distributed
    except ImportError as error:
        raise UsageError(
            "cannot scan on a Dask scheduler: Dask is not installed; pip install 'layoutdoctor[fleet]'"
        ) from error
    shown = _without_user(address)
    try:
        distributed.comm.resolve_address(address)  # a Client() with an invalid address would be left behind
        client = distributed.Client(address, timeout=_CONNECT_SECONDS, set_as_default=False)
    except (OSError, ValueError, TimeoutError) as error:
        raise UsageError(
            f"cannot reach a Dask scheduler at {shown!r}: {_without_user(first_line(error))}; start one with "
            "dask scheduler"
        ) from error
    with client:
        _check_workers(client, shown)
        with client.get_executor(pure=False) as executor:
            yield executor, sum(client.nthreads().values())


def _without_user(text: str) -> str:
    return re.sub(r"[^/\s'\"]*@", "", text)


def _check_workers(client: Any, address: str) -> None:
    workers = client.get_versions(packages=["layoutdoctor"])["workers"].values()
    versions = [str(worker["packages"]["layoutdoctor"]) for worker in workers]  # "None" if it is not installed
    if not versions:
        raise UsageError(
            f"cannot scan on {address!r}: the scheduler has no workers; start some with dask worker {address}"
        )
    other = [version for version in versions if version != __version__]
    if other:
        raise UsageError(
            f"cannot scan on {address!r}: {len(other)} of {len(versions)} workers have layoutdoctor "
            f"{', '.join(sorted(set(other)))}, this is {__version__}; install the same version on all of them"
        )
