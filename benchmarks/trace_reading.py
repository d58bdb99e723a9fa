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
that says so. ``--check`` checks the making of large files, and reads nothing else.
"""

from __future__ import annotations

import argparse
import compileall
import datetime
import functools
import gzip
import itertools
import json
import math
import os
import platform
import re
import shlex
import signal
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from decimal import Decimal
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec
from tabulate import tabulate

if TYPE_CHECKING:
    from collections.abc import Iterator

ROOT = Path(__file__).resolve().parent.parent
MIB = 2**20
LARGE_BYTES = 100_000_000
"""A file of at least this size is read ``--large-repeats`` times."""
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

HEAD = re.compile(r'\s*\[|.*?"traceEvents"\s*:\s*\[', re.DOTALL)
GAP = re.compile(r"[\s,]*")
CHUNK = 1 << 20
ZERO_IS_AN_ID = frozenset({"Ev Idx", "Python id", "Python parent id", "Sequence number"})
"""Of the others Kineto writes 0 for none."""
ID_KEYS = ZERO_IS_AN_ID | frozenset(
    {"External id", "external id", "correlation", "Record function id", "wait_on_cuda_event_record_corr_id"}
)
"""The arguments that name an event; a flow's ``id`` is not among the arguments."""
STEP = re.compile(r'"ProfilerStep#(\d+)"')
quoted = functools.lru_cache(msgspec.json.encode)
fields_of = msgspec.json.Decoder(dict[str, msgspec.Raw]).decode


class Survey(NamedTuple):
    """What has to be known of a trace before it can be repeated: how far one copy lies behind the one before."""

    events: int
    microseconds: int
    ids: int
    steps: int


def opened(path: Path) -> Any:
    return gzip.open(path, "rt", encoding="utf-8") if path.suffix == ".gz" else path.open(encoding="utf-8")


def pieces(path: Path) -> Iterator[tuple[str, str]]:
    """
    A trace as text, piece by piece: one ``head``, each ``event``, and what is behind them in one ``tail`` or more.

    Args:
        path: The file, also gzip.

    Raises:
        ValueError: It is no Kineto trace, or ends too early.
    """
    scan = json.JSONDecoder(strict=False).raw_decode
    with opened(path) as stream:
        text = ""
        while (head := HEAD.match(text)) is None:
            text += (more := stream.read(CHUNK))
            if not more:
                raise ValueError(f"no list of traceEvents in {path.name!r}; expected a Kineto Chrome trace")
        yield "head", text[: head.end()]
        at = head.end()
        while True:
            at = GAP.match(text, at).end()  # type: ignore[union-attr]  # matches everywhere
            if text.startswith("]", at):
                break
            try:
                end = scan(text, at)[1]
            except ValueError:  # the rest of the event has not been read yet
                if not (more := stream.read(CHUNK)):
                    raise ValueError(f"{path.name!r} ends within its events; expected a complete trace") from None
                text, at = text[at:] + more, 0
                continue
            yield "event", text[at:end]
            at = end
        yield "tail", text[at:]
        while more := stream.read(CHUNK):
            yield "tail", more


def id_of(key: str, raw: msgspec.Raw) -> int | None:
    """A recorded id, also one that was written as a string; None for what stands for none."""
    text = bytes(raw).strip(b'"')
    if not text.isdigit():
        return None  # null, -1, an address
    number = int(text)
    return number if number or key in ZERO_IS_AN_ID else None


def survey(path: Path) -> Survey:
    """
    Reads a trace once to see how far apart its copies have to lie.

    Args:
        path: The file, also gzip.
    """
    events = ids = 0
    first, last = math.inf, -math.inf
    steps: set[int] = set()
    for kind, text in pieces(path):
        if kind != "event":
            continue
        events += 1
        fields = fields_of(text)
        steps.update(int(number) for number in STEP.findall(str(fields.get("name", b""), "utf-8")))
        known = [("id", fields["id"])] if "id" in fields else []
        known += [item for item in arguments_of(fields).items() if item[0] in ID_KEYS]
        ids = max(ids, *(id_of(*item) or 0 for item in known), 0)
        start = float(bytes(fields.get("ts", b"0")))
        if start > 0 and bytes(fields.get("ph", b"")) != b'"M"':
            first, last = min(first, start), max(last, start + float(bytes(fields.get("dur", b"0"))))
    span = math.ceil(last - first) + 1 if first <= last else 0
    return Survey(events, span, ids + 1, max(steps) - min(steps) + 1 if steps else 0)


