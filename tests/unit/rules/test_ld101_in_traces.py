"""LD101 on recorded traces: what proves each round trip, what it costs, and which way the library wants it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from builders import Told, a_location, contiguous
from trace_builders import (
    a_recorded_pair,
    a_recorded_trial,
    a_trace_diagnosis,
    an_eager_copy,
    recorded_kernels,
    to_channels_last,
    to_contiguous,
)

from layoutdoctor.rules.round_trips import LD101

if TYPE_CHECKING:
    from layoutdoctor.diagnosis.records import Finding, RedundantPair, Trial

OUT, BACK = to_contiguous("k1"), to_channels_last("k2")


def a_trial_with(*pairs: RedundantPair, **changes: Any) -> Trial:
    return a_recorded_trial(OUT, BACK, redundant_pairs=pairs, **changes)


def findings(*pairs: RedundantPair, **changes: Any) -> list[Finding]:
    return list(LD101.check(a_trace_diagnosis(a_trial_with(*pairs, **changes))))


def a_pair_proved_by(confidence: str, seconds: float | None = 4e-4, **changes: Any) -> RedundantPair:
    return a_recorded_pair("k1", "k2", confidence=confidence, seconds=seconds, **changes)


def test_what_is_no_finding() -> None:
    assert findings() == []


def test_what_it_says(told: Told) -> None:
    told(
        "A round trip that shapes prove is told with its costs and what to record next",
        findings(a_pair_proved_by("shapes", exposed_seconds=0.00016)),
    )
    pairs = (
        *(a_pair_proved_by("shapes", 1e-5) for _ in range(63)),
        *(a_pair_proved_by("order", 1e-5, between=()) for _ in range(18)),
    )
    told("All round trips are one finding that counts them by what proves them", findings(*pairs))
    told("Without any time it is a note", findings(a_pair_proved_by("shapes", seconds=None, exposed_seconds=None)))

    cheap = a_pair_proved_by("shapes", 2e-4, module="conv_1", location=a_location(10))
    dear = [a_pair_proved_by("shapes", 1.5e-4, module="conv_2", location=a_location(20)) for _ in range(2)]
    told("The place is the one that costs most together", findings(cheap, *dear))
    pairs = [a_pair_proved_by("shapes", module=None, location=None, tensor_shape=None) for _ in range(2)]
    told("Without a place none is named", findings(*pairs))
    out, back = (to_contiguous("k1", source=None, target=None), to_channels_last("k2", source=None, target=None))
    trial = a_recorded_trial(out, back, redundant_pairs=(a_pair_proved_by("order", between=()),))
    told("Where no layout was recorded the direction says which way it goes", LD101.check(a_trace_diagnosis(trial)))
    copy = an_eager_copy("k1", target=contiguous(), direction="to_contiguous")
    trial = a_recorded_trial(copy, BACK, redundant_pairs=(a_pair_proved_by("shapes"),))
    told("Round trips that no library made are no part of the convolution time", LD101.check(a_trace_diagnosis(trial)))
    pairs = [a_pair_proved_by("shapes", between=(f"aten::op{i}",)) for i in range(5)]
    told("More kinds than can be named are counted", findings(*pairs))
    told(
        "The library conversions of a trace without a total time have no share",
        findings(a_pair_proved_by("shapes"), kernels=recorded_kernels(OUT, BACK, convolution_seconds=None)),
    )
    pairs = [a_pair_proved_by("shapes", between=(f"aten::op{i}",)) for i in range(4)]
    told("A single kind that cannot be named is one more kind", findings(*pairs))

    between = ("at::native::(anonymous namespace)::some_kernel", "at::native::other_kernel", "aiter::_groupnorm")
    told(
        "A kernel between is named without where it stands in torch",
        findings(a_pair_proved_by("shapes", between=between)),
    )
    for exposed in (0.0004, 0.0, None):
        told(
            "How much of it the run waited for is told where it was recorded",
            findings(a_pair_proved_by("shapes", exposed_seconds=exposed)),
        )


def test_how_severe_it_is(told: Told) -> None:
    # What the order of kernels suggests does not help a small proven cost over the line.
    pairs = (a_pair_proved_by("shapes", 2e-4), a_pair_proved_by("order", 2e-4))
    assert [(f.severity, f.seconds) for f in findings(*pairs)] == [("note", 4e-4)]

    # Many small proven ones are a loss together.
    pairs = (a_pair_proved_by("shapes", 1e-4), a_pair_proved_by("grid", 2e-4))
    assert [f.severity for f in findings(*pairs)] == ["warning"]
    for confidence, seconds in (
        ("shapes", 0.0003),
        ("grid", 0.0003),
        ("shapes", 0.00029),
        ("grid", 0.00029),
        ("order", 0.009),
        (None, 0.009),
    ):
        told("It is a warning where shapes or grids prove two percent", findings(a_pair_proved_by(confidence, seconds)))


def test_what_it_suggests(told: Told) -> None:
    unknown = to_contiguous("k1", source=None, target=None, direction="other")
    trial = a_recorded_trial(unknown, BACK, redundant_pairs=(a_pair_proved_by("order"),))
    told("Where not even a direction is known only what is between is told", LD101.check(a_trace_diagnosis(trial)))
    told("A library that computes contiguous is met with a contiguous model", findings(a_recorded_pair("k2", "k1")))
    told("Five dimensions are channels last 3d", findings(a_pair_proved_by("shapes", tensor_shape=(1, 64, 8, 56, 56))))
    trial = a_recorded_trial(redundant_pairs=(a_pair_proved_by("shapes"),))
    told("Pairs whose conversions are not in the record are still told", LD101.check(a_trace_diagnosis(trial)))

    miopen = {"kernel": "batched_transpose_64x64_pack_4x4_ediv_2x2_half"}
    out, back = to_contiguous("k1", **miopen), to_channels_last("k2", **miopen)
    told(
        "An amd gpu is told of the switch that channels last needs there",
        LD101.check(a_trace_diagnosis(a_recorded_trial(out, back, redundant_pairs=(a_pair_proved_by("shapes"),)))),
    )

    # A group norm that converts by itself is told with what would help.
    norm = a_pair_proved_by("shapes", between=("aten::native_group_norm", "aten::silu"))
    (both,) = findings(norm, a_pair_proved_by("shapes"))
    (alone,) = findings(norm)
    (none,) = findings(a_pair_proved_by("shapes"))
    assert both.message.endswith("1 of them goes through a group norm that runs in contiguous_format only")
    assert alone.message.endswith("all of them go through a group norm that runs in contiguous_format only")
    assert "a group norm that is not enough in eager" in (both.suggestion or "")
    assert "group norm" not in f"{none.message} {none.suggestion}"
