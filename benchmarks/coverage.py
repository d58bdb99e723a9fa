"""
Do the intervals of 95 % hold the true ratio 95 times of 100?

``record`` diagnoses a model with many more starts than usual, of every configuration. ``simulate`` draws as many of
these starts as a diagnosis takes, stops as a diagnosis does, and counts how often the interval holds the ratio over all
recorded starts. Starts are drawn without replacement, so record many times more than are drawn.

    python benchmarks/coverage.py record examples/conv3d_stack.py --starts 40 --output quiet.json
    python benchmarks/coverage.py simulate quiet.json busy.json
"""

from __future__ import annotations

import argparse
import json
import random
import statistics
from pathlib import Path
from typing import TYPE_CHECKING
from unittest import mock

from tabulate import tabulate

from layoutdoctor.__main__ import main as command
from layoutdoctor.examination.advice.choice import FEWEST_STARTS, interval_over_starts, start_ratios
from layoutdoctor.run import run
from layoutdoctor.workers import turns

if TYPE_CHECKING:
    from collections.abc import Sequence

    from layoutdoctor.workers.worker import Worker

DRAWS = 4000


def record(target: str, starts: int, file: Path, configurations: str) -> None:
    """Diagnoses a target, and starts every configuration so many times."""

    def all_of_them(workers: Sequence[Worker], baseline: Worker) -> list[Worker]:
        return [worker for worker in workers if worker is not baseline and worker.is_ok]

    with (
        mock.patch.multiple(turns, MOST_STARTS=starts, USUAL_STARTS=starts, _NARROW=0.0, _PATIENCE=1e6),
        mock.patch.object(run, "contenders_of", all_of_them),
        mock.patch.object(run, "left_standing", return_value=()),
    ):
        command([target, "--configurations", configurations, "--output", str(file), "--force", "--budget", "1000"])


def simulate(file: Path) -> list[dict[str, object]]:
    """For every configuration, how often the interval holds the true ratio, and how wide it is."""
    trials = {trial["configuration"]["name"]: trial for trial in json.loads(file.read_bytes())["trials"]}
    measured = {name: trial["measurement"]["starts"] for name, trial in trials.items() if trial["measurement"]}
    baseline = measured.pop("inductor")
    ratios = {name: start_ratios(baseline, starts) for name, starts in measured.items() if len(starts) >= FEWEST_STARTS}
    generator = random.Random(1)
    rows: list[dict[str, object]] = []
    for name, own in ratios.items():
        truth, covered, widths, counts = statistics.median(own), 0, [], []
        for _ in range(DRAWS):
            low, high, count = _drawn(generator, name, ratios)
            covered += low <= truth <= high
            widths.append(high / low - 1)
            counts.append(count)
        row = {"file": file.name, "configuration": name, "true ratio": truth, "starts recorded": len(own)}
        width = statistics.median(widths)
        rows.append({**row, "covered": covered / DRAWS, "median width": width, "starts": statistics.fmean(counts)})
    return rows


def _drawn(generator: random.Random, name: str, ratios: dict[str, tuple[float, ...]]) -> tuple[float, float, int]:
    """The interval of one simulated diagnosis, and its number of starts."""
    order = generator.sample(range(len(ratios[name])), turns.MOST_STARTS)
    for count in range(FEWEST_STARTS, turns.MOST_STARTS + 1):
        drawn = {one: [own[index] for index in order[:count]] for one, own in ratios.items() if len(own) > max(order)}
        others = [own for one, own in drawn.items() if one != name]
        low, _, high = interval_over_starts(drawn[name], others)
        if high / low <= turns._NARROW or (count >= turns.USUAL_STARTS and high / low <= turns._WIDE):
            break
    return low, high, count


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(dest="command", required=True)
    recording = commands.add_parser("record")
    recording.add_argument("target")
    recording.add_argument("--starts", type=int, default=40)
    recording.add_argument("--output", type=Path, required=True)
    recording.add_argument("--configurations", default="inductor,eager-channels-last,inductor-channels-last,eager")
    commands.add_parser("simulate").add_argument("files", type=Path, nargs="+")
    arguments = parser.parse_args()
    if arguments.command == "record":
        record(arguments.target, arguments.starts, arguments.output, arguments.configurations)
    else:
        rows = [row for file in arguments.files for row in simulate(file)]
        print(tabulate(rows, headers="keys", floatfmt=".3f"))
        print(f"covered on average: {statistics.fmean(float(str(row['covered'])) for row in rows):.3f}")


if __name__ == "__main__":
    main()
