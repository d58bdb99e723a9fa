from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
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
from layoutdoctor.examination.kernels.convolutions import LibraryConversion, classify, groups_of, library_conversions
from layoutdoctor.examination.kernels.shapes import cudnn_grid
from layoutdoctor.recording.recording import NONE

if TYPE_CHECKING:
    from layoutdoctor.recording.recording import RecordedTrace

IMAGE, WIDE, WEIGHT = (4, 64, 28, 28), (4, 96, 28, 28), (96, 64, 3, 3)
IN, OUT = "to_channels_last", "to_contiguous"
CNHW = ("transpose_NCHW2CNHW_V2_2D_WG_off64", "Cijk_Ailk_Bljk_BBS_BH_MT32", "transpose_CNHW2NCHW_V2_2D_WG_off64")


def conversions_of(trace: RecordedTrace) -> list[LibraryConversion]:
    attribution, classes = attribute(trace), classify(trace)
    return library_conversions(trace, attribution, classes, groups_of(trace, attribution, classes))


def roles(found: list[LibraryConversion]) -> list[tuple[str, str | None]]:
    """Direction and tensor of each conversion."""
    return [(c.direction, c.tensor.role if c.tensor is not None else None) for c in found]


def directions(found: list[LibraryConversion]) -> list[str]:
    return [c.direction for c in found]


def confidences(found: list[LibraryConversion]) -> set[str | None]:
    return {c.confidence for c in found}


def backward(record: Recorder, *kernels: str, image: Any = IMAGE, weight: Any = WEIGHT) -> None:
    """A backward convolution; ``gap`` stands for another call of the device runtime."""
    result = (image[0], weight[0], *image[2:])
    with record.operation("aten::convolution_backward", shapes=[result, image, weight, (), (), (), ()]):
        for kernel in kernels:
            if kernel == "gap":
                record.call()
            else:
                record.kernel(kernel)


def test_cudnn_converts_input_and_weight_and_then_the_output() -> None:
    record = Recorder()
    record.convolution(IMAGE, WEIGHT, TO_NHWC, TO_NHWC, FORWARD, TO_NCHW)

    found = conversions_of(record.trace())

    assert roles(found) == [(IN, "input"), (IN, "weight"), (OUT, "output")]
    assert [c.is_result for c in found] == [False, False, True]
    assert confidences(found) == {"shapes"}
    assert {(c.dtype, c.input_shape) for c in found} == {("c10::Half", IMAGE)}
    assert found[2].tensor is not None
    assert found[2].tensor.shape == WIDE


def test_the_weight_may_come_first_in_cudnn() -> None:
    record = Recorder()
    with record.operation(
        "aten::conv2d", shapes=[IMAGE, WEIGHT], values=["", "", "", "[1, 1]", "[1, 1]", "[1, 1]", "1"]
    ):
        record.kernel(TO_NHWC, grid=cudnn_grid(WEIGHT))
        record.kernel(TO_NHWC, grid=cudnn_grid(IMAGE))
        record.kernel(FORWARD)

    assert roles(conversions_of(record.trace())) == [(IN, "weight"), (IN, "input")]


def test_a_convolution_that_keeps_the_sizes_converts_its_input_in_cudnn_never_the_buffer_of_its_output() -> None:
    record = Recorder()
    record.convolution(IMAGE, (64, 64, 3, 3), TO_NHWC, TO_NHWC, FORWARD)

    found = conversions_of(record.trace())

    assert roles(found) == [(IN, "input"), (IN, "weight")]
    assert confidences(found) == {"shapes"}


def test_sizes_that_input_and_weight_share_name_neither_in_cudnn() -> None:
    record = Recorder()
    record.convolution((64, 64, 3, 3), (64, 64, 3, 3), TO_NHWC, TO_NHWC, FORWARD)

    found = conversions_of(record.trace())

    assert roles(found) == [(IN, None), (IN, None)]
    assert confidences(found) == {"grid"}


def test_sizes_of_one_dimension_are_converted_as_well() -> None:
    record = Recorder()
    record.convolution((4, 64, 100), (96, 64, 3), TO_NHWC, TO_NHWC, FORWARD, TO_NCHW)

    assert roles(conversions_of(record.trace())) == [(IN, "input"), (IN, "weight"), (OUT, "output")]


def test_a_grid_that_fits_no_tensor_names_none() -> None:
    record = Recorder()
    with record.operation("aten::conv2d", shapes=[IMAGE, WEIGHT]):
        record.kernel(TO_NHWC, grid=(1, 1, 1))
        record.kernel(FORWARD)

    assert roles(conversions_of(record.trace())) == [(IN, None)]


