from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING

from recorded_builders import DATA_GRADIENT, FORWARD, GEMM, Recorder

from layoutdoctor.examination.kernels.attribution import Places, attribute

if TYPE_CHECKING:
    from collections.abc import Iterator

    from layoutdoctor.recording.recording import RecordedTrace

TORCH = "torch/nn/modules/conv.py(553): forward"


def places_of(record: Recorder) -> tuple[RecordedTrace, Places]:
    trace = record.trace()
    return trace, Places(attribute(trace))


def where(record: Recorder) -> list[tuple[str | None, str | None]]:
    """Module and line of each kernel."""
    trace, places = places_of(record)
    rows = range(len(trace.kernels))
    lines = [str(place) if place is not None else None for place in places.locations(rows)]
    return list(zip(places.modules(rows), lines, strict=True))


@contextmanager
def layer(record: Recorder, number: int) -> Iterator[None]:
    """The call of a layer from its own line of the model."""
    with (
        record.frame(f"models/net.py({number}): forward"),
        record.frame(f"nn.Module: Conv2d_{number}"),
        record.frame(TORCH),
    ):
        yield


@contextmanager
def forward(record: Recorder, sequence: int) -> Iterator[None]:
    with record.operation("aten::conv2d", sequence=sequence, forward_thread=0):
        yield


@contextmanager
def backward(record: Recorder, sequence: int, thread: int = 1, name: str = "ConvolutionBackward0") -> Iterator[None]:
    with (
        record.operation(f"autograd::engine::evaluate_function: {name}"),
        record.operation(name, sequence=sequence, forward_thread=thread),
        record.operation("aten::convolution_backward"),
    ):
        yield


def test_a_launch_has_the_innermost_module_and_line_of_its_own_thread() -> None:
    record = Recorder()
    with layer(record, 1), record.operation("aten::conv2d", external=5):
        pass
    record.kernel(FORWARD, external=5, is_launched=False)

    assert where(record) == [("Conv2d_1", "models/net.py:1")]

    record = Recorder()
    with record.frame("train.py(9): main"), record.frame("nn.Module: Net_0"):
        for number in (1, 2):
            with layer(record, number), forward(record, number):
                record.kernel(FORWARD)
    record.on_thread("autograd")
    for number in (2, 1):
        with backward(record, number):
            record.kernel(DATA_GRADIENT)

    first, second = ("Conv2d_1", "models/net.py:1"), ("Conv2d_2", "models/net.py:2")
    assert where(record) == [first, second, second, first]


def test_a_recomputed_forward_is_in_its_own_frames_and_the_call_of_backward_is_no_place() -> None:
    record = Recorder()
    with layer(record, 1), record.operation("CheckpointFunction", sequence=1, forward_thread=0):
        pass
    record.on_thread("autograd")
    with (
        record.frame("torch/autograd/function.py(300): apply"),
        record.operation("CheckpointFunctionBackward", sequence=1, forward_thread=1),
        layer(record, 2),
        forward(record, 7),
    ):
        record.kernel(FORWARD)

    assert where(record) == [("Conv2d_2", "models/net.py:2")]

    record = Recorder()
    with layer(record, 1), forward(record, 1):
        record.kernel(FORWARD)
    with record.frame("train.py(30): step"), record.frame("nn.Module: Trainer_0"), backward(record, 1):
        record.kernel(DATA_GRADIENT)

    assert where(record)[1] == ("Conv2d_1", "models/net.py:1")


STACK = "torch/nn/functional.py(2282): batch_norm;torch/nn/modules/batchnorm.py(140): forward;net.py(17): forward"


def test_a_backward_belongs_to_the_last_forward_of_its_number_in_its_step_thread_and_process() -> None:
    record = Recorder()
    for number in (1, 2):
        with layer(record, number), forward(record, 5):
            record.kernel(FORWARD)
        with backward(record, 5):
            record.kernel(DATA_GRADIENT)

    assert [module for module, _ in where(record)] == ["Conv2d_1", "Conv2d_1", "Conv2d_2", "Conv2d_2"]

    # The first layer is not recomputed; what a recomputed one counts on the thread of autograd is another number.
    record = Recorder()
    for number in (1, 2, 3):
        with layer(record, number), forward(record, 10 + number):
            pass
    record.on_thread("autograd")
    with backward(record, 13):
        pass
    with record.operation("CheckpointFunctionBackward", sequence=12, forward_thread=1):
        with layer(record, 9), forward(record, 11):
            pass
        with backward(record, 11, thread=2):
            record.kernel(DATA_GRADIENT)
    with backward(record, 11):
        record.kernel(DATA_GRADIENT)

    trace, places = places_of(record)
    last = [row for row in range(len(trace.operations)) if trace.operations.sequence[row] == 11]

    assert [module for module, _ in where(record)] == ["Conv2d_9", "Conv2d_1"]
    assert [trace.threads[trace.operations.thread[places.forward_of(row)]][1] for row in last[2:]] == [
        "autograd",
        "main",
    ]


def test_the_call_stack_of_torch_1_9_tells_the_line_of_a_backward_as_well() -> None:
    record = Recorder()
    with record.operation("aten::conv2d", call_stack=STACK), record.operation("aten::cudnn_convolution"):
        record.kernel(FORWARD)
    with record.operation("aten::relu", call_stack="torch/nn/functional.py(1206): relu"):
        record.kernel(GEMM)

    assert where(record) == [(None, "net.py:17"), (None, None)]

    record = Recorder()
    with record.operation("aten::conv2d", sequence=1, forward_thread=0, call_stack=STACK):
        pass
    with backward(record, 1):
        record.kernel(DATA_GRADIENT)

    assert where(record) == [(None, "net.py:17")]
