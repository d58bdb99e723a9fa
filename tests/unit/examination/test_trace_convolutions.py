from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from recorded_builders import (
    CAST_RESULT,
    DATA_GRADIENT,
    FILL,
    FORWARD,
    MIOPEN_DATA_GRADIENT,
    MIOPEN_FORWARD,
    MIOPEN_WEIGHT_GRADIENT,
    POINTWISE,
    TO_NCHW,
    TO_NHWC,
    TRANSPOSE,
    WEIGHT_GRADIENT,
    Recorder,
)

from layoutdoctor.examination.kernels.attribution import attribute
from layoutdoctor.examination.kernels.evidence import Evidence, LibraryConversion, _side
from layoutdoctor.examination.kernels.shapes import UNKNOWN_TENSOR, cudnn_grid
from layoutdoctor.recording.recording import NONE

if TYPE_CHECKING:
    from layoutdoctor.recording.recording import RecordedTrace

IMAGE, WIDE, WEIGHT = (4, 64, 28, 28), (4, 96, 28, 28), (96, 64, 3, 3)
IN, OUT = "to_channels_last", "to_contiguous"
CNHW = ("transpose_NCHW2CNHW_V2_2D_WG_off64", "Cijk_Ailk_Bljk_BBS_BH_MT32", "transpose_CNHW2NCHW_V2_2D_WG_off64")


def conversions_of(trace: RecordedTrace) -> list[LibraryConversion]:
    return Evidence(attribute(trace)).conversions


def roles(found: list[LibraryConversion]) -> list[tuple[str, str | None]]:
    """Direction and tensor of each conversion."""
    return [(c.direction, None if c.tensor is UNKNOWN_TENSOR else c.tensor.role) for c in found]


def directions(found: list[LibraryConversion]) -> list[str]:
    return [c.direction for c in found]


def confidences(found: list[LibraryConversion]) -> set[str | None]:
    return {c.confidence for c in found}


def conv(*kernels: str, image: Any = IMAGE, weight: Any = WEIGHT, has_shapes: bool = True) -> Recorder:
    record = Recorder(has_shapes=has_shapes)
    record.convolution(image, weight, *kernels)
    return record


def within(name: str, shapes: list[Any], *kernels: str | tuple[str, Any], **more: Any) -> Recorder:
    """An operation of these kernels, with the grid of a shape; ``gap`` is another call of the device runtime."""
    record = Recorder()
    with record.operation(name, shapes=shapes, **more):
        for kernel in kernels:
            if kernel == "gap":
                record.call()
            elif isinstance(kernel, str):
                record.kernel(kernel)
            else:
                record.kernel(kernel[0], grid=cudnn_grid(kernel[1]) if len(kernel[1]) > 3 else kernel[1])
    return record


def backward(*kernels: str | tuple[str, Any], image: Any = IMAGE, weight: Any = WEIGHT) -> Recorder:
    result = (image[0], weight[0], *image[2:])
    return within("aten::convolution_backward", [result, image, weight, (), (), (), ()], *kernels)


def nested() -> Recorder:
    record = Recorder()
    with (
        record.operation("aten::conv2d", shapes=[IMAGE, WEIGHT], values=VALUES),
        record.operation("aten::_convolution", shapes=[IMAGE, WEIGHT]),
        record.operation("aten::empty"),
    ):
        record.kernel(TO_NHWC, grid=cudnn_grid(IMAGE))
        record.kernel(FORWARD)
        record.kernel(TO_NCHW, grid=cudnn_grid(WIDE))
    return record


VALUES = ["", "", "", "[1, 1]", "[1, 1]", "[1, 1]", "1"]
SAME, SQUARE = (64, 64, 3, 3), (64, 64, 3, 3)
FORWARD_ROLES = [(IN, "input"), (IN, "weight"), (OUT, "output")]
BOTH_PARTS = [
    *((IN, "grad_output"), (IN, "weight"), (OUT, "grad_input")),
    *((IN, "input"), (IN, "grad_output"), (OUT, "grad_weight")),
]
DATA_PART = (TRANSPOSE, TRANSPOSE, MIOPEN_DATA_GRADIENT)
WEIGHT_PART = (TRANSPOSE, TRANSPOSE, MIOPEN_WEIGHT_GRADIENT)
ALL = (TO_NHWC, TO_NHWC, FORWARD, TO_NCHW)
FORMS = {"values": VALUES}


