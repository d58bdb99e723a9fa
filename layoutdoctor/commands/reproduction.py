"""Runs a reproducer before it is handed out, so that a report says what it really printed."""

from __future__ import annotations

import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from layoutdoctor.diagnosis.diagnosis import Reproduction
from layoutdoctor.reports.reproducer import NOT_REPRODUCED, REPRODUCED, build_reproducer
from layoutdoctor.workers.processes import kill_with_all_it_started

if TYPE_CHECKING:
    from collections.abc import Sequence

    from layoutdoctor.commands.output import OutputFile
    from layoutdoctor.diagnosis.diagnosis import Diagnosis

LIMIT_SECONDS = 600.0
_MOST_LINES = 12


def is_wanted(outputs: Sequence[OutputFile], diagnosis: Diagnosis) -> bool:
    """Whether a report will hold a reproducer to be pasted that can be run here."""
    is_shown = any(output.report_format in ("markdown", "reproducer") for output in outputs)
    return is_shown and build_reproducer(diagnosis).is_runnable


def with_reproduction(diagnosis: Diagnosis) -> Diagnosis:
    """The diagnosis, as it was measured on this machine, with what its reproducer printed."""
    begin = time.monotonic()
    done = run_reproducer(build_reproducer(diagnosis).script)
    stages = diagnosis.stage_seconds | {"running the reproducer": time.monotonic() - begin}
    return msgspec.structs.replace(diagnosis, reproduction=done, stage_seconds=stages)


def run_reproducer(script: str, limit_seconds: float = LIMIT_SECONDS) -> Reproduction:
    """Runs a script in a folder of its own, and ends it and all that it started after so many seconds."""
    with tempfile.TemporaryDirectory(prefix="layoutdoctor-") as folder:
        here = Path(folder, "reproducer.py")
        here.write_text(script, encoding="utf-8")
        process = subprocess.Popen(
            [sys.executable, str(here)],
            cwd=folder,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            errors="replace",
        )
        try:
            printed, problem = process.communicate(timeout=limit_seconds)
        except subprocess.TimeoutExpired:
            return Reproduction(printed=f"ended after {limit_seconds:.0f} s", reproduced=None)
        finally:
            if process.returncode is None:
                kill_with_all_it_started(process.pid)
                process.communicate()
    verdict = {REPRODUCED: True, NOT_REPRODUCED: False}.get(printed.rstrip().rpartition("\n")[2])
    shown = printed if verdict is not None or process.returncode == 0 else f"{printed}{problem}"
    lines = [line for line in shown.splitlines() if line.strip()]
    return Reproduction(printed="\n".join(lines[-_MOST_LINES:]), reproduced=verdict)
