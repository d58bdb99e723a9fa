"""The standard streams: what is printed, what is said beside it, progress, and streams that cannot be written."""

from __future__ import annotations

import contextlib
import logging
import math
import os
import re
import shutil
import sys
import threading
import time
from typing import TYPE_CHECKING, TextIO, cast

from layoutdoctor.errors import LayoutDoctorError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from layoutdoctor.workers.messages import Progress

WIDEST_REPORT = 140
"""Longer lines are hard to read, whatever the terminal's width."""

_SILENT_SECONDS = 8.0  # a stage that only counts on is shown again after so long
_COMMAND = re.compile(r"^([^\S\n]*)::", re.MULTILINE)

logger = logging.getLogger("layoutdoctor")
"""Notes (info), which ``-q`` leaves out, and what only ``-v`` shows (debug); errors and warnings are ``said``."""


class OutputError(LayoutDoctorError):
    """A report could not be written after all (exit status 3)."""


def say(text: str) -> None:
    """
    One line on standard error, also with ``-q``: an error, a warning, why the command ends as it does.

    Args:
        text: Cleaned already.
    """
    print(f"layoutdoctor: {text}", file=sys.stderr, flush=True)


@contextlib.contextmanager
def logging_to_stderr(*, quiet: bool, verbose: bool) -> Iterator[None]:
    """Meanwhile standard error shows the log: notes; with ``-q`` none of them, with ``-v`` more."""
    before = logger.handlers, logger.level, logger.propagate
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(logging.Formatter("layoutdoctor: %(message)s"))
    logger.handlers, logger.propagate = [handler], False
    logger.setLevel(logging.WARNING if quiet else logging.DEBUG if verbose else logging.INFO)
    try:
        yield
    finally:
        logger.handlers, level, logger.propagate = before
        logger.setLevel(level)


def wants_colour(stream: TextIO, environment: Mapping[str, str] | None = None) -> bool:
    """
    Whether a stream is to get colours.

    ``NO_COLOR`` set to anything wins; then ``FORCE_COLOR`` (``0`` is no); else a terminal that is not dumb gets them.

    Args:
        stream: Where the report goes.
        environment: Environment variables; those of this process if None.

    Source:
        https://no-color.org, https://force-color.org
    """
    variables = os.environ if environment is None else environment
    if variables.get("NO_COLOR"):
        return False
    if variables.get("FORCE_COLOR"):
        return variables["FORCE_COLOR"] != "0"
    return stream.isatty() and variables.get("TERM") != "dumb"


def terminal_width() -> int | None:
    """Characters per line of the report on standard output; None where that is no terminal."""
    return min(shutil.get_terminal_size().columns, WIDEST_REPORT) if sys.stdout.isatty() else None


def print_text(text: str) -> None:
    """
    Text to standard output, as far as its encoding can show it; a reader that went away is no error.

    Raises:
        OutputError: It could not be written, as where the disk is full.
    """
    encoding = sys.stdout.encoding or "utf-8"
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

    Otherwise the next file to be opened takes the number of a standard stream, and gets what is written to that.
    """
    for number in range(3):
        try:
            os.fstat(number)
        except OSError:
            null = os.open(os.devnull, os.O_RDWR)  # takes the lowest free number, which is this one
            if null != number:
                os.dup2(null, number)
                os.close(null)
    if sys.stdout is None:
        sys.stdout = open(1, "w", encoding="utf-8", closefd=False)  # noqa: SIM115
    if sys.stderr is None:
        sys.stderr = open(2, "w", encoding="utf-8", errors="backslashreplace", closefd=False)  # noqa: SIM115


def silence(stream: TextIO) -> None:
    """Gives a stream that cannot be written somewhere to go: Python flushes the standard ones once more as it ends."""
    with contextlib.suppress(OSError, ValueError):
        number = stream.fileno()
        null = os.open(os.devnull, os.O_WRONLY)
        os.dup2(null, number)
        os.close(null)


class _Lossy:
    """A stream that loses what it cannot write, as on a full disk or to a reader that went away."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream

    def write(self, text: str) -> int:
        try:
            return self._stream.write(text)
        except OSError:
            silence(self._stream)
            return len(text)

    def flush(self) -> None:
        try:
            self._stream.flush()
        except OSError:
            silence(self._stream)

    def __getattr__(self, name: str) -> object:
        return getattr(self._stream, name)


@contextlib.contextmanager
def lossy_stderr() -> Iterator[None]:
    """Meanwhile standard error loses what cannot be written: progress that nobody can read costs no diagnosis."""
    stream = sys.stderr
    sys.stderr = cast("TextIO", _Lossy(stream))
    try:
        yield
    finally:
        sys.stderr = stream


@contextlib.contextmanager
def showing_progress(*, quiet: bool) -> Iterator[Callable[[Progress], None]]:
    """What shows each step: on a terminal a bar that is gone at the end, plain lines elsewhere, nothing if quiet."""
    if quiet:
        yield lambda progress: None
        return
    from rich.console import Console

    from layoutdoctor.reports.sections.wording import clean

    console = Console(stderr=True)
    if not console.is_terminal or console.is_dumb_terminal:
        with _Lines() as lines:
            yield lines.show
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
    """Plain lines: one for each stage, and one more after eight seconds of silence."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._ended = threading.Event()
        self._stage, self._shown = "", -math.inf
        self._latest: Progress | None = None
        self._thread = threading.Thread(target=self._break_silence, daemon=True)

    def __enter__(self) -> _Lines:
        self._thread.start()
        return self

    def __exit__(self, *exception: object) -> None:
        self._ended.set()
        self._thread.join()

    def show(self, progress: Progress) -> None:
        """Prints a line if the stage is another one, or nothing was printed for a while."""
        with self._lock:
            self._latest = progress
            stage = re.sub(r"\d+", "#", progress.stage)  # a stage that only counts on is still the same
            if stage != self._stage or time.monotonic() - self._shown > _SILENT_SECONDS:
                self._stage = stage
                self._say(progress)

    def _say(self, progress: Progress) -> None:
        from layoutdoctor.reports.sections.wording import clean

        self._shown = time.monotonic()
        share = 100 * progress.done // max(progress.total, 1)
        say(f"[{share:3d} %] {clean(progress.stage)}{_estimate(progress)}")

    def _break_silence(self) -> None:
        while not self._ended.wait(1.0):
            with self._lock:
                if self._latest is not None and time.monotonic() - self._shown > _SILENT_SECONDS:
                    self._say(self._latest)


def _estimate(progress: Progress) -> str:
    """About how long it will still take, in the words of a person."""
    if progress.left_seconds is None:
        return ""
    left = progress.left_seconds
    return f", about {round(left / 60)} min left" if left >= 90 else f", about {max(5, 5 * round(left / 5))} s left"