def arguments_of(fields: dict[str, msgspec.Raw]) -> dict[str, msgspec.Raw]:
    raw = fields.get("args")
    return fields_of(raw) if raw is not None and bytes(raw).startswith(b"{") else {}


def object_of(fields: dict[str, msgspec.Raw]) -> bytes:
    """Fields as one JSON object, spaced as ``json.dump`` does, so that a file grows by nothing but its copies."""
    return b"{%b}" % b", ".join([b"%b: %b" % (quoted(key), raw) for key, raw in fields.items()])


def moved(raw: msgspec.Raw, distance: int) -> msgspec.Raw:
    """A number moved on, without a digit lost; whole numbers stay whole."""
    text = bytes(raw).decode()
    if text.startswith('"'):
        return msgspec.Raw(b'"%d"' % (int(text[1:-1]) + distance))
    is_whole = text.lstrip("-").isdigit()
    return msgspec.Raw((str(int(text) + distance) if is_whole else format(Decimal(text) + distance, "f")).encode())


def moved_event(text: str, copy: int, by: Survey) -> bytes:
    """
    One event of the n-th copy: later, with ids of its own; everything else as it was.

    Args:
        text: The event of the original.
        copy: Number of the copy, from 0.
        by: How far the copies lie apart.
    """
    fields = fields_of(text)
    if "ts" in fields:
        fields["ts"] = moved(fields["ts"], copy * by.microseconds)
    if "id" in fields and id_of("id", fields["id"]) is not None:
        fields["id"] = moved(fields["id"], copy * by.ids)
    name = bytes(fields.get("name", b""))
    if step := STEP.fullmatch(name.decode()):
        fields["name"] = msgspec.Raw(b'"ProfilerStep#%d"' % (int(step[1]) + copy * by.steps))
    arguments = arguments_of(fields)
    for key in ID_KEYS & arguments.keys():
        if id_of(key, arguments[key]) is not None:
            arguments[key] = moved(arguments[key], copy * by.ids)
    if arguments:
        fields["args"] = msgspec.Raw(object_of(arguments))
    return object_of(fields)


def make(source: Path, copies: int, target: Path) -> Survey:
    """
    Writes a trace several times into one file, one copy behind the other, as plain JSON; the same bytes every time.

    The source is read once more for each copy, so that no more than one event is kept.

    Args:
        source: The trace, also gzip.
        copies: How often.
        target: The file; it appears when it is complete.

    Returns:
        How far the copies lie apart.
    """
    by = survey(source)
    partial = target.with_name(target.name + ".partial")
    with partial.open("wb", buffering=CHUNK) as stream:
        is_first = True
        for copy in range(copies):
            for kind, text in pieces(source):
                if kind == "event":
                    stream.write(b"\n" if is_first else b",\n")
                    stream.write(moved_event(text, copy, by))
                    is_first = False
                elif (kind, copy) in (("head", 0), ("tail", copies - 1)):
                    stream.write(text.encode())
    partial.replace(target)
    return by


def check(source: Path | None) -> None:
    """
    Repeats a small trace and compares, field by field, what json reads of both; AssertionError where they differ.

    Args:
        source: The trace; without one, a handful of events in the shapes that Kineto writes.
    """
    with tempfile.TemporaryDirectory() as folder:
        if source is None:
            source = Path(folder) / "small.json"
            source.write_text(SMALL, encoding="utf-8")
        targets = [Path(folder) / name for name in ("once.json", "again.json")]
        by, _ = [make(source, 2, target) for target in targets]
        assert targets[0].read_bytes() == targets[1].read_bytes(), "two makings differ"
        with opened(source) as stream:
            before = json.load(stream, parse_float=Decimal)
        with opened(targets[0]) as stream:
            after = json.load(stream, parse_float=Decimal)
    if isinstance(before, dict):
        assert {**before, "traceEvents": 0} == {**after, "traceEvents": 0}, "what is around the events differs"
        before, after = before["traceEvents"], after["traceEvents"]
    assert len(before) == by.events, "the survey counted other events than json"
    assert len(after) == 2 * len(before), "the events are not twice as many"
    first, second = after[: by.events], after[by.events :]
    assert first == before, "the first copy is not the original"
    seen = [set(ids_of(first)), set(ids_of(second))]
    assert len(seen[0]) == len(seen[1]), "the second copy has fewer ids"
    assert not {number for _, number in seen[0]} & {number for _, number in seen[1]}, "an id of both copies"
    for one, other in zip(first, second, strict=True):
        assert one.get("dur") == other.get("dur"), f"another duration: {one} {other}"
        assert other.get("ts") == (one["ts"] + by.microseconds if "ts" in one else None), f"another time: {one} {other}"
        assert blanked(one) == blanked(other), f"not the same event: {one} {other}"
    print(f"{source.name}: {by.events} events twice, {by.microseconds} us apart, {len(seen[0])} ids in each: as wanted")


