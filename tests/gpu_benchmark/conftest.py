"""The programs of ``benchmarks/gpu`` import each other as plain modules, as they do when they are run."""

from __future__ import annotations

import sys
from pathlib import Path

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"

for folder in (BENCHMARKS, BENCHMARKS / "gpu"):
    if str(folder) not in sys.path:
        sys.path.append(str(folder))
