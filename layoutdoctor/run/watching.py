"""Whoever follows a diagnosis: progress from 0 to 100, rows as they come, and what was seen until now."""

from __future__ import annotations

import time
from datetime import datetime, timezone
from typing import TYPE_CHECKING, Any

import msgspec

from layoutdoctor.examination.examine import diagnosis_of
from layoutdoctor.workers.messages import Progress

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from layoutdoctor.diagnosis.records import Diagnosis
    from layoutdoctor.examination.examine import Examined
    from layoutdoctor.recording.recording import Recording

# Where in the whole run a stage begins and ends, in percent: as usual models take.
_SHARES = {
    "loading the model": (0, 15),
    "running the model in eager mode": (15, 16),
    "compiling": (16, 52),
    "checking outputs": (52, 54),
    "timing all configurations in turns": (54, 67),
    "timing the best again in further processes": (67, 86),
    "profiling": (86, 89),
    "timing with the allocator's own settings": (89, 98),
    "looking for findings": (98, 100),
}


def _same(one: Recording, other: Recording) -> bool:
    """Whether nothing has come to a recording that its examination looks at; times are none of it."""
    return (
        one.name == other.name
        and one.trial.graphs is other.trial.graphs
        and one.iterations is other.iterations
        and one.head.environment.copy_bandwidth_bytes_per_second
        == other.head.environment.copy_bandwidth_bytes_per_second
    )


def now() -> str:
    """The time as records have it: UTC, ISO 8601."""
    return datetime.now(timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ")


class Watch:
    """
    Tells what is done, and keeps the time of each stage.

    Args:
        progress: Called at every step.
        on_trial: Called with the diagnosis so far whenever there is more of it.
        on_table: Called with the first table, whose times are provisional.
        lost: Configurations that failed in an earlier run and are not tried again; they are part of what is shown.

    Attributes:
        latest: Recordings of what was seen until now.
    """

    def __init__(
        self,
        progress: Callable[[Progress], None],
        on_trial: Callable[[Diagnosis], None] | None = None,
        on_table: Callable[[Diagnosis], None] | None = None,
        lost: Sequence[Recording] = (),
    ) -> None:
        self.progress = progress
        self.latest: tuple[Recording, ...] = ()
        self._on_trial, self._on_table, self._lost = on_trial, on_table, tuple(lost)
        self._stage, self._began, self._first = "", time.monotonic(), time.monotonic()
        self._seconds: dict[str, float] = {}
        self._known: dict[str, tuple[Recording, Examined]] = {}
        self._percent = 0.0

    def begin(self, stage: str) -> None:
        """A stage begins."""
        self._end_stage()
        self._stage = stage
        self._tell(stage, 0.0)

    def _end_stage(self) -> None:
        moment = time.monotonic()
        if self._stage:
            self._seconds[self._stage] = round(self._seconds.get(self._stage, 0.0) + moment - self._began, 2)
        self._began = moment

    def _tell(self, text: str, share: float) -> None:
        low, high = _SHARES.get(self._stage, (self._percent, self._percent))
        self._percent = max(self._percent, low + (high - low) * min(share, 1.0))
        elapsed = time.monotonic() - self._first
        left = elapsed * (100 - self._percent) / self._percent if self._percent >= _SHARES["compiling"][0] else None
        self.progress(Progress(stage=text, done=int(self._percent), left_seconds=left))

    def compiled(self, done: int, total: int) -> None:
        """So many of so many configurations have compiled."""
        self._tell(f"compiling: {done} of {total} configurations are ready", done / max(total, 1))

    def round(self, number: int) -> None:
        """So many rounds are done."""
        self._tell(f"{self._stage}: round {number}", number / 12)

    def start(self, number: int) -> None:
        """So many further starts are done."""
        self._tell(f"{self._stage}: start {number}", number / 4)

    def profiled(self, done: int, total: int) -> None:
        """So many of so many configurations are profiled."""
        self._tell(f"profiling: {done} of {total}", done / max(total, 1))

    def provisional(self, recordings: Sequence[Recording]) -> None:
        """A first table."""
        if self._on_table is not None:
            self._on_table(diagnosis_of([one for one in recordings if one.trial.measurement is not None]))

    def show(self, recordings: Sequence[Recording]) -> None:
        """There is more of the diagnosis."""
        self.latest = self._whole(recordings)
        if self._on_trial is not None:
            self._on_trial(self._diagnosis_of(self.latest))

    def _diagnosis_of(self, recordings: Sequence[Recording]) -> Diagnosis:
        """Of what has not changed since it was examined, the facts are taken from then."""
        known = {name: facts for name, (seen, facts) in self._known.items() if any(_same(seen, o) for o in recordings)}
        diagnosis = diagnosis_of(recordings, known)
        self._known = {one.name: (one, known[one.name]) for one in recordings}
        return diagnosis

    def keep(self, recordings: Callable[[], Sequence[Recording]]) -> None:
        """Keeps what there is, also of a diagnosis that is being interrupted, and tells of it."""
        found = [one for one in recordings() if one.trial.status != "ok" or one.trial.graphs or one.trial.measurement]
        if found:
            self.show(found)

    def _whole(self, recordings: Sequence[Recording], **changes: Any) -> tuple[Recording, ...]:
        """With those of an earlier run that were not tried again, all under the same head."""
        head = recordings[0].head
        lost = [one for one in self._lost if one.name not in head.configurations]
        names = (*head.configurations, *(one.name for one in lost))
        head = msgspec.structs.replace(head, configurations=names, **changes)
        return tuple(msgspec.structs.replace(one, head=head) for one in (*recordings, *lost))

    def finished(self, recordings: Sequence[Recording]) -> tuple[Recording, ...]:
        """All recordings of the diagnosis, with how long each stage took."""
        self._end_stage()
        self._stage = ""
        self.latest = self._whole(recordings, stage_seconds=dict(self._seconds))
        return self.latest