SMALL = """{"schemaVersion": 1, "traceEvents": [
 {"ph": "X", "cat": "user_annotation", "name": "ProfilerStep#3", "pid": 7, "tid": 7, "ts": 2915995411700, "dur": 900},
 {"ph": "X", "cat": "cpu_op", "name": "a \\"]}, {\\"ts\\": 5", "pid": 7, "tid": 7, "ts": 2915995411837.856, "dur": 8.8,
  "args": {"External id": 3, "Record function id": 0, "Ev Idx": 0, "Sequence number": 0, "Input Dims": [[1, 77], []]}},
 {"ph": "X", "cat": "cuda_runtime", "name": "cudaLaunchKernel", "pid": 7, "tid": 7, "ts": 2915995411838.1, "dur": 2,
  "args": {"cbid": 211, "correlation": 12, "External id": "3"}},
 {"ph": "s", "id": 12, "pid": 7, "tid": 7, "ts": 2915995411838.1, "cat": "ac2g", "name": "ac2g"},
 {"ph": "X", "cat": "kernel", "name": "nchwToNhwcKernel", "pid": 0, "tid": 7, "ts": 2915995411848, "dur": 0,
  "args": {"correlation": 12, "External id": 0, "device": 0, "stream": 7, "grid": [1, 2, 3]}},
 {"ph": "X", "cat": "python_function", "name": "f", "pid": 7, "tid": 7, "ts": 2915995411800.5, "dur": 1,
  "args": {"Python id": 1, "Python parent id": null, "Ev Idx": 1}},
 {"name": "process_name", "ph": "M", "ts": 0, "pid": 7, "tid": 0, "args": {"name": "python"}}
], "traceName": "small.json"}
"""


def ids_of(events: list[dict[str, Any]]) -> Iterator[tuple[str, int]]:
    """Every id of some events, with its key; 0 and -1 are none."""
    for event in events:
        pairs = [("id", event.get("id")), *((event.get("args") or {}).items())]
        for key, value in pairs:
            if (key == "id" or key in ID_KEYS) and str(value).isdigit() and (int(value) or key in ZERO_IS_AN_ID):
                yield key, int(value)


def blanked(event: dict[str, Any]) -> dict[str, Any]:
    """An event without what may differ between two copies."""
    rest = {key: value for key, value in event.items() if key not in ("ts", "id")}
    rest["name"] = re.sub(r"^ProfilerStep#\d+$", "ProfilerStep#", str(event.get("name")))
    if isinstance(event.get("args"), dict):
        rest["args"] = {key: value for key, value in event["args"].items() if key not in ID_KEYS}
    return rest


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


def run(python: str, code: str, argument: str, timeout_seconds: float) -> Run:
    """
    Runs code in a process of its own and takes its costs from the kernel.

    Args:
        python: The interpreter.
        code: What it runs.
        argument: ``sys.argv[1]``.
        timeout_seconds: It is ended after this.
    """
    environment = {key: value for key, value in os.environ.items() if not key.startswith("PYTHON")}
    if python == sys.executable:
        environment["PYTHONPATH"] = str(ROOT)
    with tempfile.TemporaryDirectory() as folder, tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as err:
        start = time.perf_counter()
        process = subprocess.Popen(
            [python, "-c", code, argument], stdout=out, stderr=err, cwd=folder, env=environment, start_new_session=True
        )
        late = threading.Timer(timeout_seconds, os.killpg, (process.pid, signal.SIGKILL))
        late.start()
        _, status, usage = os.wait4(process.pid, 0)
        wall = time.perf_counter() - start
        is_late = late.finished.is_set()
        late.cancel()
        process.returncode = os.waitstatus_to_exitcode(status)  # so that Popen does not wait for it again
        texts = []
        for stream in (out, err):
            stream.seek(0)
            texts.append(stream.read().decode(errors="replace").strip().splitlines() or [""])
    failure = None
    if process.returncode:
        said = texts[1][-1][:200] or f"exit status {process.returncode}"
        failure = f"no end within {timeout_seconds:.0f} s" if is_late else said
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


