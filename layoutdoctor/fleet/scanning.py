"""``scan``: many recorded runs, each examined once, and what they add up to."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path
from typing import TYPE_CHECKING

from layoutdoctor.diagnosis.saved import DEFAULT_MOST_BYTES
from layoutdoctor.diagnosis.scan import ScanSum
from layoutdoctor.errors import UsageError
from layoutdoctor.fleet.engines import examined
from layoutdoctor.fleet.examining import Work
from layoutdoctor.fleet.journal import Journal
from layoutdoctor.fleet.sources import find_sources

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from concurrent.futures import Executor

    from layoutdoctor.diagnosis.scan import Scan, ScannedRows
    from layoutdoctor.fleet.sources import Source

_BYTES_WORTH_A_POOL = 20 << 20


def scan(
    *paths: str | os.PathLike[str],
    pattern: str | None = None,
    rank_regex: str | None = None,
    max_bytes: int = DEFAULT_MOST_BYTES,
    jobs: int | None = 1,
    scheduler: str | None = None,
    executor: Executor | None = None,
    resume: str | os.PathLike[str] | None = None,
    listener: Callable[[ScannedRows, int], None] | None = None,
) -> Scan:
    """
    Examines many recorded runs and adds up what they lost to layouts.

    Any order and any engine give the same result to the bit.

    Args:
        paths: Files, folders, archives, patterns, and any URL of fsspec.
        pattern: Of the names to take in folders and archives; by default ``*.json``, ``*.json.gz`` and ``*.sqlite``.
        rank_regex: Finds the rank in a file's name below the common folder, as its first group. Without it the name
            says the rank, else the trace itself, else the folder.
        max_bytes: How many bytes of a file to read at the most, after unpacking.
        jobs: Processes of this machine; None for one for each processor, where the files are large enough to pay for
            their start. A script that asks for more than one must guard its entry with ``if __name__ == "__main__":``.
        scheduler: Address of a Dask scheduler whose workers examine in place of this machine; they open the paths.
        executor: Any other that runs functions elsewhere.
        resume: A folder that keeps each file's result as it ends; a file whose content is the same as when this version
            examined it is not examined again.
        listener: Gets what was found in each file as it ends, and how many there are in all.

    Raises:
        UsageError: There is nothing to scan, or the cluster or the folder cannot be used. A file that cannot be
            examined raises nothing: it is in ``failed``, with the reason.
        OSError: A result could not be kept.
    """
    if jobs is not None and jobs < 1:
        raise UsageError(f"cannot scan with {jobs} processes: expected 1 or more")
    sources = find_sources(paths, pattern=pattern, rank_regex=rank_regex)
    if jobs is None:
        jobs = len(os.sched_getaffinity(0)) if _known_bytes(sources) > _BYTES_WORTH_A_POOL else 1
    total = ScanSum()
    with contextlib.ExitStack() as stack:
        journal = None if resume is None else stack.enter_context(contextlib.closing(Journal(Path(resume))))
        works = [
            Work(
                source=source,
                max_bytes=max_bytes,
                digest=journal.digest_of(source.name) if journal is not None else None,
                is_resumable=journal is not None,
            )
            for source in sources
        ]
        results = stack.enter_context(examined(works, jobs=jobs, scheduler=scheduler, executor=executor))
        for work, new in results:
            found = new
            if found is None:
                assert journal is not None
                found = journal.result_of(work.source.name)
            elif journal is not None:
                journal.add(found)
            total.add(found)
            if listener is not None:
                listener(found, len(works))
    return total.result()


def _known_bytes(sources: Sequence[Source]) -> float:
    """What is to be read, as it lies there; a URL counts as endless."""
    total = 0.0
    for path in {source.path for source in sources}:
        if "://" in path:
            return float("inf")
        with contextlib.suppress(OSError):
            total += Path(path).stat().st_size
    return total