def test_a_channels_last_model_that_runs_a_contiguous_convolution_is_converted_the_other_way_round() -> None:
    record = Recorder()
    grids = [IMAGE, WEIGHT, WIDE]
    with record.operation(
        "aten::conv2d", shapes=[IMAGE, WEIGHT], values=["", "", "", "[1, 1]", "[1, 1]", "[1, 1]", "1"]
    ):
        for name in (TO_NCHW, TO_NCHW, FORWARD, TO_NHWC):
            record.kernel(name, grid=None if name == FORWARD else cudnn_grid(grids.pop(0)))

    found = conversions_of(record.trace())

    assert roles(found) == [(OUT, "input"), (OUT, "weight"), (IN, "output")]
    assert [c.is_result for c in found] == [False, False, True]


def test_without_shapes_cudnn_leaves_the_grid() -> None:
    record = Recorder(has_shapes=False)
    record.convolution(IMAGE, WEIGHT, TO_NHWC, TO_NHWC, FORWARD, TO_NCHW)

    found = conversions_of(record.trace())

    assert roles(found) == [(IN, None), (IN, None), (OUT, None)]
    assert confidences(found) == {"grid"}
    assert [c.is_result for c in found] == [False, False, True]


def test_without_a_grid_the_name_of_cudnn_leaves_the_order() -> None:
    record = Recorder(has_shapes=False)
    with record.operation("aten::conv2d"):
        record.kernel(TO_NHWC)
        record.kernel(FORWARD)

    assert confidences(conversions_of(record.trace())) == {"order"}


def test_miopen_converts_two_before_and_one_behind() -> None:
    record = Recorder()
    record.convolution(IMAGE, WEIGHT, FILL, TRANSPOSE, TRANSPOSE, MIOPEN_FORWARD, CAST_RESULT, TRANSPOSE)

    found = conversions_of(record.trace())

    assert roles(found) == [(IN, "input"), (IN, "weight"), (OUT, "output")]
    assert confidences(found) == {"shapes"}


def test_miopen_may_convert_the_buffer_of_the_output_as_well() -> None:
    record = Recorder()
    record.convolution(IMAGE, (64, 64, 3, 3), TRANSPOSE, TRANSPOSE, TRANSPOSE, MIOPEN_FORWARD, TRANSPOSE)

    found = conversions_of(record.trace())

    assert roles(found) == [(IN, "input"), (IN, "weight"), (IN, "output"), (OUT, "output")]
    assert [c.is_result for c in found] == [False, False, False, True]


def test_without_shapes_miopen_leaves_the_order() -> None:
    record = Recorder(has_shapes=False)
    record.convolution(IMAGE, WEIGHT, TRANSPOSE, TRANSPOSE, MIOPEN_FORWARD, TRANSPOSE)

    found = conversions_of(record.trace())

    assert roles(found) == [(IN, None), (IN, None), (OUT, None)]
    assert confidences(found) == {"order"}


BOTH_PARTS = [
    (IN, "grad_output"),
    (IN, "weight"),
    (OUT, "grad_input"),
    (IN, "input"),
    (IN, "grad_output"),
    (OUT, "grad_weight"),
]


def test_the_parts_of_a_backward_are_told_apart_by_the_fills_of_miopen() -> None:
    record = Recorder()
    data = (FILL, TRANSPOSE, TRANSPOSE, MIOPEN_DATA_GRADIENT, CAST_RESULT, TRANSPOSE)
    weight = (FILL, TRANSPOSE, TRANSPOSE, MIOPEN_WEIGHT_GRADIENT, CAST_RESULT, TRANSPOSE)
    backward(record, *data, *weight)

    assert roles(conversions_of(record.trace())) == BOTH_PARTS


def test_the_parts_of_a_backward_are_told_apart_by_a_gap_in_the_correlations() -> None:
    record = Recorder()
    data = (TRANSPOSE, TRANSPOSE, MIOPEN_DATA_GRADIENT, TRANSPOSE)
    backward(record, *data, "gap", TRANSPOSE, TRANSPOSE, MIOPEN_WEIGHT_GRADIENT, TRANSPOSE)

    assert roles(conversions_of(record.trace())) == BOTH_PARTS


def test_a_gap_right_behind_the_kernel_that_computes_means_that_its_result_was_not_converted() -> None:
    record = Recorder()
    backward(record, TRANSPOSE, MIOPEN_DATA_GRADIENT, "gap", TRANSPOSE, TRANSPOSE, MIOPEN_WEIGHT_GRADIENT)

    found = conversions_of(record.trace())

    assert directions(found) == [IN, IN, IN]
    assert [c.is_result for c in found] == [False, False, False]


