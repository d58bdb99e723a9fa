"""Runs a reproducer before it is handed out, so that a report says what it really printed."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from layoutdoctor.commands.output import path_of_target
from layoutdoctor.diagnosis.records import Reproduction
from layoutdoctor.reports.reproducer.report import build_reproducer
from layoutdoctor.reports.reproducer.script import COUNTS_REPRODUCED, NOT_REPRODUCED, REPRODUCED
from layoutdoctor.workers.processes import kill_with_all_it_started

if TYPE_CHECKING:
    from collections.abc import Sequence

    from layoutdoctor.commands.output import OutputFile
    from layoutdoctor.diagnosis.records import Diagnosis
    from layoutdoctor.reports.reproducer.report import Source

SHOWN_IN = ("markdown", "reproducer")
"""The reports that hold a reproducer to be pasted."""

LIMIT_SECONDS = 600.0
_MOST_LINES = 12
_SOURCES: tuple[Source, ...] = ("operations", "file")


def is_wanted(outputs: Sequence[OutputFile], diagnosis: Diagnosis) -> bool:
    """Whether a report will hold a reproducer that can be run here."""
    return any(output.report_format in SHOWN_IN for output in outputs) and build_reproducer(diagnosis).is_runnable


def with_reproduction(diagnosis: Diagnosis, target: str) -> Diagnosis:
    """
    The diagnosis with what its reproducer printed: the first script that shows what was recorded, else the first.

    Args:
        diagnosis: As it was measured on this machine.
        target: As it was given on the command line.
    """
    begin = time.monotonic()
    tried: list[Reproduction] = []
    for source in _SOURCES:
        reproducer = build_reproducer(diagnosis, source)
        if reproducer.source == source:
            tried.append(run_reproducer(reproducer.script, source, target))
            if tried[-1].reproduced or tried[-1].printed.endswith(COUNTS_REPRODUCED):
                break
    best = next((one for one in reversed(tried) if one.reproduced), tried[0] if tried else None)
    stages = diagnosis.stage_seconds | {"running the reproducer": time.monotonic() - begin}
    return msgspec.structs.replace(diagnosis, reproduction=best, stage_seconds=stages)


def run_reproducer(script: str, source: Source, target: str, limit_seconds: float = LIMIT_SECONDS) -> Reproduction:
    """
    Runs a script in a folder of its own, beside which the user's file lies by a link.

    Args:
        script: What ``build_reproducer`` made.
        source: What it takes the model from.
        target: As it was given on the command line.
        limit_seconds: Then it is ended, with all that it started.
    """
    path = path_of_target(target).absolute()
    with tempfile.TemporaryDirectory(prefix="layoutdoctor-") as folder:
        here = Path(folder, "reproducer.py")
        here.write_text(script, encoding="utf-8")
        if path.is_file():
            Path(folder, path.name).symlink_to(path)
        found = os.pathsep.join([str(path.parent), str(Path.cwd()), os.environ.get("PYTHONPATH", "")]).rstrip(
            os.pathsep
        )
        process = subprocess.Popen(
            [sys.executable, str(here)],
            cwd=folder,
            env={**os.environ, "PYTHONPATH": found},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            errors="replace",
        )
        try:
            printed, problem = process.communicate(timeout=limit_seconds)
        except subprocess.TimeoutExpired:
            _end(process)
            return Reproduction(source=source, printed=f"ended after {limit_seconds:.0f} s", reproduced=None)
        except BaseException:
            _end(process)
            raise
    verdict = {REPRODUCED: True, NOT_REPRODUCED: False}.get(printed.rstrip().rpartition("\n")[2])
    shown = printed if verdict is not None or process.returncode == 0 else f"{printed}{problem}"
    lines = [line for line in shown.splitlines() if line.strip()]
    return Reproduction(source=source, printed="\n".join(lines[-_MOST_LINES:]), reproduced=verdict)


def _end(process: subprocess.Popen[str]) -> None:
    kill_with_all_it_started(process.pid)
    process.communicate()
