"""A user's script in a process of its own, until a module of it is called."""

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
    What a script is run for.

    Attributes:
        module: As in ``pipe.vae.decoder``; None lists the modules, or has the busiest one's calls as steps.
        call_count: How often it is to be called; of each kind of call the first is saved.
        steps: How many steps are recorded while the script runs, and nothing is saved; None records none.
        ends: Whether the script is ended after them.
    """

    module: str | None = None
    call_count: int = 1
    steps: int | None = None
    ends: bool = True


class ModuleTime(Message, frozen=True, kw_only=True):
    """
    A module with convolutions that a script called.

    Attributes:
        name: As the script could write it, such as ``pipe.vae.decoder``.
        share: Its share of the script's time; what it calls counts as its own.
    """

    name: str
    convolution_count: int
    call_count: int
    share: float


class KindOfCall(Message, frozen=True, kw_only=True):
    """
    Calls of a module with inputs of the same shapes.

    Attributes:
        shapes: In words, such as ``[1, 4, 64, 64]``.
        folder: Name of the folder with the module and the inputs of the first of these calls.
    """

    shapes: str
    folder: str
    call_count: int = 1


class Outcome(Message, frozen=True, kw_only=True):
    """
    The outcome of a script.

    Attributes:
        kind: The class of the error; None where the module was saved, or modules are listed.
        message: The error; of calls that were saved, why there are no more of them.
        calls: The kinds of call that were saved, in the order in which they came.
        modules: The list, the longest time first.
        recording: Name of the file with what was recorded of its steps.
    """

    kind: str | None = None
    message: str | None = None
    calls: tuple[KindOfCall, ...] = ()
    modules: tuple[ModuleTime, ...] = ()
    recording: str | None = None

    @classmethod
    def of_error(cls, error: LayoutDoctorError) -> Outcome:
        """The outcome of an error, which ``run_script`` raises again."""
        return cls(kind=type(error).__name__, message=str(error))

    def write(self, directory: Path) -> None:
        """Leaves it where ``run_script`` looks for it, whole or not at all."""
        part = directory / f"{_OUTCOME}.part"
        part.write_bytes(msgspec.json.encode(self))
        part.replace(directory / _OUTCOME)


def run_script(script: Path, asked: Asked, arguments: Sequence[str], directory: Path) -> Outcome:
    """
    Runs a script until what is asked for is there; what it prints goes to stderr.

    Args:
        arguments: The script's own.
        directory: An empty one of ours, where modules and recordings go.

    Raises:
        LayoutDoctorError: The script failed, never called the module, or the module cannot be saved.
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
