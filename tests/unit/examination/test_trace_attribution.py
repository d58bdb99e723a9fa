from __future__ import annotations

import numpy as np
import pytest
from loops import for_each
from recorded_builders import FORWARD, GEMM, HOST_CALL, POINTWISE, Recorder, name_of_operation

from layoutdoctor.examination.kernels.attribution import Attribution, attribute, innermost, is_convolution
from layoutdoctor.recording.recording import NONE, RecordedTrace


def operation_names(trace: RecordedTrace, found: Attribution) -> list[str | None]:
    """Of each kernel, the operation it was found to belong to."""
    return [name_of_operation(trace, row) for row in found.operation.tolist()]


def operations_of(record: Recorder) -> list[str | None]:
    trace = record.trace()
    return operation_names(trace, attribute(trace))


def test_without_external_ids_it_belongs_to_the_innermost_operation_around_its_launch() -> None:
    record = Recorder(external=None)
    with record.operation("aten::conv2d"):
        with record.operation("aten::cudnn_convolution"):
            record.kernel(FORWARD)
        record.kernel(POINTWISE)
    record.kernel(GEMM)

    assert operations_of(record) == ["aten::cudnn_convolution", "aten::conv2d", None]


def test_an_external_id_that_is_the_correlation_again_says_nothing() -> None:
    record = Recorder(external="correlation")
    with record.operation("aten::relu", external=105):
        pass
    with record.operation("aten::conv2d"):
        for _ in range(10):
            record.kernel(FORWARD)

    trace = record.trace()
    found = attribute(trace)

    assert 105 in trace.kernels.external
    assert operation_names(trace, found) == ["aten::conv2d"] * 10


def test_a_few_external_ids_that_happen_to_be_correlations_are_believed() -> None:
    record = Recorder()
    with record.operation("aten::conv2d", external=101):
        for _ in range(4):
            record.kernel(FORWARD)

    trace = record.trace()
    found = attribute(trace)

    assert trace.kernels.external[0] == trace.kernels.correlation[0]
    assert operation_names(trace, found) == ["aten::conv2d"] * 4


def test_external_id_zero_stood_for_none_in_2020() -> None:
    record = Recorder(external=None)
    with record.operation("aten::relu", external=0):
        pass
    with record.operation("aten::conv2d"):
        record.kernel(FORWARD, external=0)

    assert operations_of(record) == ["aten::conv2d"]


def test_a_kernel_without_a_launch_is_counted_and_belongs_to_nothing() -> None:
    record = Recorder()
    record.kernel(GEMM, is_launched=False)
    with record.operation("aten::conv2d"):
        record.kernel(FORWARD)

    trace = record.trace()
    found = attribute(trace)

    assert (found.unlaunched_count, found.launch[0]) == (1, NONE)
    assert operation_names(trace, found) == [None, "aten::conv2d"]


def test_what_a_graph_replays_is_counted_and_has_no_operation() -> None:
    record = Recorder(external=None)
    with record.operation("Torch-Compiled Region: 0/0"):
        record.replay(FORWARD, POINTWISE, GEMM)
        record.kernel(GEMM)

    trace = record.trace()
    found = attribute(trace)

    assert (found.replayed_count, found.unlaunched_count) == (3, 0)
    assert operation_names(trace, found) == [None, None, None, "Torch-Compiled Region: 0/0"]


def merged(external: str | None = "operation") -> RecordedTrace:
    """Two ranks in one file: the same correlations and External ids in both."""
    record = Recorder(external=external)
    for process, name in (("1", "aten::conv2d"), ("2", "aten::relu")):
        record.on_thread("main", process)
        with record.operation(name, external=9):
            record.kernel(FORWARD, correlation=55)
    return record.trace()


@pytest.mark.parametrize("external", ["operation", None])
def test_ids_that_two_merged_processes_share_name_no_launch_and_no_operation(external: str | None) -> None:
    trace = merged(external)
    found = attribute(trace)

    assert found.launch.tolist() == [NONE, NONE]
    assert operation_names(trace, found) == [None, None]


def test_ids_that_one_of_two_merged_processes_has_alone_are_believed() -> None:
    record = Recorder()
    for process, name in (("1", "aten::conv2d"), ("2", "aten::relu")):
        record.on_thread("main", process)
        with record.operation(name):
            record.kernel(FORWARD)
    trace = record.trace()
    found = attribute(trace)

    assert found.launch.tolist() == [0, 1]
    assert operation_names(trace, found) == ["aten::conv2d", "aten::relu"]