def measured(codes: dict[str, tuple[str, str]], path: str, repeats: int, timeout_seconds: float) -> dict[str, Any]:
    """
    Runs every reader ``repeats`` times on one file, in turns, each time beginning with another one.

    Args:
        codes: Interpreter and code by name.
        path: What they read.
        repeats: How often.
        timeout_seconds: For each run.
    """
    runs: dict[str, list[Run]] = {name: [] for name in codes}
    names = list(codes)
    for turn in range(repeats):
        for name in names[turn % len(names) :] + names[: turn % len(names)]:
            if not any(one.failure for one in runs[name]):
                runs[name].append(run(*codes[name], path, timeout_seconds))
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


def growth(inputs: list[dict[str, Any]], imports: dict[str, Any]) -> list[dict[str, Any]]:
    """
    How the cost of one event changes from each made file to the next larger one; 1 is linear.

    Args:
        inputs: The entries of the files, of made ones with ``copies``.
        imports: The entries of the imports, whose CPU seconds are taken off: they are the same for every file.
    """
    made = sorted((one for one in inputs if "copies" in one), key=lambda one: int(one["copies"]))
    found = []
    for smaller, larger in itertools.pairwise(made):
        times = larger["copies"] / smaller["copies"]
        for name, last in larger["readers"].items():
            first, base = smaller["readers"].get(name, {}), imports.get(name, {}).get("cpu_seconds", 0.0)
            if "cpu_seconds" in first and "cpu_seconds" in last:
                cpu = (last["cpu_seconds"] - base) / (first["cpu_seconds"] - base) / times
                peak = last["peak_mib"] / first["peak_mib"] / times
                steps = {"reader": name, "from_copies": smaller["copies"], "to_copies": larger["copies"]}
                found.append({**steps, "cpu_per_event": cpu, "peak_per_event": peak})
    return found


WANTED = (
    ("CPU seconds over json.load's", "cpu_vs_json", 1 / 2),
    ("CPU seconds over HolisticTraceAnalysis's", "cpu_vs_hta", 1 / 10),
    ("peak MiB", "peak_mib", 1.2 * 1024),
)


