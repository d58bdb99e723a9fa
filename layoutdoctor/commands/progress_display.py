"""
How a diagnosis shows its progress: a bar on a terminal, plain lines elsewhere, nothing when asked to be quiet.

Everything goes to standard error; standard output is the report's. Faces the diagnose command.
"""

from __future__ import annotations

import re
import sys
from typing import TYPE_CHECKING

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeElapsedColumn
from rich.progress import Progress as ProgressBar

from layoutdoctor.reports.sections.wording import clean

if TYPE_CHECKING:
    from types import TracebackType

    from layoutdoctor.progress import Progress


class QuietDisplay:
    """Shows nothing; also the shape of a display: a context that is called with each step."""

    def __enter__(self) -> QuietDisplay:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        return None

    def __call__(self, progress: Progress) -> None:
        """
        Shows one step.

        Args:
            progress: What is being done.
        """


class LineDisplay(QuietDisplay):
    """One line for each new stage."""

    def __init__(self) -> None:
        self._stage = ""

    def __call__(self, progress: Progress) -> None:
        """
        Writes a line, unless the stage is still the same.

        Args:
            progress: What is being done.
        """
        stage = re.sub(r"\d+", "#", progress.stage)  # a stage that only counts on is still the same
        if stage == self._stage:
            return
        self._stage = stage
        print(f"layoutdoctor: [{progress.done}/{progress.total}] {clean(progress.stage)}", file=sys.stderr, flush=True)


class BarDisplay(QuietDisplay):
    """A bar that stays on one line and is gone at the end."""

    def __init__(self, console: Console) -> None:
        self._bar = ProgressBar(
            TextColumn("{task.description}", markup=False),
            BarColumn(),
            MofNCompleteColumn(),
            TimeElapsedColumn(),
            console=console,
            transient=True,
            redirect_stdout=False,
        )
        self._task = self._bar.add_task("starting", total=None)

    def __enter__(self) -> BarDisplay:
        self._bar.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._bar.stop()

    def __call__(self, progress: Progress) -> None:
        """
        Moves the bar.

        Args:
            progress: What is being done.
        """
        self._bar.update(self._task, description=clean(progress.stage), completed=progress.done, total=progress.total)


def choose_display(*, quiet: bool) -> QuietDisplay:
    """
    The display that fits standard error.

    Args:
        quiet: True for none.
    """
    if quiet:
        return QuietDisplay()
    console = Console(stderr=True)
    return BarDisplay(console) if console.is_terminal and not console.is_dumb_terminal else LineDisplay()
