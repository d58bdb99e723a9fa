from __future__ import annotations

import os
from typing import TYPE_CHECKING

import pytest
from builders import a_comparison, a_diagnosis, a_ratio, a_recommendation, a_trial

from layoutdoctor.diagnosis.records import MachineLoad
from layoutdoctor.isolation import load as load_module
from layoutdoctor.isolation.load import LoadMeter, Reading, read_load
from layoutdoctor.reports.sections.view import build_view

if TYPE_CHECKING:
    from pathlib import Path


def metered(
    others: list[float | None], *, threads: int = 2, cores: int = 2, round_seconds: float = 1.0
) -> MachineLoad | None:
    """What a meter says of rounds in which others used so many cores, while the model used one."""
    wall, busy, own, switches = 100.0, 5000.0, 7.0, 40
    readings = [Reading(wall, busy, own, switches)]
    for used in others:
        wall, own, switches = wall + round_seconds, own + round_seconds, switches + 3
        busy += (1 + (used or 0.0)) * round_seconds
        readings.append(Reading(wall, None if used is None else busy, own, switches))
    following = iter(readings)
    meter = LoadMeter(threads, cores, read=lambda: next(following))
    for _ in readings:
        meter.look()
    return meter.load()


def test_what_others_used_is_what_ran_less_what_the_diagnosis_used_itself() -> None:
    load = metered([0.0, 0.5, 1.0])

    assert load is not None
    assert load.other_cores == pytest.approx(0.5)
    assert load.round_other_cores == pytest.approx((0.0, 0.5, 1.0))
    assert load.round_involuntary_switches == (3, 3, 3)
    assert metered([]) is None


@pytest.mark.parametrize(
    ("others", "threads", "cores", "is_too_busy"),
    [
        (0.2, 2, 2, False),
        (0.5, 2, 2, True),
        (0.4, 1, 2, False),  # the other core has room
        (1.0, 1, 2, True),
        (3.0, 8, 16, False),
        (5.0, 8, 16, True),
        (0.5, 4, 2, True),
    ],
)
def test_a_third_of_a_core_is_too_much_unless_there_are_free_ones(
    others: float, threads: int, cores: int, is_too_busy: bool
) -> None:
    load = metered([others] * 20, threads=threads, cores=cores)

    assert load is not None
    assert load.is_too_busy is is_too_busy


def test_a_few_ticks_of_a_short_time_prove_nothing_and_an_unknown_is_no_zero() -> None:
    short = metered([0.6] * 4, round_seconds=0.01)
    unknown = metered([None] * 4)

    assert short is not None
    assert not short.is_too_busy
    assert unknown is not None
    assert (unknown.other_cores, unknown.is_too_busy, unknown.round_other_cores) == (None, False, ())


def test_the_system_is_read_as_it_writes(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    statistics = tmp_path / "stat"
    # user, nice, system, idle, iowait, irq, softirq, steal, guest, guest_nice
    rows = ["cpu  9 9 9 9 9 9 9 9 9 9", "cpu0 100 20 30 9000 80 4 5 6 7 8", "cpu1 1 0 0 0 0 0 0 0 0 0", "intr 5"]
    statistics.write_text("\n".join(rows) + "\n")
    monkeypatch.setattr(load_module, "_STATISTICS", statistics)
    monkeypatch.setattr(load_module, "_tick_seconds", lambda: 0.01)
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0}, raising=False)

    assert read_load().busy_seconds == pytest.approx(1.65)

    monkeypatch.setattr(load_module, "_STATISTICS", tmp_path / "nothing")

    assert read_load().busy_seconds is None


def test_one_line_of_the_report_says_how_busy_it_was_and_a_busy_machine_gets_no_verdict() -> None:
    def lines(load: MachineLoad | None, **told: float | None) -> tuple[str, tuple[str, ...]]:
        ratio = a_ratio("eager", 2.0, verdict="no measurable difference", decided=False, **told)
        comparison = a_comparison(ratio, fastest=("inductor", "eager"), load=load)
        diagnosis = a_diagnosis(
            a_trial(), a_trial("eager"), comparison=comparison, recommendation=a_recommendation(None)
        )
        view = build_view(diagnosis)
        cells.append(next(row.cells for row in view.tables[0].rows if row.cells[0] == "eager"))
        return view.answer.headline, view.measurement

    cells: list[tuple[str, ...]] = []
    headline, measurement = lines(MachineLoad(other_cores=1.24, is_too_busy=True), coverage=None)

    assert measurement[0] == "24 rounds, which tell nothing"
    assert "other programs used 1.2 cores meanwhile, too much for a verdict" in measurement
    assert headline.startswith("Undecided after 24 rounds: eager may be faster than")
    assert headline.endswith("; other programs kept the machine busy, so measure again when it is quiet")
    assert "other programs used 0.3 cores meanwhile" in lines(MachineLoad(other_cores=0.34))[1]
    assert not any("cores" in text for text in lines(MachineLoad(other_cores=0.06))[1])  # that is a quiet machine
    assert cells[0][2] == "undecided"
    assert cells[1][2] == "2.00x  1.97..2.03  undecided"
    headline, _ = lines(MachineLoad(other_cores=0.1), low=0.1, high=41.0)
    assert headline.startswith("Undecided after 24 rounds: eager may be faster than")
    assert cells[-1][2] == "too noisy  undecided"
    assert len(lines(None)[1]) == len(lines(MachineLoad())[1]) == len(measurement) - 1
