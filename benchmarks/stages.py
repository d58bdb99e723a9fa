"""
How long an answer takes, stage by stage: the command on a model, from a compiler cache that is empty.

    python benchmarks/stages.py examples/conv3d_stack.py [MORE ...] [--repeats 3] [--options=--quick] [--output FILE]

Prints for each run the seconds until the first row, the first table and the report, those of every stage, the processor
time of the whole machine meanwhile, and what was promised. Runs beside nothing else.
"""

from __future__ import annotations

import argparse
import json
import os
import shlex
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import psutil
from tabulate import tabulate


def busy_seconds() -> float:
    """Seconds that all processors have worked."""
    times = psutil.cpu_times()
    return sum(times) - times.idle - getattr(times, "iowait", 0.0) - getattr(times, "guest", 0.0)


def run_once(target: str, options: list[str]) -> dict[str, Any]:
    """One diagnosis with an empty cache."""
    with tempfile.TemporaryDirectory() as folder:
        saved = Path(folder) / "d.json"
        command = [sys.executable, "-m", "layoutdoctor", target, *options, "--output", str(saved)]
        environment = {**os.environ, "TORCHINDUCTOR_CACHE_DIR": str(Path(folder) / "cache")}
        busy, begin = busy_seconds(), time.perf_counter()
        process = subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        first_row = first_table = None
        assert process.stderr is not None
        for line in process.stderr:
            seconds = time.perf_counter() - begin
            if first_row is None and "converted per call" in line:
                first_row = seconds
            if first_table is None and "provisional" in line:
                first_table = seconds
        report = process.stdout.read() if process.stdout is not None else ""
        status = process.wait()
        seconds, worked = time.perf_counter() - begin, busy_seconds() - busy
        diagnosis = json.loads(saved.read_text(encoding="utf-8"))
    advice = diagnosis["recommendation"] or {}
    speedup = advice.get("speedup") or {}
    return {
        "target": Path(target).name,
        "status": status,
        "first row": first_row,
        "first table": first_table,
        "answer": seconds,
        "CPU": worked,
        "recommended": advice.get("configuration"),
        "promised": speedup.get("median"),
        "low": speedup.get("low"),
        "high": speedup.get("high"),
        "other cores": (diagnosis["comparison"] or {}).get("other_cores"),
        "stages": diagnosis["stage_seconds"],
        "claim": report.splitlines()[1] if len(report.splitlines()) > 1 else "",
    }


def main() -> None:
    """Runs all targets in turns, and prints the tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("targets", nargs="+")
    parser.add_argument("--repeats", type=int, default=1)
    parser.add_argument("--options", default="", help="of the command, such as '--quick'")
    parser.add_argument("--output", type=Path)
    arguments = parser.parse_args()
    found: list[dict[str, Any]] = []
    for _ in range(arguments.repeats):
        for target in arguments.targets:
            found.append(run_once(target, shlex.split(arguments.options)))
            print(found[-1]["target"], f"{found[-1]['answer']:.1f} s", found[-1]["claim"], flush=True)
            if arguments.output:
                arguments.output.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
    columns = "target status|first row|first table|answer|CPU|recommended|promised|low|high|other cores".split("|")
    columns = ["target", "status", *columns[1:]]
    print(tabulate([[one[name] for name in columns] for one in found], headers=columns, floatfmt=".2f"))
    stages = list(dict.fromkeys(stage for one in found for stage in one["stages"]))
    rows = [[stage, *(one["stages"].get(stage) for one in found)] for stage in stages]
    print(tabulate(rows, headers=["stage, seconds", *(one["target"] for one in found)], floatfmt=".1f"))


if __name__ == "__main__":
    main()
