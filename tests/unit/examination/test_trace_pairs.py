from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from recorded_builders import (
    DATA_GRADIENT,
    FORWARD,
    MIOPEN_DATA_GRADIENT,
    MIOPEN_FORWARD,
    POINTWISE,
    STRIDED_COPY,
    TO_NCHW,
    TO_NHWC,
    TRANSPOSE,
    Recorder,
)

from layoutdoctor.diagnosis.layout import contiguous_stride, dense_stride
from layoutdoctor.examination.kernels.attribution import attribute
from layoutdoctor.examination.kernels.evidence import Evidence
from layoutdoctor.examination.kernels.pairs import TracePair, find_pairs
from layoutdoctor.examination.kernels.shapes import cudnn_grid

if TYPE_CHECKING:
    from collections.abc import Callable

    from layoutdoctor.examination.kernels.evidence import LibraryConversion
    from layoutdoctor.recording.recording import RecordedTrace

    Step = Callable[[Recorder], object]

SMALL, IMAGE, WIDE = (4, 32, 28, 28), (4, 64, 28, 28), (4, 96, 28, 28)
GROW, KEEP = (64, 32, 3, 3), (64, 64, 3, 3)  # weights: SMALL to IMAGE, IMAGE to IMAGE
ALL = (TO_NHWC, TO_NHWC, FORWARD, TO_NCHW)
ALL_MIOPEN = (TRANSPOSE, TRANSPOSE, MIOPEN_FORWARD, TRANSPOSE)
BATCH_NORM = "void at::native::batch_norm_transform_input_kernel<float, float, float, true, int>(x)"
COUNT = "void at::native::vectorized_elementwise_kernel<4, at::native::CUDAFunctorOnSelf_add<long>, x>(int, x)"


def found_in(trace: RecordedTrace) -> tuple[list[LibraryConversion], list[TracePair]]:
    evidence = Evidence(attribute(trace))
    return evidence.conversions, find_pairs(evidence)


def pairs_of(record: Recorder) -> list[TracePair]:
    return found_in(record.trace())[1]


def confidences(record: Recorder) -> list[str]:
    return [pair.confidence for pair in pairs_of(record)]


def step(name: str, *arguments: Any, **options: Any) -> Step:
    """A call of one of the recorder's methods, to be made later."""
    return lambda record: getattr(record, name)(*arguments, **options)


def conv(image: tuple[int, ...] = IMAGE, weight: tuple[int, ...] = KEEP, kernels: tuple[str, ...] = ALL) -> Step:
    return step("convolution", image, weight, *kernels)


def on_value(*names: str) -> tuple[Step, ...]:
    return tuple(step("pointwise", name, IMAGE) for name in names)


def copy_between(source: tuple[int, ...], target: tuple[int, ...]) -> Step:
    return step("pointwise", "aten::copy_", IMAGE, IMAGE, strides=[target, source], kernel=STRIDED_COPY)


def inside(operation: str, *steps: Step, **options: Any) -> Step:
    def run(record: Recorder) -> None:
        with record.operation(operation, **options):
            for each in steps:
                each(record)

    return run


def kernel(name: str, shape: tuple[int, ...] | None = None, **options: Any) -> Step:
    """A kernel; of a conversion with the grid that cuDNN gives a tensor of this shape."""
    return step("kernel", name, grid=cudnn_grid(shape) if shape else None, **options)


def unlaunched(*names: str, **options: Any) -> tuple[Step, ...]:
    return tuple(kernel(name, is_launched=False, **options) for name in names)


def in_step(number: int, *steps: Step) -> Step:
    def run(record: Recorder) -> None:
        with record.annotation(f"ProfilerStep#{number}"):
            for each in steps:
                each(record)

    return run


(RELU,) = on_value("aten::relu")


def recorded(*steps: Step, has_shapes: bool = True) -> Recorder:
    record = Recorder(has_shapes=has_shapes)
    for each in steps:
        each(record)
    return record


def chain(*between: str, kernels: tuple[str, ...] = ALL, has_shapes: bool = True) -> Recorder:
    """Two convolutions of the same sizes, with operations on the value between."""
    return recorded(conv(kernels=kernels), *on_value(*between), conv(kernels=kernels), has_shapes=has_shapes)


def test_out_and_back_around_operations_that_keep_the_layout_is_a_round_trip() -> None:
    conversions, pairs = found_in(chain("aten::batch_norm", "aten::relu").trace())

    (pair,) = pairs
    assert (conversions[pair.first].direction, conversions[pair.second].direction) == (
        "to_contiguous",
        "to_channels_last",
    )
    assert (pair.between, pair.confidence, pair.shape) == (("aten::batch_norm", "aten::relu"), "shapes", IMAGE)
    assert (pair.first, pair.second) == (2, 3)

    norm = inside("aten::native_batch_norm", kernel(BATCH_NORM), kernel(POINTWISE), shapes=[IMAGE])

    assert pairs_of(recorded(conv(), norm, RELU, conv()))[0].between == ("aten::native_batch_norm", "aten::relu")


