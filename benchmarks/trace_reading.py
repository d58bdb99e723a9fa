"""
What it costs to read a recorded trace: layoutdoctor's whole examination beside ``json.load`` of the same file.

Every reading has a process of its own, in turns, on the trace that is given and on larger ones made from it by
repetition. CPU seconds are user plus system time of that process, its imports included; a row for the imports alone is
beside it. Memory is the most that was resident. Run from the repository root:

    python benchmarks/trace_reading.py TRACE.json.gz --copies 1 16 --folder LARGE_FILES
"""

from __future__ import annotations

import argparse
import compileall
import gzip
import json
import math
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from tabulate import tabulate

if TYPE_CHECKING:
    from collections.abc import Iterator

ROOT = Path(__file__).resolve().parent.parent
MIB = 2**20
# As text: from bytes, json.load would hold the file twice. Nothing is done with the events but to count them.
READERS = {
    "json.load": (
        "import gzip, json, sys",
        """
with (gzip.open if sys.argv[1].endswith(".gz") else open)(sys.argv[1], "rt", encoding="utf-8") as stream:
    trace = json.load(stream)
print(len(trace if isinstance(trace, list) else trace["traceEvents"]), "events")
""",
    ),
    # The name is asked for, because the package imports what it offers when that is asked for.
    "layoutdoctor": (
        "import sys, layoutdoctor\nlayoutdoctor.examine_trace",
        """
kernels = layoutdoctor.examine_trace(sys.argv[1]).trials[0].kernels
print(kernels.count, "kernels,", kernels.conversion_count, "conversions")
""",
    ),
}
"""What each imports, and how it reads a file."""

# Large files, made from a small one.

ZERO_IS_AN_ID = frozenset({"Ev Idx", "Python id", "Python parent id", "Sequence number"})
"""Of the others Kineto writes 0 for none."""
ID_KEYS = ZERO_IS_AN_ID | frozenset(
    {"External id", "external id", "correlation", "Record function id", "wait_on_cuda_event_record_corr_id"}
)
"""The arguments that name an event; a flow's ``id`` is not among the arguments."""
STEP = "ProfilerStep#"


def opened(path: Path) -> Any:
    return gzip.open(path, "rt", encoding="utf-8") if path.suffix == ".gz" else path.open(encoding="utf-8")


def ids_of(event: dict[str, Any]) -> Iterator[tuple[dict[str, Any], str, int]]:
    """Each recorded id of an event: where it stands, its key, and the number; some are written as strings."""
    for holder, keys in ((event, ("id",)), (event.get("args") or {}, ID_KEYS)):
        for key in keys:
            if str(holder.get(key)).isdigit() and (int(holder[key]) or key in ZERO_IS_AN_ID):
                yield holder, key, int(holder[key])


def make(source: Path, target: Path, copies: int) -> None:
    """
    Writes a trace several times into one file, one copy behind the other, with ids of its own in each.

    Args:
        source: The trace, also gzip.
        target: The file; it appears when it is complete.
    """
    with opened(source) as stream:
        trace = json.load(stream)
    events = trace if isinstance(trace, list) else trace.pop("traceEvents")
    timed = [event for event in events if event.get("ts", 0) > 0 and event.get("ph") != "M"]
    first = min(event["ts"] for event in timed)
    span = math.ceil(max(event["ts"] + event.get("dur", 0) for event in timed) - first) + 1
    distance = 1 + max((number for event in events for *_, number in ids_of(event)), default=0)
    steps = {event["name"] for event in events if str(event.get("name")).startswith(STEP)}
    partial = target.with_name(target.name + ".partial")
    with partial.open("w", encoding="utf-8") as stream:
        stream.write("[" if isinstance(trace, list) else json.dumps(trace)[:-1] + ', "traceEvents": [')
        for copy in range(copies):
            for event in events:
                stream.write(("" if event is events[0] and not copy else ",") + "\n" + json.dumps(event))
                if (name := str(event.get("name"))).startswith(STEP):
                    event["name"] = f"{STEP}{int(name.removeprefix(STEP)) + len(steps)}"
                if "ts" in event:
                    event["ts"] = round(event["ts"] + span, 3)
                for holder, key, number in ids_of(event):
                    holder[key] = type(holder[key])(number + distance)
        stream.write("]" if isinstance(trace, list) else "]}")
    partial.replace(target)