def test_a_fill_right_behind_it_means_the_same() -> None:
    record = Recorder()
    backward(record, TRANSPOSE, MIOPEN_DATA_GRADIENT, FILL, TRANSPOSE, TRANSPOSE, MIOPEN_WEIGHT_GRADIENT)

    assert directions(conversions_of(record.trace())) == [IN, IN, IN]


def test_without_correlations_the_first_one_behind_is_the_result() -> None:
    record = Recorder()
    with record.operation("aten::convolution_backward", shapes=[WIDE, IMAGE, WEIGHT, (), (), (), ()], external=1):
        pass
    for name in (TRANSPOSE, MIOPEN_DATA_GRADIENT, TRANSPOSE, TRANSPOSE, MIOPEN_WEIGHT_GRADIENT):
        record.kernel(name, external=1, correlation=NONE, is_launched=False)

    assert directions(conversions_of(record.trace())) == [IN, OUT, IN]


def test_gradients_and_activations_of_the_same_sizes_are_not_told_apart_in_cudnn() -> None:
    record = Recorder()
    with record.operation("aten::convolution_backward", shapes=[IMAGE, IMAGE, (64, 64, 3, 3), (), (), (), ()]):
        record.kernel(TO_NHWC, grid=cudnn_grid(IMAGE))
        record.kernel(TO_NHWC, grid=cudnn_grid(IMAGE))
        record.kernel(WEIGHT_GRADIENT)

    assert roles(conversions_of(record.trace())) == [(IN, None), (IN, None)]


def test_two_gradients_of_the_same_sizes_are_not_told_apart_in_cudnn() -> None:
    image = (64, 64, 3, 3)
    record = Recorder()
    with record.operation("aten::convolution_backward", shapes=[image, image, image, (), (), (), ()]):
        record.kernel(FORWARD)
        record.kernel(TO_NCHW, grid=cudnn_grid(image))

    assert roles(conversions_of(record.trace())) == [(OUT, None)]


def test_in_miopen_they_are_told_apart_by_their_order_alone() -> None:
    record = Recorder()
    backward(record, TRANSPOSE, TRANSPOSE, MIOPEN_WEIGHT_GRADIENT, TRANSPOSE, weight=(64, 64, 3, 3))

    found = conversions_of(record.trace())

    assert roles(found) == [(IN, "input"), (IN, "grad_output"), (OUT, "grad_weight")]
    assert [c.confidence for c in found] == ["order", "order", "shapes"]


def test_cudnn_names_the_part_of_the_backward_by_the_kernel_that_computes() -> None:
    record = Recorder()
    with record.operation("aten::convolution_backward", shapes=[WIDE, IMAGE, WEIGHT, (), (), (), ()]):
        for shape, main, result in (
            ((WIDE, WEIGHT), DATA_GRADIENT, IMAGE),
            ((IMAGE, WIDE), WEIGHT_GRADIENT, WEIGHT),
        ):
            for read in shape:
                record.kernel(TO_NHWC, grid=cudnn_grid(read))
            record.kernel(main)
            record.kernel(TO_NCHW, grid=cudnn_grid(result))

    assert roles(conversions_of(record.trace())) == BOTH_PARTS


def test_cnhw_is_neither_of_the_two_formats() -> None:
    record = Recorder()
    record.convolution(IMAGE, (96, 64, 1, 1), *CNHW)

    assert roles(conversions_of(record.trace())) == [("other", None), ("other", None)]


@pytest.mark.parametrize("weight", [(96, 64, 1, 1), (64, 1, 3, 3)])
@pytest.mark.parametrize("kernels", [(TO_NHWC, TO_NHWC, FORWARD), (TRANSPOSE, TRANSPOSE, MIOPEN_FORWARD)])
def test_a_weight_that_is_in_both_formats_at_once_is_never_said_to_be_converted(
    weight: tuple[int, ...], kernels: tuple[str, ...]
) -> None:
    record = Recorder()
    record.convolution(IMAGE, weight, *kernels)

    assert "weight" not in {c.tensor.role for c in conversions_of(record.trace()) if c.tensor is not None}


def test_the_longest_kernel_computes_where_no_name_says_so() -> None:
    record = Recorder()
    with record.operation("aten::cudnn_convolution"):
        record.kernel("unknown_short_kernel", takes=10)
        record.kernel(TRANSPOSE, takes=5000)
        record.kernel("unknown_long_kernel", takes=900)
        record.kernel(TRANSPOSE, takes=5000)

    assert directions(conversions_of(record.trace())) == [IN, OUT]