BACKWARD = inside(
    "aten::convolution_backward",
    kernel(TO_NHWC, IMAGE),
    kernel(DATA_GRADIENT),
    shapes=[IMAGE, SMALL, GROW, (), (), (), ()],
)
BACKWARD_WITH_RESULT = inside(
    "aten::convolution_backward",
    kernel(TO_NHWC, IMAGE),
    kernel(DATA_GRADIENT),
    kernel(TO_NCHW, SMALL),
    shapes=[IMAGE, SMALL, GROW, (), (), (), ()],
)
STRIDES, LAST_STRIDES = contiguous_stride(IMAGE), dense_stride(IMAGE, (0, 2, 3, 1))
WIDER, BRANCH = (64, 96, 3, 3), (64, 64, 1, 1)


@pytest.mark.parametrize(
    ("why", "record"),
    [
        (
            "what a convolution reads and what the next one reads is no round trip",
            recorded(
                conv(kernels=(TO_NCHW, FORWARD, TO_NHWC)), RELU, conv(kernels=(TO_NHWC, FORWARD)), has_shapes=False
            ),
        ),
        ("other sizes are another value", recorded(conv(SMALL, GROW), RELU, conv(WIDE, WIDER))),
        (
            "without shapes other grids speak against it",
            recorded(conv(SMALL, GROW), step("pointwise", "aten::relu"), conv(WIDE, WIDER), has_shapes=False),
        ),
        (
            "a convolution that runs as it is ends the search",
            recorded(conv(), RELU, conv(kernels=(FORWARD,)), RELU, conv()),
        ),
        ("a copy that changes the strides", recorded(conv(), copy_between(STRIDES, LAST_STRIDES), conv())),
        (
            "the result of a backward does not start one",
            recorded(BACKWARD_WITH_RESULT, step("pointwise", "aten::mul", SMALL), conv(SMALL, GROW)),
        ),
        # A block recomputed for its backward ends in a convolution; what comes next is the gradient of its result.
        *(
            (
                "a gradient does not end one",
                recorded(conv(SMALL, GROW), step("pointwise", "aten::div", IMAGE), BACKWARD, has_shapes=has_shapes),
            )
            for has_shapes in (True, False)
        ),
        (
            "without operations the kernel that computes tells a backward",
            recorded(
                *(
                    each
                    for main in (MIOPEN_DATA_GRADIENT, MIOPEN_FORWARD, MIOPEN_DATA_GRADIENT)
                    for each in unlaunched(TRANSPOSE, main, TRANSPOSE, POINTWISE)
                )
            ),
        ),
        # Queries, keys and values of an attention: three 1x1 convolutions of the same tensor, one after the other.
        *(
            ("two readers of one input", recorded(*[conv(IMAGE, BRANCH, kernels)] * 3, has_shapes=has_shapes))
            for has_shapes in (True, False)
            for kernels in (ALL, ALL_MIOPEN)
        ),
        (
            "an operation on another tensor does not take the value on",
            recorded(conv(), step("pointwise", "aten::silu", (4, 1280)), conv()),
        ),
        # The last convolution of a residual block and its norm, then the one that scales the block's input down.
        (
            "where the order is all there is a norm alone says nothing",
            recorded(conv(kernels=ALL_MIOPEN), kernel(BATCH_NORM), conv(IMAGE, BRANCH, ALL_MIOPEN), has_shapes=False),
        ),
        (
            "the last convolution of a step and the first of the next",
            recorded(
                *(
                    in_step(number, conv(SMALL, (32, 32, 3, 3)), step("pointwise", "aten::mul", SMALL))
                    for number in (1, 2)
                )
            ),
        ),
    ],
)
def test_there_is_no_round_trip_where(why: str, record: Recorder) -> None:
    assert pairs_of(record) == []


@pytest.mark.parametrize(
    ("why", "record", "confidence"),
    [
        ("in MIOpen shapes speak as well", chain("aten::relu", kernels=ALL_MIOPEN), "shapes"),
        ("without shapes equal grids speak for it", chain("aten::relu", has_shapes=False), "grid"),
        ("within one step", recorded(in_step(1, conv(), RELU, conv())), "shapes"),
        (
            "launch grids exclude a second reader of the first input",
            recorded(conv(SMALL, GROW), conv(), has_shapes=False),
            "grid",
        ),
        # A block with a 3x3 and a 1x1 branch of one input, each with its batch norm.
        (
            "where only a norm took the value on the order is all there is",
            recorded(
                conv(),
                step("pointwise", "aten::add_", (), kernel=COUNT),
                *on_value("aten::cudnn_batch_norm"),
                conv(IMAGE, BRANCH),
            ),
            "order",
        ),
    ],
)
def test_one_round_trip_has_the_strongest_proof_that_was_recorded(why: str, record: Recorder, confidence: str) -> None:
    assert confidences(record) == [confidence]
