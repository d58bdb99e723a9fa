"""All rules over the diagnoses of recorded traces: which speak, which stay silent, and what it costs them."""

from __future__ import annotations

import sys
from functools import partial
from typing import TYPE_CHECKING, Any

import pytest
from builders import a_location, channels_last, contiguous
from trace_builders import (
    PADDING,
    a_generated_copy,
    a_permuted_copy,
    a_recorded_pair,
    a_recorded_trial,
    a_trace_diagnosis,
    an_eager_copy,
    to_channels_last,
    to_contiguous,
)

from layoutdoctor.rules import run_rules

if TYPE_CHECKING:
    from types import FrameType

    from layoutdoctor.diagnosis.conversion import Conversion
    from layoutdoctor.diagnosis.diagnosis import Diagnosis

WEIGHT = (64, 64, 3, 3)


def codes(diagnosis: Diagnosis) -> list[str]:
    findings = run_rules(diagnosis)

    assert [f.message for f in findings if "rule failed" in f.message] == []
    return sorted(f.code for f in findings)


a_weight = partial(to_channels_last, tensor="weight", source=contiguous(WEIGHT), target=channels_last(WEIGHT))


def a_call(id: str, **changes: Any) -> Conversion:
    fields: dict[str, Any] = {"source": channels_last(), "target": contiguous(), "direction": "to_contiguous"}
    return an_eager_copy(id, **{"owner": "user", **fields, **changes})


def everything(count: int) -> Diagnosis:
    """A trace with that many of everything a trace can show, at as many lines, modules and tensors."""
    conversions: list[Conversion] = []
    pairs = []
    for i in range(count):
        there: dict[str, Any] = {"module": f"Conv2d_{i}", "location": a_location(i + 1)}
        place = {**there, "step": f"ProfilerStep#{i % 5}"}
        conversions += [
            to_contiguous(f"out {i}", **place),
            to_channels_last(f"in {i}", source_value=f"t{i // 2}", **place),
            a_weight(f"weight {i}", dtype="float32", target_dtype="float16", **place),
            to_channels_last(f"pad {i}", kernel=PADDING, direction="none", **place),
            an_eager_copy(f"copy {i}", **place),
            a_call(f"call {i}", **place),
            a_generated_copy(f"generated {i}", kernel=f"triton_poi_fused_clone_{i}", **place),
            a_permuted_copy(f"permuted {i}", **place),
        ]
        pairs.append(a_recorded_pair(f"out {i}", f"in {i}", between=("aten::relu",) if i % 2 else (), **there))
    return a_trace_diagnosis(a_recorded_trial(*conversions, redundant_pairs=tuple(pairs)))


def test_seven_rules_speak_of_a_trace_and_their_work_grows_with_it() -> None:
    few = (to_channels_last("a", seconds=3e-5), to_contiguous("b", seconds=3e-5))
    for trial in (a_recorded_trial(), a_recorded_trial(*few), a_recorded_trial(kernels=None, graphs=())):
        assert codes(a_trace_diagnosis(trial)) == []
    every = ["LD101", "LD102", "LD103", "LD108", "LD110", "LD111", *["LD501"] * 6]
    assert codes(everything(6)) == every
    # Ten times the conversions are ten times the work.
    small, large = (_steps_of(everything(count)) for count in (40, 400))
    assert large < 12 * small


@pytest.mark.parametrize(
    ("conversion", "found"),
    [
        (to_channels_last("a"), ["LD111"]),
        (a_weight("a", seconds=7e-5), ["LD103"]),
        (a_weight("a"), ["LD103", "LD111"]),
        (to_channels_last("a", kernel=PADDING, direction="none"), []),
        (an_eager_copy("a"), ["LD108"]),
        (an_eager_copy("a", owner="user"), ["LD108"]),
        (a_generated_copy("a"), []),
        (a_permuted_copy("a", seconds=1e-3), ["LD110"]),
        (a_call("a"), ["LD501"]),
    ],
    ids=[
        "by a library",
        "of a weight",
        "of a weight, dear",
        "padding",
        "by the framework",
        "to channels_last by the model",
        "generated",
        "permuting",
        "out of channels_last by the model",
    ],
)
def test_a_conversion_alone_is_reported_by_one_rule_and_a_dear_one_of_a_library_in_the_sum_as_well(
    conversion: Conversion, found: list[str]
) -> None:
    assert codes(a_trace_diagnosis(a_recorded_trial(conversion))) == found


def _steps_of(diagnosis: Diagnosis) -> int:
    """Bytecode instructions that all rules take together: the same on every machine, which no clock is."""
    steps = 0

    def trace(frame: FrameType, event: str, argument: object) -> Any:
        nonlocal steps
        frame.f_trace_opcodes, frame.f_trace_lines = True, False
        steps += event == "opcode"
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        run_rules(diagnosis)
    finally:
        sys.settrace(before)
    return steps