def test_where_nothing_computes_a_kernel_of_miopen_has_no_direction() -> None:
    record = Recorder()
    record.convolution(IMAGE, WEIGHT, TRANSPOSE, FILL)

    found = conversions_of(record.trace())

    assert [(c.direction, c.is_result, c.confidence) for c in found] == [("other", None, None)]


def test_the_sizes_come_from_the_innermost_operation_that_says_all_of_them() -> None:
    record = Recorder()
    values = ["", "", "", "[1, 1]", "[1, 1]", "[1, 1]", "1"]
    with (
        record.operation("aten::conv2d", shapes=[IMAGE, WEIGHT], values=values),
        record.operation("aten::_convolution", shapes=[IMAGE, WEIGHT]),
        record.operation("aten::empty"),
    ):
        record.kernel(TO_NHWC, grid=cudnn_grid(IMAGE))
        record.kernel(FORWARD)
        record.kernel(TO_NCHW, grid=cudnn_grid(WIDE))

    assert roles(conversions_of(record.trace())) == [(IN, "input"), (OUT, "output")]


def runs(record: Recorder) -> list[int]:
    trace = record.trace()
    attribution, classes = attribute(trace), classify(trace)
    return groups_of(trace, attribution, classes)


def alone(record: Recorder, *names: str, **changes: Any) -> None:
    """Kernels of which neither launch nor operation was recorded."""
    for name in names:
        record.kernel(name, is_launched=False, **changes)


def test_kernels_without_operations_that_follow_one_another_ran_for_one_convolution() -> None:
    record = Recorder()
    alone(record, TRANSPOSE, TRANSPOSE, MIOPEN_FORWARD, TRANSPOSE)
    alone(record, POINTWISE)
    alone(record, TRANSPOSE, MIOPEN_FORWARD, TRANSPOSE)

    found = conversions_of(record.trace())

    assert runs(record) == [-2, -2, -2, -2, NONE, -3, -3, -3]
    assert directions(found) == [IN, IN, OUT, IN, OUT]
    assert confidences(found) == {"order"}


def test_kernels_that_a_graph_replays_are_grouped_alike() -> None:
    record = Recorder()
    with record.operation("Torch-Compiled Region: 0/0"):
        record.replay(TRANSPOSE, MIOPEN_FORWARD, TRANSPOSE, POINTWISE)

    assert runs(record) == [-2, -2, -2, NONE]
    assert directions(conversions_of(record.trace())) == [IN, OUT]


@pytest.mark.parametrize("other", [{"stream": 9}, {"device": 1}, {"process": 1}])
def test_a_run_is_of_one_stream_of_one_device_of_one_process(other: dict[str, int]) -> None:
    record = Recorder()
    alone(record, TRANSPOSE)
    alone(record, MIOPEN_FORWARD, **other)

    assert len(set(runs(record))) == 2


def test_kernels_of_an_operation_belong_to_its_convolution() -> None:
    record = Recorder()
    record.convolution(IMAGE, WEIGHT, TO_NHWC, FORWARD)
    record.pointwise("aten::relu", IMAGE)

    assert runs(record) == [0, 0, NONE]


def test_a_conversion_outside_of_any_convolution_is_kept() -> None:
    record = Recorder()
    with record.operation("mylib::run"):
        record.kernel(TO_NHWC)

    found = conversions_of(record.trace())

    assert [(c.row, c.group, c.direction, c.is_result) for c in found] == [(0, NONE, IN, None)]


def test_conversions_come_in_the_order_of_their_kernels() -> None:
    record = Recorder()
    for stream in (7, 8):
        with record.operation("aten::conv2d"):
            for name in (TO_NHWC, FORWARD, TO_NCHW):
                record.kernel(name, stream=stream)

    found = conversions_of(record.trace())

    assert [c.row for c in found] == sorted(c.row for c in found)
    assert len(found) == 4


def test_a_name_says_what_a_kernel_is() -> None:
    record = Recorder()
    record.convolution(IMAGE, WEIGHT, FILL, TRANSPOSE, MIOPEN_FORWARD, TO_NHWC)
    trace = record.trace()

    classes = classify(trace)

    def said(name: str) -> tuple[bool | str, ...]:
        return classes[trace.names.index(name)][:5]

    assert said(FILL) == (False, False, True, "none", "miopen")
    assert said(TRANSPOSE) == (True, False, False, "other", "miopen")
    assert said(MIOPEN_FORWARD)[:3] == (False, True, False)
    assert said(TO_NHWC) == (True, False, False, IN, "cudnn")
    assert said("aten::conv2d") == (False, False, False, "none", "")
