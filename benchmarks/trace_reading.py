"""
What it costs to read a recorded trace: layoutdoctor's whole examination beside the readers that people have.

Every reader runs in a process of its own, in turns, on the trace that is given and on larger ones made from it by
repetition. CPU seconds are user plus system time of that process, its imports included; a row for the imports alone is
beside it. Memory is the most that was resident. Run from the repository root:

    python benchmarks/trace_reading.py TRACE.json.gz --peers-python PEERS/bin/python --folder LARGE_FILES

The other tools live in an environment of their own, made by hand:

    python3 -m venv PEERS
    PEERS/bin/pip install HolisticTraceAnalysis
    PEERS/bin/pip install git+https://github.com/AMD-AGI/TraceLens.git

TraceLens is not on PyPI: what is called ``tracelens`` there is another project. A tool that is not installed gets a row
that says so.
"""

from __future__ import annotations

import argparse
import compileall
import datetime
import gzip
import json
import math
import os
import platform
import signal
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from tabulate import tabulate

if TYPE_CHECKING:
    from collections.abc import Iterator

ROOT = Path(__file__).resolve().parent.parent
MIB = 2**20
LONGEST_SECONDS = 3600
LARGE_BYTES = 100_000_000
"""A file of at least this size is read once."""
WANTED_BYTES = 1_000_000_000
"""Without ``--copies`` the trace is repeated until about this size."""


class Reader(NamedTuple):
    """
    One way to read a trace.

    Attributes:
        name: Its row.
        is_peer: Runs in the other environment.
        version: Expression for its version.
        imports: What it imports; run alone for the row of the imports.
        read: Reads ``sys.argv[1]`` and leaves in ``found`` what it found, to show that it read.
    """

    name: str
    is_peer: bool
    version: str
    imports: str
    read: str


BASE, PEER = "json.load", "HolisticTraceAnalysis"
READERS = (
    Reader(
        # As text: from bytes, json.load would hold the file twice. Nothing is done with the events but to count them.
        name=BASE,
        is_peer=False,
        version="'Python ' + sys.version.split()[0]",
        imports="import gzip, json, sys",
        read="""
with (gzip.open if sys.argv[1].endswith(".gz") else open)(sys.argv[1], "rt", encoding="utf-8") as stream:
    trace = json.load(stream)
found = {"events": len(trace if isinstance(trace, list) else trace["traceEvents"])}
""",
    ),
    Reader(
        # All of its steps, as everybody else reads them; by default it leaves the last one out.
        name=PEER,
        is_peer=True,
        version="__import__('importlib.metadata').metadata.version('HolisticTraceAnalysis')",
        imports="import json, os, sys\nfrom hta.trace_analysis import TraceAnalysis",
        read="""
files = {0: sys.argv[1]}
analysis = TraceAnalysis(trace_files=files, trace_dir=os.path.dirname(sys.argv[1]), include_last_profiler_step=True)
types, kernels = analysis.get_gpu_kernel_breakdown(visualize=False)
found = {"events": len(analysis.t.get_trace(0)), "kernel types": len(types), "kernel rows": len(kernels)}
""",
    ),
    Reader(
        name="TraceLens",
        is_peer=True,
        version="__import__('importlib.metadata').metadata.version('TraceLens')",
        imports="import json, sys\nfrom TraceLens import TreePerfAnalyzer",
        read="""
analyzer = TreePerfAnalyzer.from_file(sys.argv[1])
timeline, launchers = analyzer.get_df_gpu_timeline(), analyzer.get_df_kernel_launchers()
found = {"timeline rows": len(timeline), "launchers": len(launchers)}
""",
    ),
    Reader(
        name="layoutdoctor",
        is_peer=False,
        version="layoutdoctor.__version__",
        # The name is asked for, because the package imports what it offers when that is asked for.
        imports="import json, sys\nimport layoutdoctor\nlayoutdoctor.examine_trace",
        read="""
diagnosis = layoutdoctor.examine_trace(sys.argv[1])
summaries = [trial.kernels for trial in diagnosis.trials if trial.kernels is not None]
found = {"kernels": sum(summary.count for summary in summaries), "findings": len(diagnosis.findings)}
found["conversions"] = sum(summary.conversion_count for summary in summaries)
""",
    ),
)


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


# The measuring.


class Run(NamedTuple):
    """
    One process.

    Attributes:
        cpu_seconds: User plus system time, of its children too.
        wall_seconds: From start to end.
        peak_bytes: The most that was resident in one process.
        found: What it said it found.
        failure: Why there is no result.
    """

    cpu_seconds: float
    wall_seconds: float
    peak_bytes: int
    found: dict[str, Any]
    failure: str | None


