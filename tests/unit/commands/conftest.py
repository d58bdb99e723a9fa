"""What several tests of commands share: a saved diagnosis, and an engine that measures nothing."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec
import pytest
from builders import a_comparison, a_diagnosis, a_finding, a_ratio, a_recommendation, a_trial, recordings_of

from layoutdoctor.commands import running as running_module
from layoutdoctor.diagnosis.saved import to_json
from layoutdoctor.workers.messages import Progress, Request

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from layoutdoctor.diagnosis.diagnosis import Diagnosis
    from layoutdoctor.recording.recording import Recording
    from layoutdoctor.run.watching import Watch

WARNING = a_finding("LD205", rule="input-format-mismatch", message="the input is contiguous", module=None)
PARTIAL = a_diagnosis(a_trial("eager"))
FULL = a_diagnosis(
    a_trial("eager"),
    a_trial("inductor"),
    comparison=a_comparison(a_ratio("eager", 0.5)),
    recommendation=a_recommendation(),
    findings=(WARNING,),
)


class FakeEngine:
    """
    Stands for the launcher and ``diagnose_request``: remembers what it was asked, gives or raises what the test says.

    Attributes:
        shown: Recordings of what was seen before the end.
    """

    def __init__(self) -> None:
        self.asked = Request()
        self.result = FULL
        self.shown: Sequence[Recording] = recordings_of(PARTIAL)
        self.error: BaseException | None = None

    def diagnose(self, launcher: object, request: Request, watch: Watch) -> Diagnosis:
        del launcher
        self.asked = request
        watch.progress(Progress("compiling: 1 of 2", 50))
        watch.progress(Progress("compiling: 2 of 2", 50))
        if self.shown:
            watch.show(self.shown)
        if self.error is not None:
            raise self.error
        return self.result


@pytest.fixture
def engine(monkeypatch: pytest.MonkeyPatch) -> FakeEngine:
    fake = FakeEngine()
    monkeypatch.setattr(running_module, "kept_launcher", lambda: fake)
    monkeypatch.setattr(running_module, "diagnose_request", fake.diagnose)

    def diagnosis_of(recordings: Sequence[Recording]) -> Diagnosis:  # how it is made is no matter of the command
        return msgspec.structs.replace(PARTIAL, interrupted=recordings[0].head.interrupted)

    monkeypatch.setattr(running_module, "diagnosis_of", diagnosis_of)
    return fake


@pytest.fixture
def saved(tmp_path: Path) -> Path:
    """Of two configurations, with one finding."""
    path = tmp_path / "saved.json"
    path.write_bytes(to_json(a_diagnosis(a_trial("eager"), a_trial("inductor"), findings=(WARNING,))))
    return path
