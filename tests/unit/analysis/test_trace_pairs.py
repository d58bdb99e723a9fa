from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pytest
from loops import for_each
from recorded_builders import (
    DATA_GRADIENT,
    FILL,
    FORWARD,
    GEMM,
    MIOPEN_DATA_GRADIENT,
    MIOPEN_FORWARD,
    POINTWISE,
    STRIDED_COPY,
    TO_NCHW,
    TO_NHWC,
    TRANSPOSE,
    Recorder,
)

from layoutdoctor.analysis.convolution_shapes import cudnn_grid
from layoutdoctor.analysis.trace_attribution import attribute
from layoutdoctor.analysis.trace_convolutions import classify, groups_of, library_conversions
from layoutdoctor.analysis.trace_pairs import TracePair, base_name_of, find_pairs, is_agnostic_operation
from layoutdoctor.layout import contiguous_stride, dense_stride

if TYPE_CHECKING:
    from layoutdoctor.analysis.trace_convolutions import LibraryConversion
    from layoutdoctor.traces.recorded import RecordedTrace

SMALL, IMAGE, WIDE = (4, 32, 28, 28), (4, 64, 28, 28), (4, 96, 28, 28)
GROW, KEEP = (64, 32, 3, 3), (64, 64, 3, 3)  # weights: SMALL to IMAGE, IMAGE to IMAGE
ALL = (TO_NHWC, TO_NHWC, FORWARD, TO_NCHW)
ALL_MIOPEN = (TRANSPOSE, TRANSPOSE, MIOPEN_FORWARD, TRANSPOSE)
BATCH_NORM = "void at::native::batch_norm_transform_input_kernel<float, float, float, true, int>(x)"
COUNT = "void at::native::vectorized_elementwise_kernel<4, at::native::CUDAFunctorOnSelf_add<long>, x>(int, x)"


def found_in(trace: RecordedTrace) -> tuple[list[LibraryConversion], list[TracePair]]:
    attribution, classes = attribute(trace), classify(trace)
    groups = groups_of(trace, attribution, classes)
    conversions = library_conversions(trace, attribution, classes, groups)
    return conversions, find_pairs(trace, attribution, classes, groups, conversions)


def pairs_of(record: Recorder) -> list[TracePair]:
    return found_in(record.trace())[1]


def confidences(record: Recorder) -> list[str]:
    return [pair.confidence for pair in pairs_of(record)]


def chain(*between: str, kernels: tuple[str, ...] = ALL, record: Recorder | None = None) -> Recorder:
    """Two convolutions of the same sizes, with operations on the value between."""
    record = record or Recorder()
    record.convolution(IMAGE, KEEP, *kernels)
    for name in between:
        record.pointwise(name, IMAGE)
    record.convolution(IMAGE, KEEP, *kernels)
    return record


def test_out_and_back_around_a_pointwise_operation_is_a_round_trip() -> None:
    conversions, pairs = found_in(chain("aten::batch_norm", "aten::relu").trace())

    (pair,) = pairs
    assert (conversions[pair.first].direction, conversions[pair.second].direction) == (
        "to_contiguous",
        "to_channels_last",
    )
    assert (pair.between, pair.confidence, pair.shape) == (("aten::batch_norm", "aten::relu"), "shapes", IMAGE)
    assert (pair.first, pair.second) == (2, 3)


def test_an_operation_of_several_kernels_is_named_once() -> None:
    record = Recorder()
    record.convolution(IMAGE, KEEP, *ALL)
    with record.operation("aten::native_batch_norm", shapes=[IMAGE]):
        record.kernel(BATCH_NORM)
        record.kernel(POINTWISE)
    record.pointwise("aten::relu", IMAGE)
    record.convolution(IMAGE, KEEP, *ALL)

    assert pairs_of(record)[0].between == ("aten::native_batch_norm", "aten::relu")


def test_a_channels_last_model_whose_convolutions_run_contiguous_makes_round_trips_the_other_way() -> None:
    record = Recorder()
    for image in (IMAGE, IMAGE):
        values = ["", "", "", "[1, 1]", "[1, 1]", "[1, 1]", "1"]
        with record.operation("aten::conv2d", shapes=[image, KEEP], values=values):
            for name, shape in ((TO_NCHW, IMAGE), (TO_NCHW, KEEP), (FORWARD, None), (TO_NHWC, IMAGE)):
                record.kernel(name, grid=cudnn_grid(shape) if shape else None)
        record.pointwise("aten::relu", IMAGE)

    conversions, pairs = found_in(record.trace())

    assert [(conversions[p.first].direction, conversions[p.second].direction) for p in pairs] == [
        ("to_channels_last", "to_contiguous")
    ]