def run(python: str, code: str, argument: str) -> Run:
    """
    Runs code in a process of its own and takes its costs from the kernel.

    Args:
        python: The interpreter.
        argument: ``sys.argv[1]``.
    """
    environment = {key: value for key, value in os.environ.items() if not key.startswith("PYTHON")}
    if python == sys.executable:
        environment["PYTHONPATH"] = str(ROOT)
    with tempfile.TemporaryDirectory() as folder, tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as err:
        start = time.perf_counter()
        process = subprocess.Popen(
            [python, "-c", code, argument], stdout=out, stderr=err, cwd=folder, env=environment, start_new_session=True
        )
        late = threading.Timer(LONGEST_SECONDS, os.killpg, (process.pid, signal.SIGKILL))
        late.start()
        _, status, usage = os.wait4(process.pid, 0)
        wall = time.perf_counter() - start
        late.cancel()
        process.returncode = os.waitstatus_to_exitcode(status)  # so that Popen does not wait for it again
        texts = []
        for stream in (out, err):
            stream.seek(0)
            texts.append(stream.read().decode(errors="replace").strip().splitlines() or [""])
    failure = (texts[1][-1][:200] or f"exit status {process.returncode}") if process.returncode else None
    found = json.loads(texts[0][-1]) if not failure and texts[0][-1] else {}
    return Run(usage.ru_utime + usage.ru_stime, wall, usage.ru_maxrss * 1024, found, failure)


def costs(runs: list[Run]) -> dict[str, Any]:
    """Several runs of one reader on one file as one entry of the results."""
    for one in runs:
        if one.failure:
            return {"failure": one.failure}
    return {
        "cpu_seconds": statistics.median(one.cpu_seconds for one in runs),
        "wall_seconds": statistics.median(one.wall_seconds for one in runs),
        "peak_mib": max(one.peak_bytes for one in runs) / MIB,
        "all_cpu_seconds": [one.cpu_seconds for one in runs],
        "found": runs[-1].found,
    }


def measured(codes: dict[str, tuple[str, str]], path: str, repeats: int) -> dict[str, Any]:
    """
    Runs every reader ``repeats`` times on one file, in turns, each time beginning with another one.

    Args:
        codes: Interpreter and code by name.
        path: What they read.
    """
    runs: dict[str, list[Run]] = {name: [] for name in codes}
    names = list(codes)
    for turn in range(repeats):
        for name in names[turn % len(names) :] + names[: turn % len(names)]:
            if not any(one.failure for one in runs[name]):
                runs[name].append(run(*codes[name], path))
                last = runs[name][-1]
                said = f"{last.cpu_seconds:.2f} s CPU, {last.peak_bytes / MIB:.0f} MiB {last.found or ''}"
                print(f"  {Path(path).name or 'imports'} {name}: {last.failure or said}", file=sys.stderr, flush=True)
    return {name: costs(of_one) for name, of_one in runs.items()}


def with_ratios(entries: dict[str, Any]) -> dict[str, Any]:
    """Says of each reader how many times the CPU seconds of json.load and of HolisticTraceAnalysis it takes."""
    for key, base in (("cpu_vs_json", BASE), ("cpu_vs_hta", PEER)):
        seconds = entries.get(base, {}).get("cpu_seconds")
        for entry in entries.values():
            if seconds and "cpu_seconds" in entry:
                entry[key] = entry["cpu_seconds"] / seconds
    return entries


def machine() -> dict[str, Any]:
    """What the times depend on, without names."""
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    facts = {"cores": os.cpu_count(), "memory_gib": round(memory / 2**30, 1), "architecture": platform.machine()}
    return {**facts, "load_average": os.getloadavg()[0]}


def chosen_readers(options: argparse.Namespace) -> tuple[dict[str, tuple[str, Reader]], dict[str, Any]]:
    """The readers that are installed, with their interpreters; and of each its version or why it is not there."""
    there, versions = {}, {}
    for reader in READERS:
        python = str(options.peers_python) if reader.is_peer else sys.executable
        if reader.is_peer and options.peers_python is None:
            versions[reader.name] = {"missing": "no --peers-python"}
            continue
        asked = run(python, f"{reader.imports}\nprint(json.dumps({{'version': {reader.version}}}))", "")
        versions[reader.name] = {"missing": f"not installed: {asked.failure}"} if asked.failure else asked.found
        if not asked.failure:
            there[reader.name] = (python, reader)
    return there, versions


