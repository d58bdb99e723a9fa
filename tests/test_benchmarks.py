"""Benchmarks of the product's own functions, on next to nothing: that they still run."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("graph_scaling.py --sizes 40 80 --repeats 1", "residual  breaker costs"),
        ("trace_reading.py tests/traces/a100_alexnet.json.gz --copies 2 --repeats 1", "158 kernels, 24 conversions"),
    ],
)
def test_it_runs(words: str, said: str) -> None:
    name, *options = words.split()
    command = [sys.executable, str(ROOT / "benchmarks" / name), *options]

    ended = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)

    assert ended.returncode == 0, ended.stderr
    assert said in ended.stdout
