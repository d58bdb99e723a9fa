"""
What many diagnoses in one process leave behind: memory, objects, descriptors, threads and compiled code after each.

Small models of several kinds in turn, in both modes, compiled ones and failures among them. Whatever grows with the
number of diagnoses would end a long-running process some day. Run from the repository root:

    python benchmarks/many_diagnoses.py [--count 200] [--eager] [--output FILE.json]
"""

from __future__ import annotations

import argparse
import contextlib
import gc
import json
import linecache
import os
import statistics
import sys
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

ROOT = Path(__file__).parent.parent
sys.path.insert(0, str(ROOT))  # like the other benchmarks: of this checkout, not of an installed one

import torch  # noqa: E402
from tabulate import tabulate  # noqa: E402
from torch import nn  # noqa: E402

import layoutdoctor  # noqa: E402
from layoutdoctor.errors import LayoutDoctorError  # noqa: E402

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

WARM_UP = 10
"""Diagnoses after which nothing may grow: until then torch imports, compiles helpers and fills its pools."""
FIGURES = (
    "resident_bytes",
    "object_count",
    "descriptor_count",
    "thread_count",
    "compiled_code_count",
    "module_count",
    "source_line_file_count",
)
COMPILED = (("eager", "inductor"), ("eager", "inductor-channels-last"))
"""In turns; a kind of model meets both, and both modes, before it comes with the same ones again."""
EAGER = (("eager", "eager-channels-last"),)


