"""
What it costs to scan many traces: one process against several, how memory and processor time grow, and one question.

The files are hard links to one trace, each of its own name and rank; every scan is a process of its own, ``--jobs 1``
and ``--jobs 2`` in turns. CPU seconds are user plus system time of all its processes; memory is the most that was
resident in one of them. Run from the repository root:

    python benchmarks/scan.py TRACE.json.gz --folder LARGE_FILES --gigabytes 1 5

DuckDB is asked about the rows of ``ROWS`` files, and one large file is scanned too.
"""

from __future__ import annotations

import argparse
import gzip
import statistics
import time
from pathlib import Path
from typing import Any

import msgspec
from tabulate import tabulate
from trace_reading import MIB, Cost, make_elsewhere, run

from layoutdoctor.diagnosis.scan import ScannedRows
from layoutdoctor.fleet.examining import examine_source
from layoutdoctor.fleet.scanning import parquet_file
from layoutdoctor.fleet.sources import find_sources

GIGABYTE = 1_000_000_000
JOBS = 2
ROWS = 10_000
QUESTION = "select rule, rank, sum(seconds) from '{}' where is_counted group by all order by all"


def scan(folder: Path, jobs: int) -> Cost:
    """Runs the command as a user does."""
    return run("-m", "layoutdoctor", "scan", str(folder), "-q", "--jobs", str(jobs), "--format", "json")


def links(trace: Path, folder: Path, count: int) -> Path:
    """A folder with so many names of one file."""
    folder.mkdir(exist_ok=True)
    for rank in range(count):
        path = folder / f"rank{rank}.json"
        if not path.exists():
            path.hardlink_to(trace)
    return folder


def measured(name: str, folder: Path, gigabytes: float, rounds: int) -> list[dict[str, Any]]:
    """Both ways in turns; the result has to be the same to the bit."""
    costs: dict[int, list[Cost]] = {1: [], JOBS: []}
    for _ in range(rounds):
        for number, found in costs.items():
            found.append(scan(folder, number))
    assert len({cost.output for found in costs.values() for cost in found}) == 1, "the results differ"
    speeds = [one.wall_seconds / many.wall_seconds for one, many in zip(costs[1], costs[JOBS], strict=True)]
    return [
        {
            "files": name,
            "jobs": number,
            "wall s": statistics.median(cost.wall_seconds for cost in found),
            "CPU s per GB": statistics.median(cost.cpu_seconds for cost in found) / gigabytes,
            "peak MiB": max(cost.peak_bytes for cost in found) / MIB,
            "speed": 1.0 if number == 1 else statistics.median(speeds),
        }
        for number, found in costs.items()
    ]


def asked(trace: Path, folder: Path) -> dict[str, float]:
    """How long DuckDB takes for one question about the rows of many files."""
    import duckdb

    (source,) = find_sources([trace])
    (found,) = examine_source(source)
    path = folder / "rows.parquet"
    start = time.perf_counter()
    with parquet_file(path) as add:
        for rank in range(ROWS):
            file = msgspec.structs.replace(found.file, name=f"rank{rank}.json", rank=rank)
            add([ScannedRows(file=file, rows=found.rows)])
    written = time.perf_counter() - start
    times = []
    for _ in range(5):
        start = time.perf_counter()
        found_rows = duckdb.sql(QUESTION.format(path))
        answer = [] if found_rows is None else found_rows.fetchall()
        times.append(time.perf_counter() - start)
    expected = ROWS * len({row.rule for row in found.rows if row.is_counted})
    assert len(answer) == expected, f"{len(answer)} rows of the answer, expected {expected}"
    return {
        "files": ROWS,
        "rows": ROWS * len(found.rows),
        "MiB": path.stat().st_size / MIB,
        "written in s": written,
        "asked in s": statistics.median(times),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description="What it costs to scan many traces.")
    parser.add_argument("trace", type=Path, help="a Kineto trace")
    parser.add_argument("--folder", type=Path, required=True, help="where the files are made and kept")
    parser.add_argument("--gigabytes", type=float, nargs="+", default=[1, 5])
    parser.add_argument("--rounds", type=int, default=3)
    arguments = parser.parse_args()
    arguments.folder.mkdir(parents=True, exist_ok=True)
    trace = arguments.folder / "trace.json"
    opened = gzip.open if arguments.trace.suffix == ".gz" else open
    with opened(arguments.trace, "rb") as stream:
        trace.write_bytes(stream.read())
    size = trace.stat().st_size
    rows: list[dict[str, Any]] = []
    for gigabytes in arguments.gigabytes:
        count = max(1, round(gigabytes * GIGABYTE / size))
        folder = links(trace, arguments.folder / f"{count}", count)
        name = f"{count} of {size / 1e6:.0f} MB"
        rows += measured(name, folder, count * size / GIGABYTE, arguments.rounds)
    copies = max(1, round(GIGABYTE / size))
    folder = arguments.folder / "large"
    folder.mkdir(exist_ok=True)
    large = folder / f"rank0-{copies}.json"
    make_elsewhere(arguments.trace, large, copies)
    cost = scan(folder, 1)
    gigabytes = large.stat().st_size / GIGABYTE
    row = {"files": f"1 of {gigabytes:.2f} GB", "jobs": 1, "wall s": cost.wall_seconds}
    rows.append({**row, "CPU s per GB": cost.cpu_seconds / gigabytes, "peak MiB": cost.peak_bytes / MIB})
    question = asked(trace, arguments.folder)
    print(tabulate(rows, headers="keys", floatfmt=".2f"))
    print(tabulate([question], headers="keys", floatfmt=".3f"))


if __name__ == "__main__":
    main()
