"""Runs a user's script in its own process, to save calls of a module, to list the modules, or to record steps."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import msgspec

from layoutdoctor import errors
from layoutdoctor.errors import LayoutDoctorError, SubjectError, TransportError
from layoutdoctor.workers.endings import how_it_ended
from layoutdoctor.workers.messages import Message
from layoutdoctor.workers.processes import kill_with_all_it_started, working_folder

_CODE = """\
import json, sys
sys.path[:] = json.loads(sys.argv[1])
from layoutdoctor.workers.processes import guard
guard(int(sys.argv[2]), sys.argv[3])
from layoutdoctor.run.program import main
main(sys.argv[3:])"""
_OUTCOME = "outcome.json"


class Asked(Message, frozen=True, kw_only=True):
    """
    The purpose of a run of a script: to save the calls of a module, to list the modules, or to record steps.

    Attributes:
        module: The module, such as ``pipe.vae.decoder``. None without ``steps`` lists the modules. None with ``steps``
            takes as steps those of the optimizer or, without an optimizer, the calls of the busiest module.
        call_count: Number of calls after which the script is ended; the first call of each kind is saved.
        steps: Number of steps to record; no call is saved then. None records no steps.
        ends: Whether the script is ended after the recorded steps.
    """

    module: str | None = None
    call_count: int = 1
    steps: int | None = None
    ends: bool = True


class ModuleTime(Message, frozen=True, kw_only=True):
    """
    A module with convolutions that a script called.

    Attributes:
        name: The module as the script could write it, such as ``pipe.vae.decoder``.
        share: The module's share of the script's time, from 0 to 1, including the modules that it calls.
    """

    name: str
    convolution_count: int
    call_count: int
    share: float


class KindOfCall(Message, frozen=True, kw_only=True):
    """
    Calls of a module with inputs of the same shapes.

    Attributes:
        shapes: Shapes of the inputs in words, such as ``[1, 4, 64, 64]``.
        folder: Name of the folder with the module and the inputs of the first such call.
    """

    shapes: str
    folder: str
    call_count: int = 1


class Outcome(Message, frozen=True, kw_only=True):
    """
    The outcome of a script.

    Attributes:
        kind: Name of the error's class; None without an error.
        message: The error's text. Without an error, the reason why fewer calls or steps were recorded than asked for.
        calls: The kinds of call that were saved, in the order in which they came.
        modules: The list of modules, the longest time first.
        recording: Name of the file with the recording of the steps; None if no steps were asked for.
    """

    kind: str | None = None
    message: str | None = None
    calls: tuple[KindOfCall, ...] = ()
    modules: tuple[ModuleTime, ...] = ()
    recording: str | None = None

    @classmethod
    def of_error(cls, error: LayoutDoctorError) -> Outcome:
        """Makes the outcome of an error, which ``run_script`` raises again."""
        return cls(kind=type(error).__name__, message=str(error))

    def write(self, directory: Path) -> None:
        """Writes the file that ``run_script`` reads; the file is complete or absent."""
        part = directory / f"{_OUTCOME}.part"
        part.write_bytes(msgspec.json.encode(self))
        part.replace(directory / _OUTCOME)


def run_script(script: Path, asked: Asked, arguments: Sequence[str], directory: Path) -> Outcome:
    """
    Runs a script until everything asked for is recorded. Its output goes to stderr.

    Args:
        directory: An empty folder, for modules and recordings.

    Raises:
        LayoutDoctorError: The script cannot be started, fails or never calls the module, or the module cannot be saved.
    """
    words = [str(os.getpid()), str(directory), msgspec.json.encode(asked).decode(), str(script), *arguments]
    try:
        process = subprocess.Popen(
            [sys.executable, "-c", _CODE, json.dumps(sys.path), *words],
            stdin=subprocess.DEVNULL,
            stdout=2,
            cwd=working_folder(directory),
            start_new_session=True,
        )
    except (OSError, ValueError) as error:
        raise TransportError(f"cannot start a process for {script.name}: {error}") from error
    try:
        returncode = process.wait()
    except BaseException:
        kill_with_all_it_started(process.pid)
        process.wait()
        raise
    try:
        outcome = msgspec.json.decode((directory / _OUTCOME).read_bytes(), type=Outcome)
    except FileNotFoundError:
        before = "" if asked.module is None else f", before {asked.module} was called"
        raise SubjectError(f"cannot run {script.name}: {how_it_ended(returncode)}{before}") from None
    if outcome.kind is not None:
        raise getattr(errors, outcome.kind)(outcome.message)
    return outcome
