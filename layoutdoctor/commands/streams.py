"""Standard output, standard error and progress; no escape sequence of a model, a trace or a message passes them."""

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
"""Longer lines are hard to read, whatever the terminal's width."""

_SILENT_SECONDS = 8.0  # a stage that only counts on is shown again after so long
_COMMAND = re.compile(r"^([^\S\n]*)::", re.MULTILINE)
_ACTS_ON_A_TERMINAL = re.compile(r"[\x00-\x08\x0b-\x1a\x1c-\x1f\x7f-\x9f]|\x1b(?!\[[0-9;]*m)")
"""Control characters but line breaks, tabs and the sequences of colours and weight."""

logger = logging.getLogger("layoutdoctor")
"""Notes (info), which ``-q`` leaves out, and further ones that only ``-v`` shows (debug)."""


class OutputError(LayoutDoctorError):
    """A report could not be written after all (exit status 3)."""


def say(*lines: str) -> None:
    """
    Lines on standard error, also with ``-q``: an error, a warning, why the command ends as it does.

    What cannot be written is lost: progress that nobody can read costs no diagnosis.
    """
    from layoutdoctor.reports.sections.wording import clean_line  # late: if nothing is said it is not needed

    shown = "\n".join(map(clean_line, lines))
    try:
        print(f"layoutdoctor: {shown}", file=sys.stderr, flush=True)
    except OSError:
        silence(sys.stderr)


def say_error(error: object) -> None:
    """The sentence of an error, on one line whatever it quotes."""
    say(f"error: {' '.join(str(error).split())}")


class _Saying(logging.Handler):
    def emit(self, record: logging.LogRecord) -> None:
        say(record.getMessage())


@contextlib.contextmanager
def logging_to_stderr(*, quiet: bool, verbose: bool) -> Iterator[None]:
    """Meanwhile standard error shows the log: notes; with ``-q`` none of them, with ``-v`` more."""
    before = logger.handlers, logger.level, logger.propagate
    logger.handlers, logger.propagate = [_Saying()], False
    logger.setLevel(logging.WARNING if quiet else logging.DEBUG if verbose else logging.INFO)
    try:
        yield
    finally:
        logger.handlers, level, logger.propagate = before
        logger.setLevel(level)


def terminal_width() -> int | None:
    """Characters per line of the report on standard output; None if that is no terminal."""
    return min(shutil.get_terminal_size().columns, WIDEST_REPORT) if sys.stdout.isatty() else None


def print_text(text: str) -> None:
    """Text to standard output, as far as its encoding can show it; a reader that went away is no error."""
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
    A report as a CI service may show it: no line of it is taken for a command of the service.

    In JSON nothing changes but how it is written.

    Source:
        GitHub's runner takes a line that begins with ``::name`` for a command, and an old form of it,
        ``##[name]``, anywhere (actions/runner, ActionCommand.cs).
    """
    text = _COMMAND.sub(r"\1: :", text)
    return text.replace("##[", "\\u0023#[" if text.startswith("{") else "# #[")


def open_standard_streams() -> None:
    """
    Opens the standard streams that this process was started without (``>&-``), on nothing.

    Otherwise the next file to be opened takes the number of a standard stream, and a child's words go into it.
    """
    for number in range(3):
        try:
            os.fstat(number)
        except OSError:
            os.open(os.devnull, os.O_RDWR)  # takes the lowest free number, which is this one
    sys.stdout = sys.stdout or Path(os.devnull).open("w", encoding="utf-8")  # noqa: SIM115
    sys.stderr = sys.stderr or Path(os.devnull).open("w", encoding="utf-8")  # noqa: SIM115


def silence(stream: TextIO) -> None:
    """Gives a stream that cannot be written somewhere to go: Python flushes the standard ones once more as it ends."""
    with contextlib.suppress(OSError, ValueError):
        number = stream.fileno()
        null = os.open(os.devnull, os.O_WRONLY)
        os.dup2(null, number)
        os.close(null)


@contextlib.contextmanager
def showing_progress(*, quiet: bool) -> Iterator[Callable[[Progress], None]]:
    """A function that shows each step: by a bar on a terminal, else by plain lines; it shows nothing if quiet."""
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
    """Plain lines: one for each stage, and another one if the stage still counts on after eight seconds."""

    def __init__(self) -> None:
        self._stage, self._shown = "", -math.inf

    def show(self, progress: Progress) -> None:
        stage = re.sub(r"\d+", "#", progress.stage)
        if stage != self._stage or time.monotonic() - self._shown > _SILENT_SECONDS:
            self._stage, self._shown = stage, time.monotonic()
            share = 100 * progress.done // max(progress.total, 1)
            say(f"[{share:3d} %] {progress.stage}{_estimate(progress)}")


def _estimate(progress: Progress) -> str:
    """About how long it will still take, in the words of a person."""
    if not progress.left_seconds:
        return ""
    left = progress.left_seconds
    return f", about {round(left / 60)} min left" if left >= 90 else f", about {max(5, 5 * round(left / 5))} s left"