class Raising(nn.Module):
    """Runs in one memory format only: the configurations of the other fail."""

    def __init__(self) -> None:
        super().__init__()
        self.convolution = nn.Conv2d(3, 8, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Raises on what is not contiguous."""
        if not x.is_contiguous():
            raise RuntimeError("cannot run on this")
        return self.convolution(x)


class Residual(nn.Module):
    """A block with a skip."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Conv2d(3, 8, 3, padding=1), nn.Conv2d(8, 8, 3, padding=1)
        self.norm = nn.BatchNorm2d(8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Adds what went around."""
        x = self.first(x)
        return torch.relu(self.norm(self.second(x))) + x


def attention(x: torch.Tensor) -> torch.Tensor:
    """
    A function without any module.

    Args:
        x: ``[N, C, H, W]``.
    """
    flat = x.flatten(2).transpose(1, 2)
    return nn.functional.scaled_dot_product_attention(flat, flat, flat)


def changes_its_input(x: torch.Tensor) -> torch.Tensor:
    """
    Writes into what it is given.

    Args:
        x: ``[N, C, H, W]``.
    """
    return x.mul_(2).relu()


def never_runs(x: torch.Tensor) -> torch.Tensor:
    """
    Fails before any configuration.

    Args:
        x: Any.
    """
    raise ValueError(f"cannot take {x.shape[0]} images")


KINDS: tuple[Callable[[], Callable[..., Any]], ...] = (
    lambda: nn.Sequential(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.ReLU(), nn.Conv2d(8, 4, 1)),
    Residual,
    lambda: attention,
    Raising,
    lambda: nn.Sequential(nn.Conv2d(3, 4, 3), nn.Dropout(), nn.Flatten(), nn.LazyLinear(5)),
    lambda: changes_its_input,
    lambda: never_runs,
)


def diagnose_one(index: int, *, compiled: bool) -> str:
    """
    One diagnosis of the series.

    Args:
        index: Which; from 0.
        compiled: Whether torch.compile takes part.

    Returns:
        How it ended: statuses of its trials, or the error's class.
    """
    model = KINDS[index % len(KINDS)]()
    x = torch.randn(1, 3, 8, 8)
    if isinstance(model, nn.Module):
        model(x)
    mode: Any = ("inference", "training")[index // (2 * len(KINDS)) % 2]
    choices = COMPILED if compiled else EAGER
    try:
        diagnosis = layoutdoctor.diagnose(
            model, x, mode=mode, configurations=choices[index % len(choices)], budget_seconds=0.02, isolate=False
        )
    except LayoutDoctorError as error:
        return type(error).__name__
    return " ".join(trial.status for trial in diagnosis.trials)


def figures() -> dict[str, int]:
    """What the process holds now, once nothing waits to be collected."""
    from torch._dynamo import convert_frame

    gc.collect()
    seen = [weak() for weak in getattr(convert_frame.input_codes, "seen", ())]
    return {
        "resident_bytes": _resident_bytes(),
        "object_count": len(gc.get_objects()),
        "descriptor_count": len(list(Path("/proc/self/fd").iterdir())),
        "thread_count": len(list(Path("/proc/self/task").iterdir())),
        "compiled_code_count": sum(code is not None for code in seen),
        "module_count": len(sys.modules),
        "source_line_file_count": len(linecache.cache),
    }


def _resident_bytes() -> int:
    status = Path("/proc/self/status").read_text(encoding="ascii")
    return 1024 * int(status.split("VmRSS:")[1].split()[0])


def run_series(
    count: int, *, compiled: bool, report: Callable[[str], None] = lambda text: None
) -> list[dict[str, Any]]:
    """
    Diagnoses one after the other, with what the process holds after each.

    Args:
        count: How many.
        compiled: Whether torch.compile takes part.
        report: Told each line.
    """
    rows: list[dict[str, Any]] = []
    for index in range(count):
        start = time.perf_counter()
        outcome = diagnose_one(index, compiled=compiled)
        rows.append({"outcome": outcome, "seconds": round(time.perf_counter() - start, 3), **figures()})
        report(f"{index + 1:4d}  {rows[-1]['resident_bytes'] / 2**20:7.1f} MiB  {outcome}")
    return rows


def growth(rows: Sequence[dict[str, Any]], name: str, warm_up: int = WARM_UP) -> tuple[float, float]:
    """
    How much a figure grows after the warm-up.

    Args:
        rows: Of a series.
        name: Of the figure.
        warm_up: Rows that do not count.

    Returns:
        The median of the first and of the last fifth of what counts: single rows differ by what is held between two
        collections.
    """
    values = [row[name] for row in rows[warm_up:]]
    part = max(len(values) // 5, 1)
    return statistics.median(values[:part]), statistics.median(values[-part:])


def objects_of_plain_compile(count: int = 6) -> float:
    """
    Python objects that one ``torch.compile`` leaves behind where layoutdoctor has no part in it.

    Torch 2.13 keeps a ``ShapeEnv`` with what belongs to it for every graph that it lowers, also after
    ``torch._dynamo.reset()``; nothing in Python refers to it.

    Args:
        count: Models to compile, each another one; two more go before.
    """
    import torch._dynamo

    objects = []
    for index in range(count + 2):
        model = nn.Sequential(nn.Conv2d(3, 5 + index, 3), nn.ReLU(), nn.Conv2d(5 + index, 4, 3))
        with torch.no_grad():
            torch.compile(model)(torch.randn(1, 3, 8, 8))
        del model
        torch._dynamo.reset()
        objects.append(figures()["object_count"])
    return (objects[-1] - objects[1]) / count


def main() -> None:
    """Runs the series and prints what grew."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--count", type=int, default=200)
    parser.add_argument("--eager", action="store_true", help="without torch.compile")
    parser.add_argument("--output", type=Path)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as cache, contextlib.ExitStack() as stack:
        stack.enter_context(_environment("TORCHINDUCTOR_CACHE_DIR", cache))
        start = time.perf_counter()
        rows = run_series(arguments.count, compiled=not arguments.eager, report=lambda line: print(line, flush=True))
        seconds = time.perf_counter() - start
        plain = None if arguments.eager else objects_of_plain_compile()
    table = []
    for name in FIGURES:
        early, late = growth(rows, name)
        diagnoses = (len(rows) - WARM_UP) * 0.8
        table.append((name, rows[0][name], early, late, late - early, (late - early) / diagnoses))
    headers = ("", "after the first", f"after {WARM_UP}", "at the end", "growth", "growth per diagnosis")
    print(tabulate(table, headers=headers, floatfmt=".1f"))
    if plain is not None:
        print(f"one torch.compile alone, after torch._dynamo.reset(): {plain:.1f} objects")
    print(f"{len(rows)} diagnoses in {seconds:.0f} s, torch {torch.__version__}")
    if arguments.output is not None:
        record = {
            "torch": torch.__version__,
            "compiled": not arguments.eager,
            "seconds": round(seconds, 1),
            "objects_of_plain_compile": plain,
            "growth": {name: {"early": early, "late": late} for name, _, early, late, *_ in table},
            "rows": rows,
        }
        arguments.output.write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")


@contextlib.contextmanager
def _environment(name: str, value: str) -> Iterator[None]:
    before = os.environ.get(name)
    os.environ[name] = value
    try:
        yield
    finally:
        if before is None:
            del os.environ[name]
        else:
            os.environ[name] = before


if __name__ == "__main__":
    main()