def make_elsewhere(source: Path, target: Path, copies: int) -> None:
    """
    Makes a large file in a process of its own, unless it is there.

    A process begins with the memory of the one that starts it, and that is measured here.
    """
    if not target.exists():
        code = "import sys, pathlib, trace_reading as it; it.make(*map(pathlib.Path, sys.argv[1:3]), int(sys.argv[3]))"
        words = [str(source.absolute()), str(target.absolute()), str(copies)]
        subprocess.run([sys.executable, "-c", code, *words], cwd=ROOT / "benchmarks", check=True)


# The measuring.


class Cost(NamedTuple):
    """One process with all of its children; memory is the most that was resident in one of them."""

    wall_seconds: float
    cpu_seconds: float
    peak_bytes: int
    output: bytes


def run(*words: str) -> Cost:
    """
    Runs Python with these words in a process of its own and takes its costs from the kernel.

    Raises:
        RuntimeError: It failed.
    """
    with tempfile.TemporaryFile() as output:
        start = time.perf_counter()
        process = subprocess.Popen([sys.executable, *words], stdout=output, env={**os.environ, "PYTHONPATH": str(ROOT)})
        _, status, usage = os.wait4(process.pid, 0)
        wall = time.perf_counter() - start
        process.returncode = os.waitstatus_to_exitcode(status)  # so that Popen does not wait for it again
        if process.returncode:
            raise RuntimeError(f"{' '.join(words)} ended with {process.returncode}")
        output.seek(0)
        return Cost(wall, usage.ru_utime + usage.ru_stime, usage.ru_maxrss * 1024, output.read())


def measured(name: str, codes: dict[str, str], path: str, repeats: int) -> list[dict[str, Any]]:
    """Runs every reader ``repeats`` times on one file, in turns, each time beginning with another one; the medians."""
    costs: dict[str, list[Cost]] = {reader: [] for reader in codes}
    for turn in range(repeats):
        for reader in list(codes)[:: -1 if turn % 2 else 1]:
            costs[reader].append(run("-c", codes[reader], path))
    base = statistics.median(cost.cpu_seconds for cost in costs["json.load"])
    return [
        {
            "read": name,
            "by": reader,
            "CPU s": (seconds := statistics.median(cost.cpu_seconds for cost in found)),
            "wall s": statistics.median(cost.wall_seconds for cost in found),
            "peak MiB": max(cost.peak_bytes for cost in found) / MIB,
            "CPU / json.load": seconds / base,
            "found": found[-1].output.decode().strip(),
        }
        for reader, found in costs.items()
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("trace", type=Path, help="a Kineto trace, .json or .json.gz")
    parser.add_argument("--copies", type=int, nargs="+", default=[], help="repetitions of the trace, such as 1 4 16")
    parser.add_argument("--folder", type=Path, help="where large files are made and kept; default: not kept")
    parser.add_argument("--repeats", type=int, default=3, help="the median counts")
    options = parser.parse_args()
    compileall.compile_dir(ROOT / "layoutdoctor", quiet=1)  # as pip does with what it installs
    rows = measured("imports only", {name: imports for name, (imports, _) in READERS.items()}, "", options.repeats)
    codes = {name: imports + read for name, (imports, read) in READERS.items()}
    with tempfile.TemporaryDirectory() as scratch:
        folder = options.folder or Path(scratch)
        folder.mkdir(parents=True, exist_ok=True)
        rows += measured(options.trace.name, codes, str(options.trace), options.repeats)
        for count in options.copies:
            target = folder / f"{options.trace.name.partition('.')[0]}_x{count}.json"
            make_elsewhere(options.trace, target, count)
            name = f"{target.name} ({target.stat().st_size / 1e6:.0f} MB)"
            rows += measured(name, codes, str(target), options.repeats)
    print(tabulate(rows, headers="keys", floatfmt=".2f"))


if __name__ == "__main__":
    main()
