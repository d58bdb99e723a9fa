"""Writes to standard output and standard error, and shows progress, without escape sequences from models or traces."""

from __future__ import annotations

import contextlib
import logging
import math
import os
import re
import shutil
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, TextIO

from layoutdoctor.errors import LayoutDoctorError

if TYPE_CHECKING:
    from layoutdoctor.workers.messages import Progress

WIDEST_REPORT = 140
"""Largest number of characters per line, even on a wider terminal; longer lines are hard to read."""

_SILENT_SECONDS = 8.0  # a stage in which only the numbers change is shown again after this time
_COMMAND = re.compile(r"^([^\S\n]*)::", re.MULTILINE)
_ACTS_ON_A_TERMINAL = re.compile(r"[\x00-\x08\x0b-\x1a\x1c-\x1f\x7f-\x9f]|\x1b(?!\[[0-9;]*m)")
"""Control characters, except line breaks, tabs and the escape sequences of colours and font weight."""

logger = logging.getLogger("layoutdoctor")
"""Logger of notes: ``-q`` hides notes of level info, and only ``-v`` shows notes of level debug."""


class OutputError(LayoutDoctorError):
    """A report could not be written, although its file was writable at the start (exit status 3)."""


def say(*lines: str) -> None:
    """
    Prints lines to standard error, also with ``-q``: an error, a warning, the reason for the exit status.

    If standard error cannot be written, the lines are lost and the diagnosis goes on.
    """
    from layoutdoctor.reports.sections.wording import clean_line  # imported only if it is needed

    shown = "\n".join(map(clean_line, lines))
    try:
        print(f"layoutdoctor: {shown}", file=sys.stderr, flush=True)
    except OSError:
        silence(sys.stderr)


def say_error(error: object) -> None:
    """Prints the text of an error to standard error, in one line."""
    say(f"error: {' '.join(str(error).split())}")


class _Saying(logging.Handler):
    def emit(self, record: logging.LogRecord) -> None:
        say(record.getMessage())


@contextlib.contextmanager
def logging_to_stderr(*, quiet: bool, verbose: bool) -> Iterator[None]:
    """A block in which log records go to standard error: level info and above; warning if quiet, debug if verbose."""
    before = logger.handlers, logger.level, logger.propagate
    logger.handlers, logger.propagate = [_Saying()], False
    logger.setLevel(logging.WARNING if quiet else logging.DEBUG if verbose else logging.INFO)
    try:
        yield
    finally:
        logger.handlers, level, logger.propagate = before
        logger.setLevel(level)


def terminal_width() -> int | None:
    """Returns the number of characters per line for standard output; None if it is not a terminal."""
    return min(shutil.get_terminal_size().columns, WIDEST_REPORT) if sys.stdout.isatty() else None


def print_text(text: str) -> None:
    """
    Prints text to standard output; escapes control characters, and replaces characters outside the encoding.

    Raises:
        OutputError: Standard output cannot be written; a closed pipe is no error.
    """
    encoding = sys.stdout.encoding or "utf-8"
    text = _ACTS_ON_A_TERMINAL.sub(lambda match: match[0].encode("unicode_escape").decode(), text)
    text = without_workflow_commands(text) if os.environ.get("GITHUB_ACTIONS") else text
    try:
        sys.stdout.write(text.encode(encoding, "replace").decode(encoding))
        sys.stdout.flush()
    except BrokenPipeError:
        silence(sys.stdout)
    except OSError as error:
        silence(sys.stdout)
        raise OutputError(
            f"cannot write the report to standard output: {error.strerror or error}; name a file with --output"
        ) from error


def without_workflow_commands(text: str) -> str:
    """
    Changes a report so that GitHub's runner takes no line of it for a command.

    JSON keeps its meaning; only the spelling of a string changes.

    Source:
        GitHub's runner reads a line that begins with ``::name`` as a command, and an old form of it,
        ``##[name]``, anywhere (actions/runner, ActionCommand.cs).
    """
    text = _COMMAND.sub(r"\1: :", text)
    return text.replace("##[", "\\u0023#[" if text[:1] in ("{", "[") else "# #[")


def open_standard_streams() -> None:
    """
    Opens each missing standard stream of this process (``>&-``) on the null device.

    Otherwise the next opened file gets the number of a standard stream, and output of a child goes into this file.
    """
    for number in range(3):
        try:
            os.fstat(number)
        except OSError:
            os.open(os.devnull, os.O_RDWR)  # gets the lowest free number, which is ``number``
    sys.stdout = sys.stdout or Path(os.devnull).open("w", encoding="utf-8")  # noqa: SIM115
    sys.stderr = sys.stderr or Path(os.devnull).open("w", encoding="utf-8")  # noqa: SIM115


def silence(stream: TextIO) -> None:
    """Redirects a stream that cannot be written to the null device, because Python flushes it once more at exit."""
    with contextlib.suppress(OSError, ValueError):
        number = stream.fileno()
        null = os.open(os.devnull, os.O_WRONLY)
        os.dup2(null, number)
        os.close(null)


@contextlib.contextmanager
def showing_progress(*, quiet: bool) -> Iterator[Callable[[Progress], None]]:
    """A block with a function that shows progress: a bar on a terminal, plain lines elsewhere, nothing if quiet."""
    if quiet:
        yield lambda progress: None
        return
    from rich.console import Console

    from layoutdoctor.reports.sections.wording import clean

    console = Console(stderr=True)
    if not console.is_terminal or console.is_dumb_terminal:
        yield _Lines().show
        return
    from rich.progress import BarColumn, TaskProgressColumn, TextColumn, TimeElapsedColumn
    from rich.progress import Progress as Bar

    columns = (TextColumn("{task.description}", markup=False), BarColumn(), TaskProgressColumn(), TimeElapsedColumn())
    with Bar(*columns, console=console, transient=True, redirect_stdout=False) as bar:
        task = bar.add_task("starting", total=100)
        yield lambda step: bar.update(
            task, description=f"{clean(step.stage)}{_estimate(step)}", completed=step.done, total=step.total
        )


class _Lines:
    """Shows progress in plain lines: one line for each stage, and another one if the stage goes on for long."""

    def __init__(self) -> None:
        self._stage, self._shown = "", -math.inf

    def show(self, progress: Progress) -> None:
        stage = re.sub(r"\d+", "#", progress.stage)
        if stage != self._stage or time.monotonic() - self._shown > _SILENT_SECONDS:
            self._stage, self._shown = stage, time.monotonic()
            share = 100 * progress.done // max(progress.total, 1)
            say(f"[{share:3d} %] {progress.stage}{_estimate(progress)}")


def _estimate(progress: Progress) -> str:
    if not progress.left_seconds:
        return ""
    left = progress.left_seconds
    return f", about {round(left / 60)} min left" if left >= 90 else f", about {max(5, 5 * round(left / 5))} s left"
