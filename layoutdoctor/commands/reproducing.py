"""Runs the reproducer of a report, and keeps its output."""

from __future__ import annotations

import contextlib
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from layoutdoctor.commands.output import path_of_target
from layoutdoctor.commands.signals import Interrupted
from layoutdoctor.commands.streams import say, showing_progress
from layoutdoctor.diagnosis import Diagnosis, Reproduction
from layoutdoctor.errors import TransportError
from layoutdoctor.files.scratch import private_directory
from layoutdoctor.reports.reproducer import build_reproducer
from layoutdoctor.workers.messages import Progress
from layoutdoctor.workers.processes import kill_with_all_it_started

if TYPE_CHECKING:
    from layoutdoctor.commands.output import OutputFile

_REPRODUCER_SECONDS = 600.0
_MOST_LINES = 12


def with_reproduction(diagnosis: Diagnosis, outputs: Sequence[OutputFile], target: str, *, quiet: bool) -> Diagnosis:
    """
    Runs the reproducer and adds its output to the diagnosis.

    The script runs only if ``outputs`` has a reproducer or a Markdown report. An interrupted script adds nothing.

    Args:
        target: The target as on the command line, for a script that loads the model from the target's file.
    """
    if not any(output.report_format in ("markdown", "reproducer") for output in outputs):
        return diagnosis
    reproducer = build_reproducer(diagnosis)
    if not reproducer.is_runnable:
        return diagnosis
    file = path_of_target(target).absolute() if reproducer.file is not None else None
    begin = time.monotonic()
    try:
        with showing_progress(quiet=quiet) as display:
            display(Progress(stage="running the reproducer", done=99))
            done = run_reproducer(reproducer.script, file)
    except (Interrupted, OSError, TransportError) as error:
        say(f"the reproducer was not run to its end: {error}")
        return diagnosis
    stages = diagnosis.stage_seconds | {"running the reproducer": time.monotonic() - begin}
    return msgspec.structs.replace(diagnosis, reproduction=done, stage_seconds=stages)


class _Verdict(msgspec.Struct, frozen=True):
    """The content of the last line that a reproducer prints."""

    reproduced: bool | None = None
    given_back: tuple[float, float, float] | None = None


def run_reproducer(script: str, file: Path | None = None, limit_seconds: float = _REPRODUCER_SECONDS) -> Reproduction:
    """
    Runs a script in a folder of its own; at the time limit, ends the script and all processes that it started.

    Args:
        file: File of the model, for a script that loads the model from a file.
    """
    with private_directory() as folder:
        here = Path(folder, "reproducer.py")
        here.write_text(script, encoding="utf-8")
        process = subprocess.Popen(
            [sys.executable, str(here), *([] if file is None else [str(file)])],
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
    lines = [line for line in printed.splitlines() if line.strip()]
    verdict = _Verdict()
    with contextlib.suppress(msgspec.DecodeError, IndexError):
        verdict = msgspec.json.decode(lines[-1], type=_Verdict)
        del lines[-1]
    if verdict.reproduced is None and process.returncode != 0:
        lines += [line for line in problem.splitlines() if line.strip()]
    printed = "\n".join(lines[-_MOST_LINES:])
    return Reproduction(printed=printed, reproduced=verdict.reproduced, given_back=verdict.given_back)
