"""Benchmarks start: those of the product on next to nothing, the plans of a GPU without time to run any."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

BENCHMARKS = Path(__file__).parents[1] / "benchmarks"


def output_of(name: str, *options: str) -> str:
    command = [sys.executable, str(BENCHMARKS / name), *options]
    ended = subprocess.run(command, cwd=BENCHMARKS.parent, capture_output=True, text=True, check=False)
    assert ended.returncode == 0, ended.stderr
    return ended.stdout


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("graph_scaling.py --sizes 2 4 --repeats 1", "residual  breaker costs"),
        ("trace_reading.py tests/traces/a100_alexnet.json.gz --copies 1 --repeats 1", "79 kernels, 12 conversions"),
    ],
)
def test_a_benchmark_starts(words: str, said: str) -> None:
    assert said in output_of(*words.split())


@pytest.mark.parametrize("plan", ["next", "second", "third"])
def test_a_plan_for_a_gpu_starts_and_names_cases_that_exist(plan: str, tmp_path: Path) -> None:
    said = output_of("gpu.py", "run", str(tmp_path / "out"), "--plan", plan, "--device", "cpu", "--seconds", "0")
    names = re.findall(r"^(?:truth|product|profile|static)\.(\w+)\.\w+: not begun", said, re.MULTILINE)
    cases = (BENCHMARKS / "gpu_cases.py").read_text(encoding="utf-8")

    assert names
    assert [name for name in names if f"\ndef {name}() -> Case:" not in cases] == []
    assert output_of("gpu.py", "compare", str(tmp_path / "out")).endswith("\n0 RIGHT, 0 WRONG, 0 OPEN\n")
