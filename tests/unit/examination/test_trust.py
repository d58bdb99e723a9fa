"""Times that cannot be true: none are told, and no severity rests on them."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING

import msgspec
import pytest
from builders import a_conversion, a_diagnosis, a_kernel, a_measurement, a_trial, kernels
from recorded_builders import a_recording

from layoutdoctor.examination.examine import diagnosis_of, examine
from layoutdoctor.examination.trust import WITHOUT_SECONDS, doubt_by_bandwidth, exceeds_rounds
from layoutdoctor.reports.sections.view import build_remarks
from layoutdoctor.reports.text import render_text
from layoutdoctor.run.recorded import diagnose_recordings

if TYPE_CHECKING:
    from layoutdoctor.recording.recording import Recording

KIB = 1024
LAPTOP, SERVER, GPU = 10e9, 200e9, 4e12


@pytest.mark.parametrize(
    ("moved", "seconds", "bandwidth", "device", "is_doubted"),
    [
        (2 * 576 * KIB, 4.1e-3, LAPTOP, "cpu", True),
        (2 * 576 * KIB, 196e-6, LAPTOP, "cpu", False),
        (4 * KIB, 90e-6, LAPTOP, "cpu", False),
        (4 * KIB, 4e-3, LAPTOP, "cpu", True),
        (64 * KIB * KIB, 40e-3, SERVER, "cpu", False),
        (64 * KIB * KIB, 400e-3, SERVER, "cpu", True),
        (64 * KIB * KIB, 150e-6, GPU, "cuda", False),
        (64 * KIB * KIB, 5e-3, GPU, "cuda", True),
        (2 * 576 * KIB, 4.1e-3, None, "cpu", False),
    ],
    ids=[
        "a thread woke late",
        "as it is on a quiet machine",
        "threads are woken for little",
        "little, and a thread woke late",
        "one core of many",
        "far below one core",
        "a slow kernel on a GPU",
        "a GPU that did something else",
        "bandwidth was not measured",
    ],
)
def test_a_conversion_far_below_the_copy_bandwidth(
    moved: int, seconds: float, bandwidth: float | None, device: str, is_doubted: bool
) -> None:
    conversion = a_conversion(bytes_moved=moved, seconds=seconds, seconds_source="measured")
    estimate = a_conversion(bytes_moved=moved, seconds=seconds, seconds_source="estimated")

    assert (doubt_by_bandwidth([conversion], bandwidth, device) is not None) == is_doubted
    assert doubt_by_bandwidth([estimate], bandwidth, device) is None


def test_a_reorder_that_took_far_too_long_in_every_iteration_takes_all_times_with_it() -> None:
    recording = a_recording()
    iterations = []
    for iteration in recording.iterations:
        assert iteration.log is not None
        primitives = [dataclasses.replace(one, seconds=4.1e-3) for one in iteration.log.primitives]
        log = dataclasses.replace(iteration.log, primitives=primitives)
        iterations.append(msgspec.structs.replace(iteration, log=log))
    facts = examine(a_recording(iterations=tuple(iterations)))

    assert facts.notes == (
        "a conversion that moves 2.00 KiB was recorded with 4.10 ms, far below what the device copies: "
        "no times of kernels are told, counts and bytes hold",
    )
    assert facts.kernels is not None
    assert facts.kernels.seconds is None
    assert facts.kernels.conversion_count == 1
    assert examine(recording).notes == examine(a_recording(iterations=(recording.iterations[0], iterations[1]))).notes


def measured(median_seconds: float) -> Recording:
    recording = a_recording()
    trial = msgspec.structs.replace(recording.trial, measurement=a_measurement(*[median_seconds] * 9))
    return msgspec.structs.replace(recording, trial=trial)


def test_kernels_that_take_half_as_long_again_as_an_iteration_have_no_times() -> None:
    whole = examine(a_recording()).kernels
    assert whole is not None
    assert whole.seconds is not None
    believed, doubted = measured(whole.seconds / 1.4), measured(whole.seconds / 1.6)
    (one,), (other,) = diagnosis_of([believed]).trials, diagnosis_of([doubted]).trials

    assert one.kernels == whole
    assert other.kernels is not None
    assert other.kernels.seconds is None
    assert (other.kernels.count, other.kernels.conversion_count) == (whole.count, whole.conversion_count)
    assert len(other.notes) == len(one.notes) + 1
    assert other.notes[-1].startswith("profiled kernels take ")
    assert other.notes[-1].endswith("no times of kernels are told, counts and bytes hold")
    report = render_text(diagnose_recordings([doubted]))
    assert "kernel time" not in report
    assert other.notes[-1].partition(":")[0] in " ".join(report.split())
    assert {finding.severity for finding in diagnose_recordings([doubted]).findings} <= {"note"}


def test_kernels_that_ran_beside_one_another_are_counted_once() -> None:
    streams = [a_kernel("a", 1e-3, start_seconds=0.0, stream=7), a_kernel("b", 1e-3, start_seconds=0.0, stream=9)]
    both = kernels(seconds=2e-3, kernels=tuple(streams))

    assert not exceeds_rounds(both, a_measurement(*[1.1e-3] * 9))
    assert exceeds_rounds(both, a_measurement(*[0.6e-3] * 9))
    assert exceeds_rounds(kernels(seconds=2e-3), a_measurement(*[1.1e-3] * 9))


def test_a_report_says_it_in_one_line_for_all_configurations() -> None:
    doubt = f"profiled kernels take 31.6 ms, an iteration in the timing rounds 231 us: {WITHOUT_SECONDS}"
    trials = [a_trial(name, notes=("another", doubt)) for name in ("inductor", "eager", "eager-channels-last")]

    assert build_remarks(a_diagnosis(*trials))[-1] == f"inductor: {doubt}; so it is with eager and eager-channels-last"
    assert sum(WITHOUT_SECONDS in remark for remark in build_remarks(a_diagnosis(*trials))) == 1
    assert build_remarks(a_diagnosis(trials[0]))[-1] == f"inductor: {doubt}"
