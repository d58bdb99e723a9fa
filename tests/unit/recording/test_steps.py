"""The steps of a run, each alone: host rows by time, kernels by the step that launched them."""

from __future__ import annotations

import numpy as np
import pytest

from layoutdoctor.recording.recording import RecordedTrace, TraceBuilder
from layoutdoctor.recording.steps import first_steps, single_steps, without_steps


@pytest.fixture
def run() -> RecordedTrace:
    """Three steps of 100 ns; each launches a kernel at its end, which runs in the next step or after all of them."""
    builder = TraceBuilder()
    for number in range(3):
        begin = 100 * number
        step = builder.names[f"ProfilerStep#{number + 3}"]
        builder.add("annotations", name=step, start=begin, duration=100, thread=0)
        builder.add("annotations", name=builder.names["forward"], start=begin + 1, duration=10, thread=0)
        builder.add("operations", name=builder.names[f"aten::{number}"], start=begin + 5, duration=50, thread=0)
        builder.add("launches", name=builder.names["launch"], start=begin + 90, thread=0, correlation=number + 1)
        name = builder.names[f"kernel {number}"]
        builder.add("kernels", name=name, start=begin + 120, duration=30, correlation=number + 1)
    return builder.trace("kineto_trace")


def test_a_kernel_belongs_to_the_step_that_launched_it(run: RecordedTrace) -> None:
    steps = single_steps(run, 3)
    assert [[run.names[name] for name in step.kernels.name] for step in steps] == [[f"kernel {n}"] for n in range(3)]
    assert [[run.names[name] for name in step.operations.name] for step in steps] == [[f"aten::{n}"] for n in range(3)]


def test_the_ranges_around_steps_are_no_part_of_them(run: RecordedTrace) -> None:
    assert {run.names[name] for step in single_steps(run, 3) for name in step.annotations.name} == {"forward"}
    assert {run.names[name] for name in without_steps(run).annotations.name} == {"forward"}


def test_a_step_that_did_not_end_is_left_out(run: RecordedTrace) -> None:
    assert len(single_steps(run, 2)) == 2
    whole = first_steps(run, 2)
    assert [run.names[name] for name in whole.kernels.name] == ["kernel 0", "kernel 1"]
    assert sum(run.names[name].startswith("ProfilerStep") for name in whole.annotations.name) == 2


def test_a_kernel_without_a_launch_belongs_to_the_step_in_which_it_ran(run: RecordedTrace) -> None:
    run.kernels.correlation[:] = -1
    assert [[run.names[name] for name in step.kernels.name] for step in single_steps(run, 3)] == [
        [],
        ["kernel 0"],
        ["kernel 1"],
    ]


def test_a_run_without_steps_has_none(run: RecordedTrace) -> None:
    plain = without_steps(run)
    assert single_steps(plain, 3) == []
    assert np.array_equal(first_steps(plain, 3).kernels.start, run.kernels.start)
