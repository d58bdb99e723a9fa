"""
What a diagnosis costs beyond the work it has to do: ``diagnose()`` against a plain script, side by side.

The plain script prepares the same configurations, compiles them, and times them with the same number of rounds and
calls, and nothing else: no capture, no profile, no reference, no comparison. Both run in a process of their own with an
empty compile cache, in turns. Run from the repository root:

    python benchmarks/overhead.py [MODEL.py] [--device cuda] [--budget 10] [--repeats 3] [--output FILE.json]
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

from tabulate import tabulate

from layoutdoctor.commands.conclusion import EXIT_INCONCLUSIVE

ROOT = Path(__file__).parent.parent
PLAIN = """
import copy, json, runpy, sys, time
import torch
target, plan, mode, device = sys.argv[1], json.load(open(sys.argv[2])), sys.argv[3], sys.argv[4]
names = runpy.run_path(target)
if "Model" in names:
    model = names["Model"](*names.get("get_init_inputs", list)())
else:
    model = names["get_model"]()
model = model.to(device)
inputs = [x.to(device) for x in names["get_inputs"]()]
FORMATS = {4: torch.channels_last, 5: torch.channels_last_3d}
steps = {}
for name, backend, options, channels_last in plan["configurations"]:
    own = copy.deepcopy(model).train(mode == "training")
    mine = [x.clone() for x in inputs]
    if channels_last:
        for p in own.parameters():
            if p.dim() in FORMATS:
                p.data = p.data.to(memory_format=FORMATS[p.dim()])
        mine = [x.to(memory_format=FORMATS[x.dim()]) if x.dim() in FORMATS else x for x in mine]
    run = torch.compile(own, options=options or None) if backend == "inductor" else own
    def step(run=run, mine=mine, own=own):
        if mode == "training":
            for p in own.parameters():
                p.grad = None
            run(*mine).sum().backward()
        else:
            with torch.no_grad():
                run(*mine)
    if backend == "inductor":
        torch._dynamo.reset()
    step()
    steps[name] = step
for passes in plan["passes"]:
    for index in range(max(rounds for rounds, _ in passes.values())):
        for name, (rounds, calls) in passes.items():
            if index < rounds:
                for _ in range(calls):
                    start = time.perf_counter()
                    steps[name]()
                    if device == "cuda":
                        torch.cuda.synchronize()
                    time.perf_counter() - start
"""


def run_process(command: list[str]) -> float:
    """
    Wall time of a process with an empty compile cache.

    Args:
        command: What to run.

    Raises:
        RuntimeError: It failed; with the end of what it said.
    """
    with tempfile.TemporaryDirectory() as cache:
        paths = os.pathsep.join(filter(None, (str(ROOT), os.environ.get("PYTHONPATH"))))
        environment = {**os.environ, "TORCHINDUCTOR_CACHE_DIR": cache, "PYTHONPATH": paths}
        start = time.perf_counter()
        done = subprocess.run(command, check=False, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)
        seconds = time.perf_counter() - start
        if done.returncode not in (0, EXIT_INCONCLUSIVE):  # without a verdict it took its time all the same
            said = done.stderr.decode("utf-8", "replace").strip().splitlines()[-3:]
            raise RuntimeError(f"{command[1:4]} ended with status {done.returncode}: {' '.join(said)}")
        return seconds


def measure_once(model: str, mode: str, device: str, budget_seconds: float) -> tuple[float, float]:
    """
    Wall times of a diagnosis and of the plain script that matches it, one after the other.

    Args:
        model: The model's file.
        mode: ``inference`` or ``training``.
        device: ``cpu`` or ``cuda``.
        budget_seconds: Of the diagnosis, for its rounds.
    """
    with tempfile.TemporaryDirectory() as folder:
        saved, plan, script = (Path(folder) / name for name in ("diagnosis.json", "plan.json", "plain.py"))
        script.write_text(PLAIN, encoding="utf-8")
        diagnose = [sys.executable, "-m", "layoutdoctor", model, "--mode", mode, "--device", device, "-q"]
        with_doctor = run_process([*diagnose, "--budget", str(budget_seconds), "--output", str(saved)])
        plan.write_text(json.dumps(plan_of(saved)), encoding="utf-8")
        return with_doctor, run_process([sys.executable, str(script), model, str(plan), mode, device])


def plan_of(saved: Path) -> dict[str, object]:
    """
    What the plain script has to do to match a diagnosis: the same configurations, rounds and calls.

    Args:
        saved: The diagnosis as JSON.
    """
    diagnosis = json.loads(saved.read_text(encoding="utf-8"))
    configurations, rounds = [], {}
    for trial in diagnosis["trials"]:
        chosen = trial["configuration"]
        options = {"on": {"layout_optimization": True}, "off": {"layout_optimization": False}}
        configurations.append(
            (
                chosen["name"],
                chosen["backend"],
                {**options.get(chosen["layout_optimization"], {}), **chosen["inductor_options"]},
                chosen["model_format"] == "channels_last",
            )
        )
        if trial["measurement"] is not None:
            measurement = trial["measurement"]
            rounds[chosen["name"]] = (len(measurement["round_seconds"]), measurement["calls_per_round"])
    return {"configurations": configurations, "passes": [rounds]}


def main() -> None:
    """Runs both in turns and prints the ratios."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", nargs="?", default=str(ROOT / "examples" / "conv_bn_relu.py"))
    parser.add_argument("--budget", type=float, default=10.0)
    parser.add_argument("--mode", default="inference", choices=("inference", "training"))
    parser.add_argument("--device", default="cpu", choices=("cpu", "cuda"))
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--output", type=Path)
    arguments = parser.parse_args()
    rows = []
    for repeat in range(arguments.repeats):
        with_doctor, plain = measure_once(arguments.model, arguments.mode, arguments.device, arguments.budget)
        rows.append((repeat + 1, with_doctor, plain, with_doctor / plain))
    print(tabulate(rows, headers=("run", "diagnose (s)", "plain script (s)", "ratio"), floatfmt=".2f"))
    ratio = statistics.median(row[3] for row in rows)
    print(f"median ratio {ratio:.2f}  ({Path(arguments.model).name}, {arguments.mode}, budget {arguments.budget:g} s)")
    if arguments.output is not None:
        record = {
            "model": Path(arguments.model).name,
            "mode": arguments.mode,
            "device": arguments.device,
            "budget_seconds": arguments.budget,
            "rows": rows,
            "median_ratio": ratio,
        }
        arguments.output.write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
