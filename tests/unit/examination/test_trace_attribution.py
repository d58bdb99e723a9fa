from __future__ import annotations

import pytest
from recorded_builders import FORWARD, GEMM, POINTWISE, Recorder, name_of_operation

from layoutdoctor.examination.kernels.attribution import attribute
from layoutdoctor.recording.recording import NONE, RecordedTrace


def operations_of(record: Recorder | RecordedTrace) -> list[str | None]:
    """Of each kernel, the operation it was found to belong to."""
    trace = record.trace() if isinstance(record, Recorder) else record
    return [name_of_operation(trace, row) for row in attribute(trace).operation.tolist()]


def test_an_operation_is_found_by_external_id_or_by_the_launch() -> None:
    record = Recorder(external=None)
    with record.operation("aten::conv2d"):
        with record.operation("aten::cudnn_convolution"):
            record.kernel(FORWARD)
        record.kernel(POINTWISE)
    record.kernel(GEMM)

    assert operations_of(record) == ["aten::cudnn_convolution", "aten::conv2d", None]

    record = Recorder(external="correlation")
    with record.operation("aten::relu", external=105):
        pass
    with record.operation("aten::conv2d"):
        for _ in range(10):
            record.kernel(FORWARD)

    assert 105 in record.trace().kernels.external
    assert operations_of(record) == ["aten::conv2d"] * 10

    record = Recorder()
    with record.operation("aten::conv2d", external=101):
        for _ in range(4):
            record.kernel(FORWARD)

    assert record.trace().kernels.external[0] == record.trace().kernels.correlation[0]
    assert operations_of(record) == ["aten::conv2d"] * 4

    record = Recorder(external=None)
    with record.operation("aten::relu", external=0):
        pass
    with record.operation("aten::conv2d"):
        record.kernel(FORWARD, external=0)

    assert operations_of(record) == ["aten::conv2d"]


def test_kernels_without_a_launch_and_those_of_a_graph_are_counted_and_have_no_operation() -> None:
    record = Recorder()
    record.kernel(GEMM, is_launched=False)
    with record.operation("aten::conv2d"):
        record.kernel(FORWARD)

    found = attribute(record.trace())

    assert (found.unlaunched_count, found.launch[0]) == (1, NONE)
    assert operations_of(record) == [None, "aten::conv2d"]

    record = Recorder(external=None)
    with record.operation("Torch-Compiled Region: 0/0"):
        record.replay(FORWARD, POINTWISE, GEMM)
        record.kernel(GEMM)

    found = attribute(record.trace())

    assert (found.replayed_count, found.unlaunched_count) == (3, 0)
    assert operations_of(record) == [None, None, None, "Torch-Compiled Region: 0/0"]


def steps_of(trace: RecordedTrace) -> list[str | None]:
    found = attribute(trace)
    return [found.step_names[step] if step != NONE else None for step in found.step.tolist()]


def test_a_kernel_belongs_to_the_step_of_its_launch_and_steps_were_operations_once() -> None:
    record = Recorder()
    record.kernel(GEMM)
    for number in (3, 4):
        with record.annotation(f"ProfilerStep#{number}"):
            record.kernel(GEMM, takes=10_000)
    record.kernel(GEMM)

    assert steps_of(record.trace()) == [None, "ProfilerStep#3", "ProfilerStep#4", None]

    record = Recorder()
    with record.operation("ProfilerStep#1"), record.operation("aten::conv2d"):
        record.kernel(FORWARD)

    trace = record.trace()

    assert steps_of(trace) == ["ProfilerStep#1"]
    assert operations_of(trace) == ["aten::conv2d"]


@pytest.mark.parametrize(
    ("names", "expected"),
    [
        (["step 1", "step 2"], ["step 1", "step 2"]),
        (["train_step", "train_step"], ["train_step #1", "train_step #2"]),
        (["iter_0", "Iteration 7", "iter_1"], ["iter_0", None, "iter_1"]),  # a family, not all of them
        (["Optimizer.step#SGD.step", "Optimizer.step#SGD.step"], [None, None]),
        (["dataloader batch 1", "dataloader batch 2"], [None, None]),
        (["step 1"], [None]),  # one alone may be anything
        (["stepwise", "stepwise"], [None, None]),
    ],
)
def test_ranges_that_the_program_marked_as_steps_take_the_place_of_the_profilers(
    names: list[str], expected: list[str | None]
) -> None:
    record = Recorder()
    for name in names:
        with record.annotation(name):
            record.kernel(GEMM)

    assert steps_of(record.trace()) == expected
