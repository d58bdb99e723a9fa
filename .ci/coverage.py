"""
Runs the fast tests under coverage and holds it: every branch below the torch line, 90 % above it.

    python .ci/coverage.py [PYTEST ARGUMENTS...]

Needs twice the time of `make test`. Prints the figures of both sides and every place that is missing below the line.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).parents[1]
WANTED_ABOVE = 90.0
sys.path.insert(0, str(ROOT / "tests"))


def is_below(file: str) -> bool:
    """Whether a file stands below the torch line."""
    from test_architecture import TORCH_LINE, line_of

    module = ".".join(Path(file).with_suffix("").parts).removesuffix(".__init__")
    return line_of(module) >= TORCH_LINE


def measured(arguments: list[str]) -> tuple[int, dict[str, dict[str, object]]]:
    """Exit status of the tests, and coverage's report by file."""
    with tempfile.TemporaryDirectory(prefix="coverage-") as directory:
        environment = {**os.environ, "COVERAGE_FILE": f"{directory}/data"}
        coverage = [sys.executable, "-m", "coverage"]

        def run(*words: str) -> int:
            return subprocess.run([*coverage, *words], cwd=ROOT, env=environment, check=False).returncode

        status = run("run", "-m", "pytest", "-m", "not slow", *arguments)
        run("combine", "-q")
        report = Path(directory) / "report.json"
        run("json", "-q", "-o", str(report))
        return status, json.loads(report.read_text(encoding="utf-8"))["files"]


def share(files: dict[str, dict[str, dict[str, int]]]) -> float:
    """Lines and branches that ran, in percent."""
    summaries = [file["summary"] for file in files.values()]
    ran = sum(summary["covered_lines"] + summary["covered_branches"] for summary in summaries)
    there = sum(summary["num_statements"] + summary["num_branches"] for summary in summaries)
    return 100.0 * ran / there if there else 100.0


def main() -> int:
    """Prints the figures; 0 where they are held and the tests passed."""
    status, files = measured(sys.argv[1:])
    below = {name: file for name, file in files.items() if is_below(name)}
    above = {name: file for name, file in files.items() if name not in below}
    for name, file in sorted(files.items()):
        lines, branches = file["missing_lines"], file["missing_branches"]
        if name in below and (lines or branches):
            print(f"{name}: lines {lines}, branches {branches}")
    for name, file in sorted(above.items(), key=lambda item: item[1]["summary"]["percent_covered"])[:15]:
        print(f"{name}: {file['summary']['percent_covered']:.1f} %")
    print(f"below the torch line: {share(below):.2f} % of lines and branches in {len(below)} files (wanted: 100)")
    print(f"above the torch line: {share(above):.2f} % in {len(above)} files (wanted: {WANTED_ABOVE:g})")
    return status or int(share(below) < 100.0 or share(above) < WANTED_ABOVE)


if __name__ == "__main__":
    sys.exit(main())
