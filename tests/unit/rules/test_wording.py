from __future__ import annotations

from builders import (
    a_conversion,
    a_diagnosis,
    a_ratio,
    a_speedup,
    a_trial,
    kernels,
)

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
