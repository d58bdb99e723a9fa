"""
What it costs to start: CPU seconds of a command beyond those of a Python that does nothing.

Every command runs in a process of its own, in turns with a bare ``python -c pass``, its bytecode cached. CPU seconds
are user plus system time of that process: they compare also where others keep the machine busy. Run from the repository
root:

    python benchmarks/start_up.py [--repeats 15]
"""

from __future__ import annotations

import argparse
import compileall
import os
import resource
import statistics
import subprocess
import sys
from pathlib import Path

from tabulate import tabulate

ROOT = Path(__file__).resolve().parent.parent
MOST_SECONDS = 0.25
BARE = (sys.executable, "-c", "pass")
SAVED = "tests/golden/gain_with_findings.json"
COMMANDS: dict[str, float | None] = {
    "--help": MOST_SECONDS,
    "explain LD101": MOST_SECONDS,
    f"render {SAVED}": MOST_SECONDS,
    f"compare {SAVED} {SAVED}": None,
    "schema": None,
    "trace --help": None,
    "trace tests/traces/h100_vit_patch_embed.json.gz": None,
    "diagnose --help": None,
}
"""With what it may cost at the most; None where nothing is asked for."""


def main() -> int:
    """Measures, prints a table and ends with 1 where a command costs more than it may."""
    parser = argparse.ArgumentParser(description="CPU seconds of a command beyond a Python that does nothing.")
    parser.add_argument("--repeats", type=int, default=15, help="pairs of each command and a bare Python (default: 15)")
    arguments = parser.parse_args()
    compileall.compile_dir(str(ROOT / "layoutdoctor"), quiet=1)
    beyond: dict[str, list[float]] = {command: [] for command in COMMANDS}
    bare: list[float] = []
    for number in range(arguments.repeats + 1):
        for command in COMMANDS:
            nothing = cpu_seconds(BARE)
            found = cpu_seconds((sys.executable, "-m", "layoutdoctor", *command.split()))
            if number:  # the first turn reads files from the disk
                bare.append(nothing)
                beyond[command].append(found - nothing)
    medians = {command: statistics.median(seconds) for command, seconds in beyond.items()}
    rows = [(f"layoutdoctor {command}", medians[command], most) for command, most in COMMANDS.items()]
    rows.append(("python -c pass, itself", statistics.median(bare), None))
    print(tabulate(rows, ("command", "CPU seconds beyond bare Python", "at most"), "github", floatfmt=".3f"))
    return int(any(most is not None and medians[command] > most for command, most in COMMANDS.items()))


def cpu_seconds(words: tuple[str, ...]) -> float:
    """User and system time of one process and its children."""
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    environment.pop("PYTHONDONTWRITEBYTECODE", None)
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run(words, cwd=ROOT, env=environment, capture_output=True, check=True)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime - before.ru_utime + after.ru_stime - before.ru_stime


if __name__ == "__main__":
    sys.exit(main())
