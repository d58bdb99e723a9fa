from __future__ import annotations

from builders import a_conversion, a_diagnosis, a_location, a_ratio, a_speedup, a_trial, kernels
from trace_builders import a_recorded_trial, an_eager_copy, to_channels_last, to_contiguous

from layoutdoctor.rules import wording


def test_a_speed_without_enough_rounds_for_an_interval_has_a_range() -> None:
    ratio = a_ratio("eager", 0.61, width=0.01, coverage=None)

    assert wording.speed_words(ratio, "inductor") == "eager runs at 0.61x the speed of inductor (range 0.60x to 0.62x)"


def test_a_verified_gain_has_its_interval() -> None:
    assert wording.speedup_words(a_speedup(1.28)) == "1.28x faster (1.25x to 1.31x)"


def test_a_cost_is_told_as_part_of_the_kernel_time_where_that_was_recorded() -> None:
    assert wording.cost_words(a_trial(), 3e-3) == "3.00 ms of 15.0 ms kernel time (20 %)"
    assert wording.cost_words(a_trial(kernels=kernels(share=None, seconds=15e-3)), None) is None
    assert wording.cost_words(a_trial(kernels=None), 3e-3) == "3.00 ms"


def test_without_a_comparison_no_speed_is_told() -> None:
    trial, other = a_trial(), a_trial("eager")

    assert wording.alternative_words(a_diagnosis(trial, other), trial, other) == ""


def test_a_cost_says_where_its_number_is_from() -> None:
    assert wording.cost_words(a_trial(), 3e-3, "estimated") == "3.00 ms of 15.0 ms kernel time (20 %, estimated)"
    assert wording.cost_words(a_trial(kernels=None), 3e-3, "estimated") == "3.00 ms (estimated)"


def test_a_sum_of_costs_is_measured_estimated_or_partly_estimated() -> None:
    assert wording.source_words(["measured", "measured"]) == "measured"
    assert wording.source_words(["estimated"]) == "estimated"
    assert wording.source_words(["measured", "estimated", None]) == "partly estimated"
    assert wording.source_words(["measured", None]) is None
    assert wording.source_words([]) is None


def test_conversions_cost_their_time_else_what_they_move() -> None:
    known, unknown = a_conversion(seconds_source="estimated"), a_conversion("b", seconds=None)

    assert wording.conversion_cost_words(a_trial(), [known, unknown]) == (
        "1.00 ms of 15.0 ms kernel time (6.7 %, estimated)"
    )
    assert wording.conversion_cost_words(a_trial(), [unknown]) == "6.12 MiB moved"
    assert wording.conversion_cost_words(a_trial(), [a_conversion(seconds=None, bytes_moved=None)]) is None


def test_steps_are_told_where_there_are_several() -> None:
    def in_steps(*steps: str | None) -> str | None:
        return wording.step_words([to_channels_last(f"k{i}", step=step) for i, step in enumerate(steps)])

    assert in_steps("1", "2", "1", "2") == "2 in each of 2 recorded steps"
    assert in_steps("1", "2", "1") == "in 2 recorded steps"
    assert in_steps("1", "1") is None
    assert in_steps(None, None) is None


def test_names_are_told_with_counts_where_there_are_several() -> None:
    assert wording.named_counts([]) is None
    assert wording.named_counts([("copy_", 3), ("copy_", 1)]) == "copy_"
    assert wording.named_counts([("clone", 1), ("copy_", 3), ("clone", 1)]) == "copy_ (3) and clone (2)"


def test_the_dearest_direction_is_that_of_the_most_time_then_of_the_most_launches() -> None:
    slow, fast = to_contiguous("a", seconds=2e-4), to_channels_last("b", seconds=1e-4, count=9)

    assert wording.dearest_direction([fast, slow]) == "to_contiguous"
    assert wording.dearest_direction(
        [to_contiguous("a", seconds=None), to_channels_last("b", seconds=None, count=9)]
    ) == ("to_channels_last")
    assert wording.dearest_direction([]) is None


def test_the_format_to_try_follows_the_rank_where_all_have_the_same() -> None:
    assert wording.channels_last_words([4, 4]) == "torch.channels_last"
    assert wording.channels_last_words([5]) == "torch.channels_last_3d"
    assert wording.channels_last_words([4, 5]) == "torch.channels_last"
    assert wording.channels_last_words([]) == "torch.channels_last"


def test_an_amd_gpu_needs_a_switch_for_channels_last_and_no_other_does() -> None:
    def words(*kernels: str | None) -> str:
        return wording.miopen_words([to_channels_last("a", kernel=kernel) for kernel in kernels])

    switch = "; before ROCm 7, channels_last takes effect only with PYTORCH_MIOPEN_SUGGEST_NHWC=1 in the environment"
    assert words(None, "batched_transpose_64x64_pack_4x4_ediv_2x2_half") == switch
    assert words("void cudnn::ops::nchwToNhwcKernel<float, float>", None) == ""
    assert words() == ""


def test_several_places_are_named_with_their_counts_and_the_rest_is_counted() -> None:
    copies = [
        to_channels_last("a", module=None, location=a_location(3), seconds=2e-4, count=5),
        to_channels_last("b", module="conv_1", location=None, seconds=1e-4, count=2),
        to_channels_last("c", module="conv_2", location=a_location(4), seconds=None, bytes_moved=9),
        to_channels_last("d", module="conv_3", location=None, seconds=None, bytes_moved=8),
    ]

    assert wording.places_words(copies) == (
        "5 at model.py:3, 2 in conv_1, 1 in conv_2 (model.py:4) and the others at 1 more place"
    )
    assert wording.dearest_place_words(copies) == "most at model.py:3: 5 of them, 200 us"
    assert wording.dearest_place_words(copies[2:]) == "most in conv_2 (model.py:4): 1 of them"
    assert wording.places_words(copies[:1]) is wording.dearest_place_words(copies[:1]) is None


def test_what_libraries_took_is_a_part_of_the_convolution_time_and_what_ran_meanwhile_is_told() -> None:
    trial = a_recorded_trial()

    assert wording.conversion_cost_words(trial, [to_contiguous("a")]) == (
        "100 us of 15.0 ms kernel time (0.7 %, 2.5 % of the convolution time), 40.0 us of it while nothing else ran"
    )
    assert wording.conversion_cost_words(trial, [an_eager_copy("a")]) == (
        "100 us of 15.0 ms kernel time (0.7 %), 40.0 us of it while nothing else ran"
    )