def test_what_a_convolution_reads_and_what_the_next_one_reads_are_no_round_trip() -> None:
    record = Recorder(has_shapes=False)
    record.convolution(IMAGE, KEEP, TO_NCHW, FORWARD, TO_NHWC)
    record.pointwise("aten::relu", IMAGE)
    record.convolution(IMAGE, KEEP, TO_NHWC, FORWARD)

    assert pairs_of(record) == []


def test_other_sizes_are_another_value() -> None:
    record = Recorder()
    record.convolution(SMALL, GROW, *ALL)
    record.pointwise("aten::relu", IMAGE)
    record.convolution(WIDE, (64, 96, 3, 3), *ALL)

    assert pairs_of(record) == []


def test_other_sizes_are_another_value_also_where_the_kernel_says_nothing_of_them() -> None:
    record = Recorder()
    record.convolution(SMALL, GROW, *ALL)
    record.pointwise("aten::relu", IMAGE)
    with record.operation("aten::conv2d", shapes=[WIDE, (64, 96, 3, 3)]):
        record.kernel(TO_NHWC, grid=(9, 9, 9))
        record.kernel(FORWARD)

    assert pairs_of(record) == []


def test_without_shapes_equal_grids_speak_for_it() -> None:
    assert confidences(chain("aten::relu", record=Recorder(has_shapes=False))) == ["grid"]


def test_without_shapes_other_grids_speak_against_it() -> None:
    record = Recorder(has_shapes=False)
    record.convolution(SMALL, GROW, *ALL)
    record.pointwise("aten::relu")
    record.convolution(WIDE, (64, 96, 3, 3), *ALL)

    assert pairs_of(record) == []


def test_without_shapes_and_grids_the_order_is_all_there_is() -> None:
    (pair,) = pairs_of(chain("aten::relu", kernels=ALL_MIOPEN, record=Recorder(has_shapes=False)))

    assert (pair.confidence, pair.shape) == ("order", None)


def test_in_miopen_shapes_speak_as_well() -> None:
    assert confidences(chain("aten::relu", kernels=ALL_MIOPEN)) == ["shapes"]


def test_a_conversion_of_the_weight_between_does_not_hide_that_of_the_input() -> None:
    record = Recorder()
    record.convolution(IMAGE, KEEP, *ALL)
    record.pointwise("aten::relu", IMAGE)
    values = ["", "", "", "[1, 1]", "[1, 1]", "[1, 1]", "1"]
    with record.operation("aten::conv2d", shapes=[IMAGE, KEEP], values=values):
        record.kernel(TO_NHWC, grid=cudnn_grid(KEEP))
        record.kernel(TO_NHWC, grid=cudnn_grid(IMAGE))
        record.kernel(FORWARD)

    conversions, pairs = found_in(record.trace())

    assert [conversions[p.second].row for p in pairs] == [6]


def test_a_convolution_that_converts_its_weight_alone_makes_none() -> None:
    record = Recorder()
    record.convolution(IMAGE, KEEP, *ALL)
    record.pointwise("aten::relu", IMAGE)
    with record.operation("aten::conv2d", shapes=[IMAGE, KEEP]):
        record.kernel(TO_NHWC, grid=cudnn_grid(KEEP))
        record.kernel(FORWARD)
    record.convolution(IMAGE, KEEP, *ALL)

    assert pairs_of(record) == []


def test_a_convolution_that_runs_as_it_is_ends_the_search() -> None:
    record = Recorder()
    record.convolution(IMAGE, KEEP, *ALL)
    record.pointwise("aten::relu", IMAGE)
    record.convolution(IMAGE, KEEP, FORWARD)
    record.pointwise("aten::relu", IMAGE)
    record.convolution(IMAGE, KEEP, *ALL)

    assert pairs_of(record) == []


def test_a_fill_of_the_next_convolution_does_not_end_it() -> None:
    assert confidences(chain("aten::relu", kernels=(FILL, *ALL_MIOPEN))) == ["shapes"]