def test_innermost_agrees_with_looking_at_every_operation() -> None:
    generator = np.random.default_rng(4)
    record = Recorder()

    def nest(depth: int) -> None:
        for _ in range(generator.integers(0, 4)):
            record.now -= HOST_CALL * int(generator.integers(2))
            with record.operation(f"aten::op{record.now}"):
                if depth:
                    nest(depth - 1)

    for _ in range(6):
        nest(4)
    trace = record.trace()
    operations = trace.operations
    moments = np.array([*range(0, record.now, 5)])  # at every edge, some of which two operations share, and between

    found = innermost(operations, np.arange(len(operations)), np.zeros_like(moments), moments)

    ends = operations.start + operations.duration
    for moment, row in zip(moments.tolist(), found.tolist(), strict=True):
        around = np.flatnonzero((operations.start <= moment) & (ends >= moment))
        assert row == (around[-1] if len(around) else NONE)
    assert (found == NONE).any()
    assert (found != NONE).sum() > 100


def test_a_convolution_is_the_outermost_one_around() -> None:
    record = Recorder()
    with (
        record.operation("ConvolutionBackward0"),
        record.operation("aten::convolution_backward"),
        record.operation("aten::cudnn_convolution"),
    ):
        record.kernel(FORWARD)
    with record.operation("aten::relu"):
        record.kernel(POINTWISE)

    trace = record.trace()
    found = attribute(trace)

    assert [name_of_operation(trace, row) for row in found.convolution.tolist()] == ["aten::convolution_backward", None]


def test_the_outermost_operator_is_within_what_autograd_and_the_compiler_wrap_around() -> None:
    record = Recorder()
    with record.operation("ProfilerStep#1"), record.operation("Torch-Compiled Region: 0/0"):
        with record.operation("aten::conv2d"), record.operation("aten::cudnn_convolution"):
            pass
        with record.operation("triton_poi_fused_relu_0"):
            pass
    with (
        record.operation("autograd::engine::evaluate_function: AddBackward0"),
        record.operation("AddBackward0"),
        record.operation("aten::add"),
        record.operation("aten::to"),
    ):
        pass

    trace = record.trace()

    assert [name_of_operation(trace, row) for row in attribute(trace).outermost.tolist()] == [
        "ProfilerStep#1",
        "Torch-Compiled Region: 0/0",
        "aten::conv2d",
        "aten::conv2d",
        "triton_poi_fused_relu_0",
        "autograd::engine::evaluate_function: AddBackward0",
        "AddBackward0",
        "aten::add",
        "aten::add",
    ]


def steps_of(trace: RecordedTrace) -> list[str | None]:
    found = attribute(trace)
    return [found.step_names[step] if step != NONE else None for step in found.step.tolist()]


def test_a_kernel_belongs_to_the_step_in_which_it_was_launched_not_in_which_it_ran() -> None:
    record = Recorder()
    record.kernel(GEMM)
    for number in (3, 4):
        with record.annotation(f"ProfilerStep#{number}"):
            record.kernel(GEMM, takes=10_000)
    record.kernel(GEMM)

    assert steps_of(record.trace()) == [None, "ProfilerStep#3", "ProfilerStep#4", None]


# Steps from 10 to 20 and from 20 to 40, and one more from 60 to 70.
@for_each(("moment", "step"), [(9, None), (10, 1), (19, 1), (20, 2), (40, 2), (41, None), (59, None), (60, 3), (70, 3)])
def test_the_edges_of_steps(moment: int, step: int | None) -> None:
    record = Recorder()
    for number, (start, duration) in enumerate([(10, 10), (20, 20), (60, 10)], start=1):
        with record.annotation(f"ProfilerStep#{number}"):
            pass
        record.rows["annotations"][-1].values.update(start=start, duration=duration)
    record.kernel(GEMM, is_launched=False, at=moment)

    assert steps_of(record.trace()) == [f"ProfilerStep#{step}" if step else None]


def test_steps_of_torch_1_8_are_operations() -> None:
    record = Recorder()
    with record.operation("ProfilerStep#1"), record.operation("aten::conv2d"):
        record.kernel(FORWARD)

    trace = record.trace()

    assert steps_of(trace) == ["ProfilerStep#1"]
    assert operation_names(trace, attribute(trace)) == ["aten::conv2d"]


CONVOLUTIONS = """
aten::conv2d aten::conv_transpose3d aten::_convolution aten::convolution_backward aten::thnn_conv2d
aten::cudnn_convolution_backward_weight aten::miopen_depthwise_convolution aten::_conv_depthwise2d
mkldnn::_convolution_pointwise
""".split()
OTHERS = (
    "aten::batch_norm aten::cudnn_batch_norm aten::contiguous aten::_weight_norm ConvolutionBackward0 mylib::conv2d"
)


def test_convolutions_of_every_version_are_known_and_nothing_else() -> None:
    others = [
        *OTHERS.split(),
        "ConvolutionBackward0",
        "nn.Module: Conv2d_0",
        "autograd::engine::evaluate_function: ConvolutionBackward0",
    ]

    assert [name for name in [*CONVOLUTIONS, *others] if is_convolution(name)] == CONVOLUTIONS
