"""What rules ask of a recorded trace: training or not, counts, places, steps."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from builders import a_diagnosis, a_location
from trace_builders import (
    a_recorded_kernel,
    a_recorded_trial,
    a_total,
    a_trace_diagnosis,
    an_eager_copy,
    recorded_kernels,
    to_channels_last,
    to_contiguous,
)

from layoutdoctor.rules import recorded

if TYPE_CHECKING:
    from layoutdoctor.records import Trial


def test_the_recorded_trial_is_there_in_a_trace_only() -> None:
    diagnosis = a_trace_diagnosis()

    assert recorded.recorded_trial(diagnosis) is diagnosis.trials[0]
    assert recorded.recorded_trial(a_diagnosis()) is None


@pytest.mark.parametrize(
    ("trial", "is_training"),
    [
        (a_recorded_trial(to_channels_last("a")), False),
        (a_recorded_trial(kernels=None), False),
        (a_recorded_trial(to_channels_last("a", tensor="gradient")), True),
        (a_recorded_trial(to_channels_last("a", op="aten::convolution_backward")), True),
        (a_recorded_trial(kernels=recorded_kernels(kernels=(a_recorded_kernel(backward=True),))), True),
        (a_recorded_trial(kernels=recorded_kernels(kernels=(a_recorded_kernel("sm80_xmma_dgrad_nhwc"),))), True),
        (a_recorded_trial(kernels=recorded_kernels(kernels=(a_recorded_kernel(op="ReluBackward0"),))), True),
        (a_recorded_trial(kernels=recorded_kernels(kernels=(a_recorded_kernel(),))), False),
        (a_recorded_trial(kernels=recorded_kernels(totals=(a_total("cudnn::bn_bw_1C11_kernel_new"),))), True),
        (a_recorded_trial(kernels=recorded_kernels(totals=(a_total("aten::conv2d", kind="operation"),))), False),
        (a_recorded_trial(kernels=recorded_kernels(totals=(a_total("MyBackwardModule", kind="module"),))), False),
    ],
)
def test_a_run_with_a_backward_in_it_is_training(trial: Trial, is_training: bool) -> None:
    assert recorded.is_training(trial) is is_training


def test_an_entry_of_a_table_of_totals_counts_for_all_its_launches() -> None:
    assert recorded.launch_count([to_channels_last("a", count=400), to_contiguous("b")]) == 401


def test_places_are_added_up_and_the_most_expensive_stands_first() -> None:
    copies = [
        to_channels_last("a", module="conv_1", location=None, seconds=None),
        to_channels_last("b", module="conv_2", location=a_location(3), seconds=2e-4, count=5),
        to_channels_last("c", module="conv_1", location=None, seconds=1e-4),
        to_channels_last("d", module=None, location=None, seconds=1.0),
    ]

    assert recorded.conversion_places(copies) == [
        recorded.Place("conv_2", a_location(3), 5, 2e-4),
        recorded.Place("conv_1", None, 2, 1e-4),
    ]


def test_several_places_are_named_with_their_counts_and_the_rest_is_counted() -> None:
    places = [
        recorded.Place(None, a_location(3), 5, 2e-4),
        recorded.Place("conv_1", None, 2, None),
        recorded.Place("conv_2", a_location(4), 1, None),
        recorded.Place("conv_3", None, 1, None),
    ]

    assert recorded.places_words(places) == (
        "5 at model.py:3, 2 in conv_1, 1 in conv_2 (model.py:4) and the others at 1 more place"
    )
    assert recorded.dearest_words(places) == "most at model.py:3: 5 of them, 200 us"
    assert recorded.dearest_words(places[1:]) == "most in conv_1: 2 of them"
    assert recorded.places_words(places[:1]) is None
    assert recorded.dearest_words(places[:1]) is None


def test_steps_are_told_where_there_are_several() -> None:
    def in_steps(*steps: str | None) -> str | None:
        return recorded.step_words([to_channels_last(f"k{i}", step=step) for i, step in enumerate(steps)])

    assert in_steps("1", "2", "1", "2") == "2 in each of 2 recorded steps"
    assert in_steps("1", "2", "1") == "in 2 recorded steps"
    assert in_steps("1", "1") is None
    assert in_steps(None, None) is None


def test_names_are_told_with_counts_where_there_are_several() -> None:
    assert recorded.named_counts([]) is None
    assert recorded.named_counts([("copy_", 3), ("copy_", 1)]) == "copy_"
    assert recorded.named_counts([("clone", 1), ("copy_", 3), ("clone", 1)]) == "copy_ (3) and clone (2)"


def test_the_dearest_direction_is_that_of_the_most_time_then_of_the_most_launches() -> None:
    slow, fast = to_contiguous("a", seconds=2e-4), to_channels_last("b", seconds=1e-4, count=9)

    assert recorded.dearest_direction([fast, slow]) == "to_contiguous"
    assert recorded.dearest_direction(
        [to_contiguous("a", seconds=None), to_channels_last("b", seconds=None, count=9)]
    ) == ("to_channels_last")
    assert recorded.dearest_direction([]) is None


def test_the_format_to_try_follows_the_rank_where_all_have_the_same() -> None:
    assert recorded.channels_last_words([4, 4]) == "torch.channels_last"
    assert recorded.channels_last_words([5]) == "torch.channels_last_3d"
    assert recorded.channels_last_words([4, 5]) == "torch.channels_last"
    assert recorded.channels_last_words([]) == "torch.channels_last"


def test_a_cost_without_a_time_is_none_and_one_that_no_library_made_has_no_part_of_the_convolutions() -> None:
    trial = a_recorded_trial()

    assert recorded.conversion_cost_words(trial, [to_contiguous("a", seconds=None)]) is None
    assert recorded.conversion_cost_words(trial, [to_contiguous("a")]) == (
        "100 us of 15.0 ms kernel time (0.7 %, 2.5 % of the convolution time), 40.0 us of it while nothing else ran"
    )
    assert recorded.conversion_cost_words(trial, [an_eager_copy("a")]) == (
        "100 us of 15.0 ms kernel time (0.7 %), 40.0 us of it while nothing else ran"
    )


def test_an_amd_gpu_needs_a_switch_for_channels_last_and_no_other_does() -> None:
    def words(*kernels: str | None) -> str:
        return recorded.miopen_words([to_channels_last("a", kernel=kernel) for kernel in kernels])

    switch = "; before ROCm 7, channels_last takes effect only with PYTORCH_MIOPEN_SUGGEST_NHWC=1 in the environment"
    assert words(None, "batched_transpose_64x64_pack_4x4_ediv_2x2_half") == switch
    assert words("void cudnn::ops::nchwToNhwcKernel<float, float>", None) == ""
    assert words() == ""
