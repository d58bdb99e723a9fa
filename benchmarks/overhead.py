"""
What a diagnosis costs beyond the work it has to do: the command against plain scripts, side by side.

The plain scripts know nothing of layoutdoctor: one for each configuration that was timed, in a process of its own,
with as many rounds in turns as the diagnosis had, and as many further starts of what that started again. No capture, no
profile, no reference, no comparison. Both begin with an empty compile cache. On a processor, with a file whose model
has one input, beside nothing else; from the repository root:

    python benchmarks/overhead.py [MODEL.py] [--mode training] [--repeats 3] [--output FILE.json]
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec
from answer import CALL, in_turns
from tabulate import tabulate

import layoutdoctor
from layoutdoctor.commands.conclusion import EXIT_INCONCLUSIVE
from layoutdoctor.examination.applying import how_to_apply
from layoutdoctor.isolation.load import core_count

if TYPE_CHECKING:
    from layoutdoctor import Diagnosis
    from layoutdoctor.diagnosis.records import Configuration

ROOT = Path(__file__).parent.parent
COMMAND = (sys.executable, "-m", "layoutdoctor")
START_ROUNDS, TURN_SECONDS = 9, 0.1  # of a further start, as layoutdoctor/isolation/starts.py has it
PLAIN = (
    """
import runpy, sys, time
import torch, torch._inductor.config
names = runpy.run_path({target!r})
model = names["Model"](*names.get("get_init_inputs", list)()) if "Model" in names else names["get_model"]()
(x,) = names["get_inputs"]()
"""
    + CALL
    + """
with torch._inductor.config.patch(freezing={freezing}):
    call()
call()
print("ready", flush=True)
for word in sys.stdin:
    awake = time.perf_counter() + 0.05
    call()
    while time.perf_counter() < awake:
        call()
    for _ in range(int(word)):
        start = time.perf_counter()
        call()
        seconds = time.perf_counter() - start
    print(seconds, flush=True)
"""
)


def main() -> None:
    """Runs both in turns and prints the ratios."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", nargs="?", default=str(ROOT / "examples" / "conv_bn_relu.py"))
    parser.add_argument("--mode", default="inference", choices=("inference", "training"))
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--output", type=Path)
    arguments = parser.parse_args()
    rows = []
    for repeat in range(arguments.repeats):
        command, plain = measure_once(arguments.model, arguments.mode)
        rows.append((repeat + 1, command, plain, command / plain))
        print(rows[-1], flush=True)
    print(tabulate(rows, headers=("run", "layoutdoctor (s)", "plain scripts (s)", "ratio"), floatfmt=".2f"))
    ratio = statistics.median(row[3] for row in rows)
    print(f"median ratio {ratio:.2f}  ({Path(arguments.model).name}, {arguments.mode})")
    if arguments.output is not None:
        record = {"model": Path(arguments.model).name, "mode": arguments.mode, "rows": rows, "median_ratio": ratio}
        arguments.output.write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")


def measure_once(model: str, mode: str) -> tuple[float, float]:
    """
    Wall times of a diagnosis and of the plain scripts that match it, one after the other, in seconds.

    Raises:
        RuntimeError: The command failed, or a script ended; with the end of what it said.
    """
    with tempfile.TemporaryDirectory() as folder:
        saved = Path(folder) / "diagnosis.json"
        start = time.perf_counter()
        done = subprocess.run(
            [*COMMAND, "-q", model, "--mode", mode, "--output", str(saved)],
            check=False,
            capture_output=True,
            env=_environment(Path(folder) / "first"),
        )
        command = time.perf_counter() - start
        if done.returncode not in (0, EXIT_INCONCLUSIVE):  # without a verdict it took its time all the same
            raise RuntimeError(f"{model}: exit status {done.returncode}: {done.stderr.decode()[-1000:]}")
        diagnosis = layoutdoctor.load(saved)
        start = time.perf_counter()
        _run_plainly(diagnosis, model, _environment(Path(folder) / "second"))
        return command, time.perf_counter() - start


def _environment(cache: Path) -> dict[str, str]:
    paths = os.pathsep.join(filter(None, (str(ROOT), os.environ.get("PYTHONPATH"))))
    return {**os.environ, "TORCHINDUCTOR_CACHE_DIR": str(cache), "PYTHONPATH": paths, "PYTHONWARNINGS": "ignore"}


def _run_plainly(diagnosis: Diagnosis, model: str, environment: dict[str, str]) -> None:
    comparison = diagnosis.comparison
    measured = {trial.name: (trial, trial.measurement) for trial in diagnosis.trials if trial.measurement is not None}
    if comparison is None:
        raise RuntimeError(f"{model}: nothing was compared, so there is nothing to do plainly")
    scripts = {
        name: _script(model, diagnosis.subject.mode, trial.configuration) for name, (trial, _) in measured.items()
    }
    calls = max(measurement.calls_per_round for _, measurement in measured.values())
    rounds = comparison.round_count + comparison.slow_round_count
    in_turns(list(scripts.values()), rounds, calls, at_a_time=core_count() + 1, environment=environment)
    again = [comparison.baseline, *(ratio.name for ratio in comparison.ratios if ratio.start_count)]
    calls = max(1, round(TURN_SECONDS / min(measured[name][1].median_seconds for name in again)))
    seen = diagnosis.recommendation.fresh_processes if diagnosis.recommendation is not None else None
    starts = max((ratio.start_count or 0 for ratio in comparison.ratios), default=0) + (seen.slow_starts if seen else 0)
    for _ in range(starts):
        in_turns([scripts[name] for name in again], START_ROUNDS, calls, core_count() + 1, environment)


def _script(model: str, mode: str, configuration: Configuration) -> str:
    plain = msgspec.structs.replace(configuration, cures=())
    lines = how_to_apply(plain, frozenset({4, 5})).split("\nwith torch.no_grad()")[0]
    return PLAIN.format(target=model, training=mode == "training", lines=lines, freezing=configuration.freezes)


if __name__ == "__main__":
    main()