@pytest.mark.parametrize(
    ("why", "record", "expected", "confidence"),
    [
        ("cuDNN: input and weight, then the output", conv(*ALL), FORWARD_ROLES, {"shapes"}),
        (
            "the weight may come first",
            within("aten::conv2d", [IMAGE, WEIGHT], (TO_NHWC, WEIGHT), (TO_NHWC, IMAGE), FORWARD, **FORMS),
            [(IN, "weight"), (IN, "input")],
            {"shapes"},
        ),
        ("cuDNN converts no buffer of a result", conv(*ALL[:3], weight=SQUARE), FORWARD_ROLES[:2], {"shapes"}),
        ("sizes that input and weight share", conv(*ALL[:3], image=SAME, weight=SQUARE), [(IN, None)] * 2, {"grid"}),
        (
            "a channels_last model that runs a contiguous convolution",
            within(
                *("aten::conv2d", [IMAGE, WEIGHT], (TO_NCHW, IMAGE), (TO_NCHW, WEIGHT), FORWARD, (TO_NHWC, WIDE)),
                **FORMS,
            ),
            [(OUT, "input"), (OUT, "weight"), (IN, "output")],
            {"shapes"},
        ),
        ("no shapes", conv(*ALL, has_shapes=False), [(IN, None), (IN, None), (OUT, None)], {"grid"}),
        (
            "MIOpen: two before, one behind",
            conv(FILL, TRANSPOSE, TRANSPOSE, MIOPEN_FORWARD, CAST_RESULT, TRANSPOSE),
            FORWARD_ROLES,
            {"shapes"},
        ),
        (
            "MIOpen may convert the buffer of the output as well",
            conv(TRANSPOSE, TRANSPOSE, TRANSPOSE, MIOPEN_FORWARD, TRANSPOSE, weight=SQUARE),
            [(IN, "input"), (IN, "weight"), (IN, "output"), (OUT, "output")],
            {"shapes"},
        ),
        (
            "parts of a backward by fills",
            backward(FILL, *DATA_PART, CAST_RESULT, TRANSPOSE, FILL, *WEIGHT_PART, CAST_RESULT, TRANSPOSE),
            BOTH_PARTS,
            {"shapes", "order"},
        ),
        (
            "parts of a backward by a gap in the correlations",
            backward(*DATA_PART, TRANSPOSE, "gap", *WEIGHT_PART, TRANSPOSE),
            BOTH_PARTS,
            {"shapes", "order"},
        ),
        (
            "gradient and activation of the same sizes in cuDNN",
            backward((TO_NHWC, IMAGE), (TO_NHWC, IMAGE), WEIGHT_GRADIENT, weight=SQUARE),
            [(IN, "input"), (IN, "grad_output")],
            {"grid"},
        ),
        *(
            (f"their order is open, and with {why} also which they are", record, [(IN, None)] * count, {"grid"})
            for why, count, record in (
                ("one of them", 1, backward((TO_NHWC, IMAGE), WEIGHT_GRADIENT, weight=SQUARE)),
                ("three of them", 3, backward(*[(TO_NHWC, IMAGE)] * 3, WEIGHT_GRADIENT, weight=SQUARE)),
                (
                    "sizes that differ within one launch grid",
                    2,
                    backward(*[(TO_NHWC, IMAGE)] * 2, WEIGHT_GRADIENT, weight=(63, 64, 3, 3)),
                ),
            )
        ),
        (
            "in MIOpen by their order alone",
            backward(*WEIGHT_PART, TRANSPOSE, weight=SQUARE),
            [(IN, "input"), (IN, "grad_output"), (OUT, "grad_weight")],
            {"order", "shapes"},
        ),
        (
            "parts of a backward in cuDNN by the kernel that computes",
            backward(
                *((TO_NHWC, WIDE), (TO_NHWC, WEIGHT), DATA_GRADIENT, (TO_NCHW, IMAGE)),
                *((TO_NHWC, IMAGE), (TO_NHWC, WIDE), WEIGHT_GRADIENT, (TO_NCHW, WEIGHT)),
            ),
            BOTH_PARTS,
            {"shapes"},
        ),
        ("CNHW is neither format", conv(*CNHW, weight=(96, 64, 1, 1)), [("other", None)] * 2, {None}),
        *(
            (
                "a weight in both formats at once",
                conv(*kernels, weight=weight),
                [(IN, "input"), (IN, other)],
                confidence,
            )
            for weight in ((96, 64, 1, 1), (64, 1, 3, 3))
            for kernels, other, confidence in (
                (ALL[:3], None, {"shapes", "grid"}),
                ((TRANSPOSE, TRANSPOSE, MIOPEN_FORWARD), "output", {"shapes"}),
            )
        ),
        ("nothing computes", conv(TRANSPOSE, FILL), [("other", None)], {None}),
        ("the innermost operation that says all sizes", nested(), [(IN, "input"), (OUT, "output")], {"shapes"}),
        ("outside of any convolution", within("mylib::run", [], TO_NHWC), [(IN, None)], {None}),
    ],
)
def test_each_conversion_has_its_direction_and_tensor(
    why: str, record: Recorder, expected: list[tuple[str, str | None]], confidence: set[str | None]
) -> None:
    found = conversions_of(record.trace())

    assert roles(found) == expected
    assert confidences(found) == confidence
    if confidence != {None}:
        mains = [
            row for row, name in enumerate(record.rows["kernels"]) if record.trace().names[name.values["name"]] in MAINS
        ]
        if len(mains) == 1:
            assert [c.is_result for c in found] == [c.row > mains[0] for c in found]