def test_a_cast_within_the_next_convolution_does_not_end_it() -> None:
    record = Recorder()
    record.convolution(IMAGE, KEEP, *ALL)
    record.pointwise("aten::relu", IMAGE)
    with record.operation("aten::conv2d"):
        with record.operation("aten::to"):
            stride = contiguous_stride(KEEP)
            record.pointwise("aten::copy_", KEEP, KEEP, strides=[stride, stride])
        record.convolution(IMAGE, KEEP, *ALL)

    assert confidences(record) == ["shapes"]


@for_each(
    "name",
    [
        "aten::mm",
        "aten::cat",
        "mylib::mystery",
        "aten::max_pool2d",
        "aten::upsample_nearest2d",
        "aten::constant_pad_nd",
        "aten::layer_norm",
        "aten::threshold_backward",
        "triton_poi_fused_relu_0",
    ],
)
def test_an_operation_that_is_not_known_to_keep_each_element_in_its_place_ends_it(name: str) -> None:
    assert pairs_of(chain("aten::relu", name)) == []


def test_a_kernel_of_no_operation_ends_it_unless_its_name_is_known() -> None:
    for name, count in ((GEMM, 0), (POINTWISE, 1), (STRIDED_COPY, 0), (BATCH_NORM, 1)):
        record = Recorder(has_shapes=False)
        record.convolution(IMAGE, KEEP, *ALL)
        record.kernel(POINTWISE)
        record.kernel(name)
        record.convolution(IMAGE, KEEP, *ALL)

        assert len(pairs_of(record)) == count, name


def a_copy(record: Recorder, source: tuple[int, ...], target: tuple[int, ...]) -> None:
    record.pointwise("aten::copy_", IMAGE, IMAGE, strides=[target, source], kernel=STRIDED_COPY)


def test_a_copy_that_keeps_the_strides_takes_the_value_on() -> None:
    record = Recorder()
    record.convolution(IMAGE, KEEP, *ALL)
    a_copy(record, contiguous_stride(IMAGE), contiguous_stride(IMAGE))
    record.pointwise("aten::relu", IMAGE)
    record.convolution(IMAGE, KEEP, *ALL)

    assert pairs_of(record)[0].between == ("aten::copy_", "aten::relu")


def test_a_copy_that_changes_the_strides_ends_it() -> None:
    record = Recorder()
    record.convolution(IMAGE, KEEP, *ALL)
    a_copy(record, contiguous_stride(IMAGE), dense_stride(IMAGE, (0, 2, 3, 1)))
    record.convolution(IMAGE, KEEP, *ALL)

    assert pairs_of(record) == []


def test_a_copy_without_strides_ends_it() -> None:
    assert pairs_of(chain("aten::relu", "aten::copy_")) == []


def test_a_kernel_between_the_conversions_of_the_next_convolution_ends_it() -> None:
    record = Recorder(has_shapes=False)
    record.convolution(IMAGE, KEEP, *ALL)
    record.pointwise("aten::relu")
    with record.operation("aten::conv2d", external=1):
        record.kernel(TO_NHWC, grid=cudnn_grid(KEEP))
    record.pointwise("aten::relu")
    record.kernel(TO_NHWC, grid=cudnn_grid(IMAGE), external=1)
    record.kernel(FORWARD, external=1)

    assert pairs_of(record) == []


def test_the_result_of_a_backward_does_not_start_one() -> None:
    record = Recorder()
    with record.operation("aten::convolution_backward", shapes=[IMAGE, SMALL, GROW, (), (), (), ()]):
        record.kernel(TO_NHWC, grid=cudnn_grid(IMAGE))
        record.kernel(DATA_GRADIENT)
        record.kernel(TO_NCHW, grid=cudnn_grid(SMALL))
    record.pointwise("aten::mul", SMALL)
    record.convolution(SMALL, GROW, *ALL)

    assert pairs_of(record) == []


@pytest.mark.parametrize("has_shapes", [True, False])
def test_a_gradient_does_not_end_one(has_shapes: bool) -> None:
    """A block recomputed for its backward ends in a convolution; what comes next is the gradient of its result."""
    record = Recorder(has_shapes=has_shapes)
    record.convolution(SMALL, GROW, *ALL)
    record.pointwise("aten::div", IMAGE)
    with record.operation("aten::convolution_backward", shapes=[IMAGE, SMALL, GROW, (), (), (), ()]):
        record.kernel(TO_NHWC, grid=cudnn_grid(IMAGE))
        record.kernel(DATA_GRADIENT)

    assert pairs_of(record) == []


