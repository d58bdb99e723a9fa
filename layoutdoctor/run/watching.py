"""Shows a diagnosis under way: progress from 0 to 100, new rows of the table, and the recordings so far."""

from __future__ import annotations

import contextlib
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from datetime import datetime, timezone
from typing import TYPE_CHECKING, Any

import msgspec

from layoutdoctor.workers.messages import Progress

if TYPE_CHECKING:
    from layoutdoctor.recording.recording import Recording

# Percentage of a diagnosis at which each stage ends, for usual models; a stage begins at the end of the stage before.
_ENDS = {
    "loading the model": 15,
    "running the model in eager mode": 16,
    "compiling": 52,
    "checking outputs": 54,
    "timing all configurations in turns": 67,
    "timing the best again in further processes": 86,
    "profiling": 98,
    "looking for findings": 100,
}
_COMPILING_FROM = _ENDS["running the model in eager mode"]  # no time can be estimated until a configuration is ready
_LONGEST_LINE = 100


def now() -> str:
    """Returns the present time in UTC, in the format of ISO 8601."""
    return datetime.now(timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ")


class Watch:
    """
    Shows progress and results, and keeps the time of each stage.

    Attributes:
        latest: The recordings that were shown last.
        loaded_files: The user's source files that the subject has imported.

    Args:
        progress: Function that is called at every step.
        on_more: Function that ``show`` calls after it has changed ``latest``.
        on_table: Function that is called with the recordings of a first table, whose times are provisional.
        lost: Recordings of configurations that failed before the diagnosis was resumed; shown, but not tried again.
    """

    def __init__(
        self,
        progress: Callable[[Progress], None],
        on_more: Callable[[], None] = lambda: None,
        on_table: Callable[[Sequence[Recording]], None] = lambda recordings: None,
        lost: Sequence[Recording] = (),
    ) -> None:
        self.latest: tuple[Recording, ...] = ()
        self.loaded_files: tuple[str, ...] = ()
        self.progress, self._on_more, self._on_table, self._lost = progress, on_more, on_table, lost
        self._stage, self._began, self._first = "", time.monotonic(), time.monotonic()
        self._seconds: dict[str, float] = {}
        self._percent = 0.0

    def begin(self, stage: str) -> None:
        """Begins a stage, and ends the stage before."""
        self._end_stage()
        self._stage = stage
        self.step(0.0)

    def _end_stage(self) -> None:
        moment = time.monotonic()
        if self._stage:
            self._seconds[self._stage] = round(self._seconds.get(self._stage, 0.0) + moment - self._began, 2)
        self._began = moment

    def step(self, share: float, text: str = "") -> None:
        """
        Reports progress in the present stage; the reported percentage never decreases.

        Args:
            share: Share of the stage that is done, from 0 to 1.
            text: The share in words, such as ``2 of 9``.
        """
        number = [*_ENDS].index(self._stage)
        low, high = [0, *_ENDS.values()][number : number + 2]
        self._percent = max(self._percent, low + (high - low) * min(share, 1.0))
        elapsed = time.monotonic() - self._first
        left = elapsed * (100 - self._percent) / self._percent if self._percent > _COMPILING_FROM else None
        stage = f"{self._stage}: {text}" if text else self._stage
        self.progress(Progress(stage=stage, done=int(self._percent), left_seconds=left))

    def provisional(self, recordings: Sequence[Recording]) -> None:
        """Shows a first table with the recordings that have times."""
        self._on_table([one for one in recordings if one.trial.measurement is not None])

    def show(self, recordings: Sequence[Recording]) -> None:
        """Shows the recordings so far."""
        self.latest = self._whole(recordings)
        self._on_more()

    def _whole(self, recordings: Sequence[Recording], **changes: Any) -> tuple[Recording, ...]:
        """Adds the ``lost`` recordings whose configurations were not tried again, and gives all the same head."""
        head = recordings[0].head
        lost = [one for one in self._lost if one.name not in head.configurations]
        names = (*head.configurations, *(one.name for one in lost))
        head = msgspec.structs.replace(head, configurations=names, **changes)
        return tuple(msgspec.structs.replace(one, head=head) for one in (*recordings, *lost))

    def finished(self, recordings: Sequence[Recording]) -> tuple[Recording, ...]:
        """Returns all recordings of the diagnosis, with the time of each stage."""
        self._end_stage()
        self._stage = ""
        self.latest = self._whole(recordings, stage_seconds=dict(self._seconds))
        return self.latest


# ---------------------------------------------------------------------------------------------- from Python
@contextlib.contextmanager
def showing(progress: Callable[[Progress], None] | None) -> Iterator[Callable[[Progress], None]]:
    """
    A block with a progress function: the caller's own function ``progress`` if it is not None.

    Otherwise the function writes one line in a notebook or on a terminal, which is removed after the block. Without
    both, the function does nothing.
    """
    if progress is not None:
        yield progress
        return
    write = _in_a_notebook() or _on_a_terminal()
    try:
        yield lambda step: write(f"layoutdoctor: [{step.done}/{step.total}] {step.stage}"[:_LONGEST_LINE])
    finally:
        write("")


def _on_a_terminal() -> Callable[[str], None]:
    stream = sys.stderr
    if stream is None or not stream.isatty():
        return lambda line: None

    def write(line: str) -> None:
        with contextlib.suppress(OSError, ValueError):  # the diagnosis goes on if the terminal was closed
            stream.write(f"\r\x1b[K{line}")
            stream.flush()

    return write


def _in_a_notebook() -> Callable[[str], None] | None:
    shell = getattr(sys.modules.get("IPython"), "get_ipython", lambda: None)()
    if shell is None or not hasattr(shell, "kernel"):
        return None
    from IPython.display import display

    show: Any = display
    handle = show({"text/plain": ""}, raw=True, display_id=True)
    return lambda line: handle.update({"text/plain": line}, raw=True)
