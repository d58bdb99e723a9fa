"""A diagnosis under way: its progress, the time of each stage, rows as they come, and what is kept."""

from __future__ import annotations

import io
import sys
import types
from typing import TYPE_CHECKING

import msgspec
import pytest
from builders import a_diagnosis, a_failed_trial, a_trial, recordings_of
from fake_workers import Clock

from layoutdoctor.run import watching
from layoutdoctor.run.watching import Watch, showing
from layoutdoctor.workers.messages import Progress

if TYPE_CHECKING:
    from collections.abc import Sequence

    from layoutdoctor.recording.recording import Recording

STAGES = (
    "loading the model",
    "running the model in eager mode",
    "compiling",
    "checking outputs",
    "timing all configurations in turns",
    "timing the best again in further processes",
    "profiling",
    "looking for findings",
)
TWO = recordings_of(a_diagnosis(a_trial("inductor"), a_trial("eager")))
LOST = recordings_of(a_diagnosis(a_failed_trial("inductor-layout-opt-on")))


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(watching, "time", clock)
    return clock


def test_progress_only_grows_though_stages_come_again_and_ends_below_100(clock: Clock) -> None:
    steps: list[Progress] = []
    watch = Watch(steps.append)
    for stage in (*STAGES, *STAGES[2:5]):  # those of a derived configuration come again
        watch.begin(stage)
        watch.step(0.5, "1 of 2")
        watch.step(2.0, "4 of 2")

    done = [step.done for step in steps]
    assert done == sorted(done)
    assert done[:9] == [0, 7, 15, 15, 15, 16, 16, 34, 52]
    assert [step.stage for step in steps[6:9]] == ["compiling", "compiling: 1 of 2", "compiling: 4 of 2"]
    assert done[-1] == 100


def test_an_estimate_is_given_from_the_first_compile_on(clock: Clock) -> None:
    steps: list[Progress] = []
    watch = Watch(steps.append)
    clock.now = 2.0
    watch.begin("loading the model")
    clock.now = 9.0
    watch.begin("compiling")
    watch.step(0.25)
    clock.now = 20.0
    watch.begin("looking for findings")

    assert [step.left_seconds for step in steps] == pytest.approx([None, None, 9.0 * 75 / 25, 20.0 * 2 / 98])


def test_the_time_of_a_stage_that_comes_twice_is_summed(clock: Clock) -> None:
    watch = Watch(lambda step: None)
    for stage, seconds in (("compiling", 5.0), ("profiling", 1.5), ("compiling", 2.25), ("looking for findings", 0.5)):
        watch.begin(stage)
        clock.now += seconds

    (first, second) = watch.finished(TWO)
    clock.now += 100.0

    assert first.head == second.head
    assert first.head.stage_seconds == {"compiling": 7.25, "profiling": 1.5, "looking for findings": 0.5}
    assert watch.latest == (first, second)
    assert watch.finished(TWO)[0].head.stage_seconds == first.head.stage_seconds


def test_each_row_is_shown_with_those_that_failed_in_an_earlier_run() -> None:
    shown: list[list[str]] = []
    watch = Watch(lambda step: None, lambda: shown.append([one.name for one in watch.latest]), lost=LOST)
    head = msgspec.structs.replace(TWO[0].head, configurations=("inductor",))
    watch.show([msgspec.structs.replace(TWO[0], head=head)])
    watch.show(TWO)
    again = Watch(lambda step: None, lost=recordings_of(a_diagnosis(a_failed_trial("eager"))))
    again.show(TWO)

    assert shown == [["inductor", "inductor-layout-opt-on"], ["inductor", "eager", "inductor-layout-opt-on"]]
    assert all(one.head == watch.latest[0].head for one in watch.latest)
    assert [one.name for one in again.latest] == ["inductor", "eager"]  # one that is tried again is shown once


def test_the_first_table_has_what_is_measured() -> None:
    tables: list[Sequence[Recording]] = []
    unmeasured = recordings_of(a_diagnosis(a_trial("inductor"), a_trial("eager", measurement=None)))
    Watch(lambda step: None, on_table=tables.append).provisional(unmeasured)
    Watch(lambda step: None).provisional(unmeasured)

    assert [[one.name for one in table] for table in tables] == [["inductor"]]


# ---------------------------------------------------------------------------------------------- from Python
STEP = Progress(stage="inductor: compiling", done=2, total=9)


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_a_terminal_has_one_line_that_is_gone_at_the_end_and_another_stream_gets_nothing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    steps: list[Progress] = []
    terminal, file, closed = Terminal(), io.StringIO(), Terminal()
    closed.close()
    for stream, progress in ((terminal, None), (terminal, steps.append), (file, None), (closed, None), (None, None)):
        monkeypatch.setattr(sys, "stderr", stream)
        with showing(progress) as tell:
            tell(STEP)

    assert terminal.getvalue() == "\r\x1b[Klayoutdoctor: [2/9] inductor: compiling\r\x1b[K"
    assert (steps, file.getvalue()) == ([STEP], "")


def test_a_notebook_has_a_display_that_is_written_again(monkeypatch: pytest.MonkeyPatch) -> None:
    shown: list[str] = []

    class Handle:
        def update(self, data: dict[str, str], *, raw: bool) -> None:
            assert raw
            shown.append(data["text/plain"])

    def display(data: dict[str, str], *, raw: bool, display_id: bool) -> Handle:
        assert (raw, display_id) == (True, True)
        shown.append(data["text/plain"])
        return Handle()

    python, inner = types.ModuleType("IPython"), types.ModuleType("IPython.display")
    python.get_ipython = lambda: types.SimpleNamespace(kernel=object())  # type: ignore[attr-defined]
    inner.display = display  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "IPython", python)
    monkeypatch.setitem(sys.modules, "IPython.display", inner)
    with showing(None) as tell:
        tell(STEP)

    assert shown == ["", "layoutdoctor: [2/9] inductor: compiling", ""]