MAINS = {FORWARD, DATA_GRADIENT, WEIGHT_GRADIENT, MIOPEN_FORWARD, MIOPEN_DATA_GRADIENT, MIOPEN_WEIGHT_GRADIENT}


def test_no_port_is_named_if_the_order_of_the_tensors_is_open() -> None:
    record = backward((TO_NHWC, IMAGE), (TO_NHWC, IMAGE), WEIGHT_GRADIENT, (TO_NCHW, SQUARE), weight=SQUARE)
    tensors = [conversion.tensor for conversion in conversions_of(record.trace())]

    assert [(t.kind, t.port) for t in tensors if t is not UNKNOWN_TENSOR] == [
        ("activation", "input"),
        ("gradient", "input"),
        ("gradient", "output 1"),
    ]


def test_what_a_conversion_knows_of_its_convolution_and_which_kernel_computes() -> None:
    found = conversions_of(conv(*ALL).trace())

    assert {(c.dtype, c.input_shape) for c in found} == {("c10::Half", IMAGE)}
    assert found[2].tensor.shape == WIDE

    record = Recorder()
    with record.operation("aten::cudnn_convolution"):
        for name, takes in (("short", 10), (TRANSPOSE, 5000), ("long", 900), (TRANSPOSE, 5000)):
            record.kernel(name, takes=takes)

    assert directions(conversions_of(record.trace())) == [IN, OUT]

    record = Recorder()
    with record.operation("aten::convolution_backward", shapes=[WIDE, IMAGE, WEIGHT, (), (), (), ()], external=1):
        pass
    for name in (TRANSPOSE, MIOPEN_DATA_GRADIENT, TRANSPOSE, TRANSPOSE, MIOPEN_WEIGHT_GRADIENT):
        record.kernel(name, external=1, correlation=NONE, is_launched=False)

    assert directions(conversions_of(record.trace())) == [IN, OUT, IN]


def runs(record: Recorder) -> list[int]:
    return Evidence(attribute(record.trace())).groups


def alone(record: Recorder, *names: str, **changes: Any) -> None:
    """Kernels of which neither launch nor operation was recorded."""
    for name in names:
        record.kernel(name, is_launched=False, **changes)


def test_kernels_without_operations_are_grouped_by_what_follows_what() -> None:
    record = Recorder()
    alone(record, TRANSPOSE, TRANSPOSE, MIOPEN_FORWARD, TRANSPOSE)
    alone(record, POINTWISE)
    alone(record, TRANSPOSE, MIOPEN_FORWARD, TRANSPOSE)

    found = conversions_of(record.trace())

    assert runs(record) == [-2, -2, -2, -2, NONE, -3, -3, -3]
    assert directions(found) == [IN, IN, OUT, IN, OUT]
    assert confidences(found) == {"order"}

    record = Recorder()
    with record.operation("Torch-Compiled Region: 0/0"):
        record.replay(TRANSPOSE, MIOPEN_FORWARD, TRANSPOSE, POINTWISE)

    assert runs(record) == [-2, -2, -2, NONE]
    assert directions(conversions_of(record.trace())) == [IN, OUT]


@settings(max_examples=300, deadline=None)
@given(
    batch=st.integers(1, 512),
    channels=st.integers(1, 2048),
    image=st.integers(2, 256),
    outputs=st.integers(1, 2048),
    kernel=st.sampled_from([1, 2, 3, 5, 7]),
)
def test_the_grid_never_takes_one_side_for_the_other(
    batch: int, channels: int, image: int, outputs: int, kernel: int
) -> None:
    assert _side(cudnn_grid((batch, channels, image, image)), batch) in (True, None)
    if outputs != batch or kernel < 7:  # a 7 x 7 weight of as many outputs as images looks like one
        assert _side(cudnn_grid((outputs, channels, kernel, kernel)), batch) in (False, None)


def test_sides_are_known_with_one_batch_and_one_weight_per_operation() -> None:
    def sides(*sizes: list[int]) -> list[bool | None]:
        record = Recorder(has_shapes=False)
        for pair in zip(sizes[::2], sizes[1::2], strict=True):
            with record.operation("aten::conv2d"), record.operation("aten::cudnn_convolution"):
                for size in pair:
                    record.kernel(TO_NHWC, grid=cudnn_grid(tuple(size)))
                record.kernel(FORWARD)
        return [conversion.of_batch for conversion in conversions_of(record.trace())]

    images, small, weight = [8, 64, 56, 56], [8, 512, 7, 7], [512, 64, 3, 3]
    assert sides(images, weight, small, weight) == [True, False, True, False]
    assert sides(images, weight, [4, 64, 56, 56], weight) == [None] * 4  # two batches
    assert sides(small, weight) == [None] * 2  # none is certainly an image
    assert sides(images, weight, [100, 64, 7, 7], weight) == [None] * 4  # regions of a detector