def test_without_operations_the_kernel_that_computes_tells_a_backward() -> None:
    record = Recorder()
    for main in (MIOPEN_DATA_GRADIENT, MIOPEN_FORWARD, MIOPEN_DATA_GRADIENT):
        for name in (TRANSPOSE, main, TRANSPOSE, POINTWISE):
            record.kernel(name, is_launched=False)

    assert pairs_of(record) == []


def test_kernels_without_operations_make_round_trips_too() -> None:
    record = Recorder()
    for _ in range(2):
        for name in (*ALL_MIOPEN, BATCH_NORM, POINTWISE):
            record.kernel(name, is_launched=False)

    (pair,) = pairs_of(record)
    assert (pair.between, pair.confidence) == ((BATCH_NORM, POINTWISE), "order")


def test_nothing_between_is_a_round_trip_where_the_sizes_exclude_a_second_reader_of_the_first_input() -> None:
    record = Recorder()
    record.convolution(SMALL, GROW, *ALL)
    record.convolution(IMAGE, KEEP, *ALL)

    (pair,) = pairs_of(record)
    assert (pair.between, pair.confidence) == ((), "shapes")


def test_launch_grids_exclude_it_as_well() -> None:
    record = Recorder(has_shapes=False)
    record.convolution(SMALL, GROW, *ALL)
    record.convolution(IMAGE, KEEP, *ALL)

    assert confidences(record) == ["grid"]


@pytest.mark.parametrize("has_shapes", [True, False])
@pytest.mark.parametrize("kernels", [ALL, ALL_MIOPEN])
def test_two_readers_of_one_input_are_no_round_trip(has_shapes: bool, kernels: tuple[str, ...]) -> None:
    """Queries, keys and values of an attention: three 1x1 convolutions of the same tensor, one after the other."""
    record = Recorder(has_shapes=has_shapes)
    for _ in range(3):
        record.convolution(IMAGE, (64, 64, 1, 1), *kernels)

    assert pairs_of(record) == []


def test_an_operation_on_another_tensor_does_not_take_the_value_on() -> None:
    record = Recorder()
    record.convolution(IMAGE, KEEP, *ALL)
    record.pointwise("aten::silu", (4, 1280))
    record.convolution(IMAGE, KEEP, *ALL)

    assert pairs_of(record) == []


def test_where_only_a_norm_took_the_value_on_the_order_is_all_there_is() -> None:
    """A block with a 3x3 and a 1x1 branch of one input, each with its batch norm."""
    record = Recorder()
    record.convolution(IMAGE, KEEP, *ALL)
    record.pointwise("aten::add_", (), kernel=COUNT)
    record.pointwise("aten::cudnn_batch_norm", IMAGE)
    record.convolution(IMAGE, (64, 64, 1, 1), *ALL)

    assert confidences(record) == ["order"]


def test_the_same_holds_without_shapes() -> None:
    record = Recorder(has_shapes=False)
    record.convolution(IMAGE, KEEP, *ALL)
    record.kernel(COUNT)
    record.kernel(BATCH_NORM)
    record.convolution(IMAGE, KEEP, *ALL)

    assert confidences(record) == ["order"]


def test_where_the_order_is_all_there_is_a_norm_alone_says_nothing() -> None:
    """The last convolution of a residual block and its batch norm, then the one that scales the block's input down."""
    record = Recorder(has_shapes=False)
    record.convolution(IMAGE, KEEP, *ALL_MIOPEN)
    record.kernel(BATCH_NORM)
    record.convolution(IMAGE, (64, 64, 1, 1), *ALL_MIOPEN)

    assert pairs_of(record) == []


def test_around_a_norm_between_other_sizes_shapes_speak() -> None:
    record = Recorder()
    record.convolution(SMALL, GROW, *ALL)
    record.pointwise("aten::cudnn_batch_norm", IMAGE)
    record.convolution(IMAGE, KEEP, *ALL)

    assert confidences(record) == ["shapes"]


@pytest.mark.parametrize("other", [{"stream": 9}, {"device": 1}, {"process": 1}])
def test_what_runs_elsewhere_is_not_mixed_in(other: dict[str, int]) -> None:
    record = Recorder()
    names = (*ALL_MIOPEN, POINTWISE, *ALL_MIOPEN)
    for place, name in enumerate(names):
        record.kernel(name, is_launched=False, at=1000 * place, takes=900)
        record.kernel(GEMM, is_launched=False, at=1000 * place + 500, takes=900, **other)

    assert len(pairs_of(record)) == 1