def made_files(options: argparse.Namespace, folder: Path) -> Iterator[tuple[Path, int]]:
    """The larger files, each made when it is asked for; one that is there is taken as it is."""
    stem = options.trace.name.partition(".")[0]
    copies: list[int] = options.copies or [max(1, round(WANTED_BYTES / plain_bytes(options.trace)))]
    for count in copies:
        target = folder / f"{stem}_x{count}.json"
        if not target.exists():
            print(f"making {target.name}", file=sys.stderr, flush=True)
            make_elsewhere(options.trace, target, count)
        yield target, count


def make_elsewhere(source: Path, target: Path, copies: int) -> None:
    """
    Makes a large file in a process of its own.

    A process begins with the memory of the one that starts it, and that is measured here.
    """
    code = "import sys, pathlib, trace_reading as it; it.make(*map(pathlib.Path, sys.argv[1:3]), int(sys.argv[3]))"
    words = [str(source), str(target), str(copies)]
    subprocess.run([sys.executable, "-c", code, *words], cwd=ROOT / "benchmarks", check=True)


def plain_bytes(path: Path) -> int:
    """How large a file is when it is not compressed."""
    if path.suffix != ".gz":
        return path.stat().st_size
    with gzip.open(path) as stream:
        return sum(len(block) for block in iter(lambda: stream.read(MIB), b""))


def compare(options: argparse.Namespace, folder: Path) -> dict[str, Any]:
    """Runs everything, and returns what is to be saved."""
    compileall.compile_dir(ROOT / "layoutdoctor", quiet=1)  # as pip does with what it installs
    there, versions = chosen_readers(options)
    imports = {name: (python, reader.imports) for name, (python, reader) in there.items()}
    reads = {
        name: (python, f"{reader.imports}{reader.read}print(json.dumps(found))")
        for name, (python, reader) in there.items()
    }
    results: dict[str, Any] = {
        "date": datetime.datetime.now(datetime.timezone.utc).strftime("%Y-%m-%d"),
        "machine": machine(),
        "versions": versions,
        "import only": measured(imports, "", options.repeats),
        "inputs": [],
    }
    for path, count in ((options.trace, 0), *made_files(options, folder)):
        size = path.stat().st_size
        repeats = 1 if size >= LARGE_BYTES else options.repeats
        readers = with_ratios(measured(reads, str(path), repeats))
        events = readers.get(BASE, {}).get("found", {}).get("events")
        named = {"name": path.name, "bytes": size, "plain_bytes": plain_bytes(path), "events": events}
        results["inputs"].append({**named, **({"copies": count} if count else {}), "readers": readers})
    return results


def report(results: dict[str, Any]) -> None:
    """Prints the tables."""
    facts = results["machine"]
    load = f"load average {facts['load_average']:.1f} at the start"
    print(f"{facts['cores']} cores, {facts['memory_gib']} GiB, {facts['architecture']}, {load}")
    rows: list[list[Any]] = []
    for one in ({"name": "import only", "readers": results["import only"]}, *results["inputs"]):
        size = f" ({one['plain_bytes'] / 1e6:.0f} MB of JSON)" if "plain_bytes" in one else ""
        for name, version in results["versions"].items():
            entry = {**version, **one["readers"].get(name, {})}
            told = entry.get("failure") or entry.get("missing")
            row = [entry.get(key) for key in ("cpu_seconds", "wall_seconds", "peak_mib", "cpu_vs_json", "cpu_vs_hta")]
            rows.append([one["name"] + size, f"{name} {version.get('version', '')}", *row, told])
    headers = ["read", "by", "CPU s", "wall s", "peak MiB", "CPU / json.load", "CPU / HTA", ""]
    print(tabulate(rows, headers=headers, floatfmt=("", "", ".2f", ".2f", ".0f", ".3f", ".3f", "")))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("trace", type=Path, help="a Kineto trace, .json or .json.gz")
    parser.add_argument("--peers-python", type=Path, help="interpreter of the environment with the other tools")
    parser.add_argument("--copies", type=int, nargs="+", help="repetitions of the trace, such as 1 4 16; default: 1 GB")
    parser.add_argument("--folder", type=Path, help="where large files are made and kept; default: not kept")
    parser.add_argument("--repeats", type=int, default=3, help="the median counts; files of 100 MB and more once")
    parser.add_argument("--output", type=Path, help="JSON file of the results")
    options = parser.parse_args()
    options.trace = options.trace.absolute()
    if options.peers_python is not None:
        options.peers_python = options.peers_python.absolute()  # not resolved: the link is what makes it an environment
    with tempfile.TemporaryDirectory() as scratch:
        folder = options.folder.absolute() if options.folder else Path(scratch)
        folder.mkdir(parents=True, exist_ok=True)
        results = compare(options, folder)
    if options.output is not None:
        options.output.write_text(json.dumps(results, indent=1) + "\n", encoding="utf-8")
    report(results)


if __name__ == "__main__":
    main()