def verdicts(inputs: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Whether layoutdoctor keeps what is wanted of it, file by file; nothing where it was not measured."""
    found = []
    for one in inputs:
        entry = one["readers"].get("layoutdoctor", {})
        for what, key, most in WANTED:
            if key in entry:
                verdict = {"input": one["name"], "what": what, "wanted": most, "measured": entry[key]}
                found.append({**verdict, "met": entry[key] <= most})
    return found


def machine() -> dict[str, Any]:
    """What the times depend on, without names."""
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    facts = {"cores": os.cpu_count(), "memory_gib": round(memory / 2**30, 1), "architecture": platform.machine()}
    return {**facts, "load_average": os.getloadavg()[0]}


def command_line() -> str:
    """The command, of every path its name only."""
    shown = [Path(word).name if os.sep in word else word for word in sys.argv[1:]]
    return shlex.join(["python", f"benchmarks/{Path(__file__).name}", *shown])


def chosen_readers(options: argparse.Namespace) -> tuple[dict[str, tuple[str, Reader]], dict[str, Any]]:
    """The readers that are installed, with their interpreters; and of each its version or why it is not there."""
    there, versions = {}, {}
    for reader in READERS:
        if reader.name not in options.readers:
            continue
        python = str(options.peers_python) if reader.is_peer else sys.executable
        if reader.is_peer and options.peers_python is None:
            versions[reader.name] = {"missing": "no --peers-python"}
            continue
        asked = run(python, f"{reader.imports}\nprint(json.dumps({{'version': {reader.version}}}))", "", 600)
        versions[reader.name] = {"missing": f"not installed: {asked.failure}"} if asked.failure else asked.found
        if not asked.failure:
            there[reader.name] = (python, reader)
    return there, versions


def made_files(options: argparse.Namespace, folder: Path) -> Iterator[tuple[Path, int]]:
    """
    The larger files, each made when it is asked for; one that is there and younger than the trace is taken as it is.

    Made in a process of its own: a process begins with the memory of the one that starts it, and that is measured here.
    """
    stem = options.trace.name.partition(".")[0]
    copies: list[int] = options.copies or [max(1, round(WANTED_BYTES / plain_bytes(options.trace)))]
    for count in copies:
        target = folder / f"{stem}_x{count}.json"
        if not target.exists() or target.stat().st_mtime < options.trace.stat().st_mtime:
            print(f"making {target.name}", file=sys.stderr, flush=True)
            command = [sys.executable, __file__, str(options.trace), "--copies", str(count), "--make", str(target)]
            subprocess.run(command, check=True)
        yield target, count


def plain_bytes(path: Path) -> int:
    """How large a file is when it is not compressed."""
    if path.suffix != ".gz":
        return path.stat().st_size
    with gzip.open(path) as stream:
        return sum(len(block) for block in iter(lambda: stream.read(CHUNK), b""))


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
        "command": command_line(),
        "machine": machine(),
        "versions": versions,
        "import only": measured(imports, "", options.repeats, options.timeout),
        "inputs": [],
    }
    for path, count in ((options.trace, 0), *made_files(options, folder)):
        size = path.stat().st_size
        repeats = options.large_repeats if size >= LARGE_BYTES else options.repeats
        readers = with_ratios(measured(reads, str(path), repeats, options.timeout))
        events = readers.get(BASE, {}).get("found", {}).get("events")
        named = {"name": path.name, "bytes": size, "plain_bytes": plain_bytes(path), "events": events}
        results["inputs"].append({**named, **({"copies": count} if count else {}), "readers": readers})
    results["growth"] = growth(results["inputs"], results["import only"])
    results["wanted"] = verdicts(results["inputs"])
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
    for one in results["growth"]:
        print(
            f"{one['reader']}, from x{one['from_copies']} to x{one['to_copies']}: for each event"
            f" {one['cpu_per_event']:.2f} times the CPU (without imports), {one['peak_per_event']:.2f} times the memory"
        )
    for verdict in results["wanted"]:
        said = "met" if verdict["met"] else "MISSED"
        measured_by = f"{verdict['measured']:.3g}, wanted at most {verdict['wanted']:.3g}"
        print(f"{said}: {verdict['input']}, layoutdoctor, {verdict['what']}: {measured_by}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("trace", type=Path, nargs="?", help="a Kineto trace, .json or .json.gz")
    parser.add_argument("--peers-python", type=Path, help="interpreter of the environment with the other tools")
    names = [reader.name for reader in READERS]
    parser.add_argument("--readers", nargs="+", choices=names, default=names, help="only these")
    parser.add_argument("--copies", type=int, nargs="+", help="repetitions of the trace, such as 1 4 16; default: 1 GB")
    parser.add_argument("--folder", type=Path, help="where large files are made and kept; default: not kept")
    parser.add_argument("--repeats", type=int, default=3, help="the median counts")
    parser.add_argument("--large-repeats", type=int, default=1, help="of files of 100 MB and more")
    parser.add_argument("--timeout", type=float, default=3600, help="seconds for one reading")
    parser.add_argument("--output", type=Path, help="JSON file of the results")
    parser.add_argument("--make", type=Path, help="write this file of --copies COPIES, and nothing else")
    parser.add_argument("--check", action="store_true", help="check the making of large files on TRACE or a tiny one")
    options = parser.parse_args()
    if options.check:
        check(options.trace)
        return
    if options.trace is None or not options.trace.is_file():
        parser.error(f"TRACE: got {str(options.trace or '')!r}, expected a Kineto trace, .json or .json.gz")
    options.trace = options.trace.absolute()
    if options.peers_python is not None:
        options.peers_python = options.peers_python.absolute()  # not resolved: the link is what makes it an environment
        if not options.peers_python.is_file():
            parser.error(f"--peers-python: got {str(options.peers_python)!r}, expected an interpreter")
    if options.output is not None and not options.output.absolute().parent.is_dir():
        parser.error(f"--output: {str(options.output.parent)!r} is no folder; make it first")
    if options.make is not None:
        if not options.copies or len(options.copies) != 1:
            parser.error("--make: expected one number of --copies")
        try:
            print(make(options.trace, options.copies[0], options.make), file=sys.stderr)
        except (ValueError, EOFError, OSError) as error:
            parser.error(str(error))
        return
    with tempfile.TemporaryDirectory() as scratch:
        folder = options.folder.absolute() if options.folder else Path(scratch)
        folder.mkdir(parents=True, exist_ok=True)
        results = compare(options, folder)
    if options.output is not None:
        options.output.write_text(json.dumps(results, indent=1) + "\n", encoding="utf-8")
    report(results)


if __name__ == "__main__":
    main()
