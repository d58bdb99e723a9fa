"""What is told of a diagnosis under way: its progress, the time of each stage, rows as they come, and what is kept."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec
import pytest
from builders import a_diagnosis, a_failed_trial, a_trial, recordings_of
from fake_workers import Clock

from layoutdoctor.run import watching
from layoutdoctor.run.watching import Watch

if TYPE_CHECKING:
    from layoutdoctor.diagnosis.records import Diagnosis
    from layoutdoctor.workers.messages import Progress

STAGES = (
    "loading the model",
    "running the model in eager mode",
    "compiling",
    "checking outputs",
    "timing all configurations in turns",
    "timing the best again in further processes",
    "profiling",
    "timing with the allocator's own settings",
    "looking for findings",
)
TWO = recordings_of(a_diagnosis(a_trial("inductor"), a_trial("eager")))
LOST = recordings_of(a_diagnosis(a_failed_trial("inductor-layout-opt-on")))


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(watching, "time", clock)
    return clock


def names(diagnosis: Diagnosis) -> list[str]:
    return [trial.name for trial in diagnosis.trials]


def test_progress_only_grows_though_stages_come_again_and_ends_below_100(clock: Clock) -> None:
    told: list[Progress] = []
    watch = Watch(told.append)
    for stage in STAGES:
        watch.begin(stage)
    for stage in STAGES[2:5]:  # of a derived configuration
        watch.begin(stage)
        watch.compiled(9, 9)

    done = [step.done for step in told]
    assert done == sorted(done)
    assert done[:9] == [0, 15, 16, 52, 54, 67, 86, 89, 98]
    assert max(done) < 100


def test_within_a_stage_the_share_is_told(clock: Clock) -> None:
    told: list[Progress] = []
    watch = Watch(told.append)
    watch.begin("compiling")
    watch.compiled(0, 4)
    watch.compiled(2, 4)
    watch.begin("timing all configurations in turns")
    watch.round(6)
    watch.round(25)
    watch.begin("timing the best again in further processes")
    watch.start(2)
    watch.begin("profiling")
    watch.profiled(1, 2)
    watch.profiled(0, 0)

    assert [(step.stage, step.done) for step in told] == [
        ("compiling", 16),
        ("compiling: 0 of 4 configurations are ready", 16),
        ("compiling: 2 of 4 configurations are ready", 34),
        ("timing all configurations in turns", 54),
        ("timing all configurations in turns: round 6", 60),
        ("timing all configurations in turns: round 25", 67),
        ("timing the best again in further processes", 67),
        ("timing the best again in further processes: start 2", 76),
        ("profiling", 86),
        ("profiling: 1 of 2", 87),
        ("profiling: 0 of 0", 87),
    ]


def test_an_estimate_is_given_from_the_first_compile_on(clock: Clock) -> None:
    told: list[Progress] = []
    watch = Watch(told.append)
    clock.now = 2.0
    watch.begin("loading the model")
    clock.now = 9.0
    watch.begin("compiling")
    clock.now = 20.0
    watch.begin("timing with the allocator's own settings")

    assert [step.left_seconds for step in told] == pytest.approx([None, 9.0 * 84 / 16, 20.0 * 11 / 89])


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
    shown: list[Diagnosis] = []
    watch = Watch(lambda step: None, shown.append, lost=LOST)
    head = msgspec.structs.replace(TWO[0].head, configurations=("inductor",))
    watch.show([msgspec.structs.replace(TWO[0], head=head)])
    watch.show(TWO)

    assert list(map(names, shown)) == [
        ["inductor", "inductor-layout-opt-on"],
        ["inductor", "eager", "inductor-layout-opt-on"],
    ]
    assert [one.name for one in watch.latest] == names(shown[-1])
    assert all(one.head == watch.latest[0].head for one in watch.latest)


def test_one_that_is_tried_again_after_all_is_shown_once() -> None:
    shown: list[Diagnosis] = []
    Watch(lambda step: None, shown.append, lost=recordings_of(a_diagnosis(a_failed_trial("eager")))).show(TWO)

    assert [(trial.name, trial.status) for trial in shown[0].trials] == [("inductor", "ok"), ("eager", "ok")]


def test_the_first_table_has_what_is_measured() -> None:
    tables: list[Diagnosis] = []
    unmeasured = recordings_of(a_diagnosis(a_trial("inductor"), a_trial("eager", measurement=None)))
    Watch(lambda step: None, on_table=tables.append).provisional(unmeasured)
    Watch(lambda step: None).provisional(unmeasured)

    assert list(map(names, tables)) == [["inductor"]]


def test_of_an_interrupted_diagnosis_what_was_seen_is_kept() -> None:
    shown: list[Diagnosis] = []
    watch = Watch(lambda step: None, shown.append)
    begun, lost, measured = recordings_of(
        a_diagnosis(a_trial("inductor", measurement=None), a_failed_trial("inductor-layout-opt-on"), a_trial("eager"))
    )
    watch.keep(lambda: (begun,))
    assert shown == []
    assert watch.latest == ()

    watch.keep(lambda: (begun, lost, measured))

    assert [one.name for one in watch.latest] == ["inductor-layout-opt-on", "eager"]
    assert names(shown[0]) == ["inductor-layout-opt-on", "eager"]
