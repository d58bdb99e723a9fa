"""``scan``: many recorded runs, each examined once, and what they add up to."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from layoutdoctor.diagnosis.saved import DEFAULT_MOST_BYTES
from layoutdoctor.diagnosis.scan import ScanSum
from layoutdoctor.errors import UsageError
from layoutdoctor.fleet.engines import examined
from layoutdoctor.fleet.outputs import lines_file, read_lines
from layoutdoctor.fleet.sources import find_sources, fingerprint_of, rank_reader

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from concurrent.futures import Executor

    from layoutdoctor.diagnosis.scan import Scan, ScannedRows
    from layoutdoctor.fleet.outputs import Add
    from layoutdoctor.fleet.sources import Source

_BYTES_WORTH_A_POOL = 20 << 20
RESULTS = "files.jsonl"
"""In the folder of ``resume``: the same lines as of an output that ends in .jsonl."""


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
        jobs: Processes of this machine; None for one for each processor, if the files are large enough to pay for
            their start. A script that asks for more than one must guard its entry with ``if __name__ == "__main__":``.
        scheduler: Address of a Dask scheduler whose workers examine in place of this machine; they open the paths.
        executor: Any other that runs functions elsewhere.
        resume: A folder that keeps each file's result as it ends; a file that this version examined and that did not
            change since is not examined again.
        listener: Gets what was found in each file as it ends, and how many there are in all, as far as is known: the
            traces in an archive are counted when it is opened.

    Raises:
        UsageError: There is nothing to scan, or the cluster or the folder cannot be used. A file that cannot be
            examined raises nothing: it is in ``failed``, with the reason.
        OSError: A result could not be kept.
    """
    if jobs is not None and jobs < 1:
        raise UsageError(f"cannot scan with {jobs} processes: expected 1 or more")
    rank_of = rank_reader(rank_regex)
    sources = find_sources(paths, pattern=pattern, max_bytes=max_bytes)
    if jobs is None:
        jobs = len(os.sched_getaffinity(0)) if _known_bytes(sources) > _BYTES_WORTH_A_POOL else 1
    kept, keep, fingerprints = _resumed(resume, sources)
    total, file_count = ScanSum(), len(sources)

    def take(rows: Sequence[ScannedRows]) -> None:
        nonlocal file_count
        file_count += len(rows) - 1
        for found in rows:
            file = msgspec.structs.replace(found.file, rank=rank_of(found.file.name, found.file.rank))
            ranked = msgspec.structs.replace(found, file=file)
            total.add(ranked)
            if listener is not None:
                listener(ranked, file_count)

    for rows in kept.values():
        take(rows)
    left = [source for source in sources if fingerprints.get(source.name) not in kept]
    with examined(left, jobs=jobs, scheduler=scheduler, executor=executor) as results:
        for source, found in results:
            if keep is not None:
                known = fingerprints.get(source.name)
                keep([msgspec.structs.replace(rows, fingerprint=known) for rows in found])
            take(found)
    return total.result()


def _resumed(
    resume: str | os.PathLike[str] | None, sources: Sequence[Source]
) -> tuple[dict[str, list[ScannedRows]], Add | None, dict[str, str]]:
    """The results that are there already, what keeps further ones, and the fingerprints by the sources' names."""
    if resume is None:
        return {}, None, {}
    folder = Path(resume)
    fingerprints = {source.name: fingerprint_of(source) for source in sources}
    known = {name: f"{name} {facts}" for name, facts in fingerprints.items() if facts is not None}
    try:
        folder.mkdir(parents=True, exist_ok=True)
        kept = read_lines(folder / RESULTS)
        keep = lines_file(folder / RESULTS, is_continued=True)
        keep([])
    except OSError as error:
        raise UsageError(f"cannot resume from {str(folder)!r}: {error.strerror or error}") from error
    return {fingerprint: kept[fingerprint] for fingerprint in known.values() if fingerprint in kept}, keep, known


def _known_bytes(sources: Sequence[Source]) -> float:
    """How many bytes are to be read, packed as they are; a URL counts as endless."""
    total = 0.0
    for path in {source.path for source in sources}:
        if "://" in path:
            return float("inf")
        with contextlib.suppress(OSError):
            total += Path(path).stat().st_size
    return total