@pytest.mark.parametrize("other", [{"stream": 9}, {"device": 1}, {"process": 1}])
def test_what_runs_elsewhere_makes_no_round_trip_with_it(other: dict[str, int]) -> None:
    record = Recorder()
    for changes in ({}, other):
        for name in (*ALL_MIOPEN, POINTWISE):
            record.kernel(name, is_launched=False, **changes)

    assert pairs_of(record) == []


def stepped(numbers: tuple[int, int]) -> Recorder:
    record = Recorder()
    for number in numbers:
        with record.annotation(f"ProfilerStep#{number}"):
            record.convolution(SMALL, (32, 32, 3, 3), *ALL)
            record.pointwise("aten::mul", SMALL)
    return record


def test_the_last_convolution_of_a_step_and_the_first_of_the_next_make_none() -> None:
    assert len(pairs_of(stepped((1, 2)))) == 0


def test_within_one_step_they_make_one() -> None:
    record = Recorder()
    with record.annotation("ProfilerStep#1"):
        chain("aten::relu", record=record)

    assert len(pairs_of(record)) == 1


def test_a_result_with_two_readers_is_one_round_trip() -> None:
    record = Recorder()
    record.convolution(SMALL, GROW, *ALL)
    record.pointwise("aten::relu", IMAGE)
    record.convolution(IMAGE, (96, 64, 3, 3), *ALL)
    record.convolution(IMAGE, (96, 64, 1, 1), *ALL)

    conversions, pairs = found_in(record.trace())

    assert [conversions[p.second].group for p in pairs] == [2]


def test_a_chain_of_convolutions_is_one_round_trip_for_each_link() -> None:
    record = Recorder()
    for _ in range(4):
        record.convolution(IMAGE, KEEP, *ALL)
        record.pointwise("aten::relu", IMAGE)

    pairs = pairs_of(record)

    assert len(pairs) == 3
    assert [p.first for p in pairs] == sorted(p.first for p in pairs)


def random_record(seed: int) -> Recorder:
    """Convolutions and other operations in any order, on two streams, of few sizes, with parts of them missing."""
    generator = np.random.default_rng(seed)
    record = Recorder(has_shapes=bool(generator.integers(2)))
    for _ in range(60):
        kind = generator.integers(5)
        image = IMAGE if generator.integers(3) else SMALL
        kernels = ALL if generator.integers(2) else ALL_MIOPEN
        kept = [name for name in kernels if generator.integers(8)]
        if kind < 3:
            record.convolution(image, (image[1], image[1], 3, 3), *kept)
        elif kind == 3:
            record.pointwise("aten::relu", image)
        else:
            for name in kept:
                record.kernel(name, is_launched=bool(generator.integers(2)))
    return record


@for_each("seed", range(40))
def test_a_conversion_is_in_one_round_trip_at_most_and_never_both_ends_of_one(seed: int) -> None:
    conversions, pairs = found_in(random_record(seed).trace())

    firsts, seconds = [p.first for p in pairs], [p.second for p in pairs]
    assert len(set(firsts)) == len(firsts)
    assert len(set(seconds)) == len(seconds)
    assert not set(firsts) & set(seconds)
    for pair in pairs:
        first, second = conversions[pair.first], conversions[pair.second]
        assert first.row < second.row
        assert first.group != second.group
        assert (first.is_result, second.is_result) == (True, False)


def test_random_records_have_round_trips_at_all() -> None:
    assert sum(len(pairs_of(random_record(seed))) for seed in range(40)) > 20


@pytest.mark.parametrize(
    ("name", "base"), [("aten::relu_", "relu"), ("aten::add", "add"), ("aten::native_batch_norm", "native_batch_norm")]
)
def test_a_name_without_namespace_and_underscore(name: str, base: str) -> None:
    assert base_name_of(name) == base


@for_each(
    ("name", "is_agnostic"),
    [
        ("aten::relu_", True),
        ("aten::native_group_norm", True),
        ("aten::zero_", True),
        ("aiter::_groupnorm_run", True),
        ("mylib::relu", False),
        ("aten::avg_pool2d", False),
        ("aten::gelu_backward", False),
        ("aten::_log_softmax", False),
        ("ReluBackward0", False),
    ],
)
def test_operations_that_keep_each_element_in_its_place(name: str, is_agnostic: bool) -> None:
    assert is_agnostic_operation(name) is is_agnostic
