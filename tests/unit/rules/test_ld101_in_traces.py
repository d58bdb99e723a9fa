"""LD101 on recorded traces: what proves each round trip, what it costs, and which way the library wants it."""

from __future__ import annotations

from typing import Any

from builders import a_location, contiguous
from trace_builders import (
    a_recorded_pair,
    a_recorded_trial,
    a_trace_diagnosis,
    an_eager_copy,
    recorded_kernels,
    to_channels_last,
    to_contiguous,
)

from layoutdoctor.diagnosis.records import Finding, RedundantPair, Trial
from layoutdoctor.rules import evidence
from layoutdoctor.rules.ld101_round_trip_conversion import check

OUT, BACK = to_contiguous("k1"), to_channels_last("k2")
MEASURE = "or diagnose the model itself, which measures: python -m layoutdoctor model.py"
TRY_CHANNELS_LAST = (
    "nothing was tried here: record it again with model = model.to(memory_format=torch.channels_last) and "
    f"x = x.to(memory_format=torch.channels_last); {MEASURE}"
)
TRY_THE_OTHER = (
    "nothing was tried here: record it again with model and input in the other memory format, channels_last if they "
    f"are contiguous now; {MEASURE}"
)


def a_trial_with(*pairs: RedundantPair, **changes: Any) -> Trial:
    return a_recorded_trial(OUT, BACK, redundant_pairs=pairs, **changes)


def findings(*pairs: RedundantPair, **changes: Any) -> list[Finding]:
    return list(check(a_trace_diagnosis(a_trial_with(*pairs, **changes))))


def a_pair_proved_by(confidence: str, seconds: float | None = 4e-4, **changes: Any) -> RedundantPair:
    return a_recorded_pair("k1", "k2", confidence=confidence, seconds=seconds, **changes)


def test_a_round_trip_that_shapes_prove_is_told_with_its_costs_and_what_to_record_next() -> None:
    assert findings(a_pair_proved_by("shapes", exposed_seconds=1.6e-4)) == [
        Finding(
            code="LD101",
            rule="round-trip-conversion",
            severity="warning",
            configuration="recorded",
            message="1 round trip with shapes that agree all along the way; channels_last -> contiguous -> "
            "channels_last around batch_norm and relu; on 4x64x56x56; 400 us of 15.0 ms kernel time (2.7 %, 10 % of "
            "the convolution time), 160 us of it while nothing else ran, 12.2 MiB moved",
            suggestion=TRY_CHANNELS_LAST,
            location=a_location(),
            module="body.1.0",
            seconds=4e-4,
            bytes_moved=12_845_056,
            evidence=("k1", "k2"),
        )
    ]


def test_a_trace_without_round_trips_has_no_finding() -> None:
    assert findings() == []


def test_what_it_says() -> None:
    # All round trips are one finding that counts them by what proves them.
    pairs = (
        *(a_pair_proved_by("shapes", 1e-5) for _ in range(63)),
        *(a_pair_proved_by("order", 1e-5, between=()) for _ in range(18)),
    )
    (found,) = findings(*pairs)
    assert found.message.startswith(
        "81 round trips: 63 with shapes that agree all along the way and 18 by the order of kernels only; "
        "channels_last -> contiguous -> channels_last: 63 around batch_norm and relu, 18 back to back; "
    )

    # Without any time it is a note.
    (found,) = findings(a_pair_proved_by("shapes", seconds=None, exposed_seconds=None))
    assert (found.severity, found.seconds) == ("note", None)
    assert found.message == (
        "1 round trip with shapes that agree all along the way; channels_last -> contiguous -> channels_last around "
        "batch_norm and relu; on 4x64x56x56; 12.2 MiB moved"
    )

    # The place is the one that costs most together.
    cheap = a_pair_proved_by("shapes", 2e-4, module="conv_1", location=a_location(10))
    dear = [a_pair_proved_by("shapes", 1.5e-4, module="conv_2", location=a_location(20)) for _ in range(2)]
    (found,) = findings(cheap, *dear)
    assert (found.module, found.location) == ("conv_2", a_location(20))
    assert found.message.endswith("; most in conv_2 (model.py:20): 2 of them, 300 us")

    # Without a place none is named.
    pairs = [a_pair_proved_by("shapes", module=None, location=None, tensor_shape=None) for _ in range(2)]
    (found,) = findings(*pairs)
    assert (found.module, found.location) == (None, None)
    assert found.message.endswith("24.5 MiB moved")
    assert " on " not in found.message

    # Where no layout was recorded the direction says which way it goes.
    out, back = (to_contiguous("k1", source=None, target=None), to_channels_last("k2", source=None, target=None))
    trial = a_recorded_trial(out, back, redundant_pairs=(a_pair_proved_by("order", between=()),))
    (found,) = check(a_trace_diagnosis(trial))
    assert found.message.startswith(
        "1 round trip by the order of kernels only; to contiguous and back with nothing between; on 4x64x56x56"
    )

    # Round trips that no library made are no part of the convolution time.
    copy = an_eager_copy("k1", target=contiguous(), direction="to_contiguous")
    trial = a_recorded_trial(copy, BACK, redundant_pairs=(a_pair_proved_by("shapes"),))
    (found,) = check(a_trace_diagnosis(trial))
    assert "convolution time" not in found.message

    # More kinds than can be named are counted.
    pairs = [a_pair_proved_by("shapes", between=(f"aten::op{i}",)) for i in range(5)]
    (found,) = findings(*pairs)
    assert ": 1 around op0, 1 around op1, 1 around op2, 2 more kinds; on" in found.message

    # The library conversions of a trace without a total time have no share.
    (found,) = findings(a_pair_proved_by("shapes"), kernels=recorded_kernels(OUT, BACK, convolution_seconds=None))
    assert "400 us of 15.0 ms kernel time (2.7 %), 80.0 us of it while nothing else ran" in found.message

    # A single kind that cannot be named is one more kind.
    pairs = [a_pair_proved_by("shapes", between=(f"aten::op{i}",)) for i in range(4)]
    (found,) = findings(*pairs)
    assert ": 1 around op0, 1 around op1, 1 around op2, 1 more kind; on" in found.message

    # A kernel between is named without where it stands in torch.
    between = ("at::native::(anonymous namespace)::some_kernel", "at::native::other_kernel", "aiter::_groupnorm")
    (found,) = findings(a_pair_proved_by("shapes", between=between))
    assert " around some_kernel, other_kernel and aiter::_groupnorm; " in found.message

    # How much of it the run waited for is told where it was recorded.
    for exposed, words in (
        (4e-4, "(2.7 %, 10 % of the convolution time), all of it while nothing else ran, 12.2"),
        (0.0, "(2.7 %, 10 % of the convolution time), none of it while nothing else ran, 12.2"),
        (None, "(2.7 %, 10 % of the convolution time), 12.2"),
    ):
        (found,) = findings(a_pair_proved_by("shapes", exposed_seconds=exposed))
        assert words in found.message


def test_how_severe_it_is() -> None:
    # What the order of kernels suggests does not help a small proven cost over the line.
    pairs = (a_pair_proved_by("shapes", 2e-4), a_pair_proved_by("order", 2e-4))
    assert [(f.severity, f.seconds) for f in findings(*pairs)] == [("note", 4e-4)]

    # Many small proven ones are a loss together.
    pairs = (a_pair_proved_by("shapes", 1e-4), a_pair_proved_by("grid", 2e-4))
    assert [f.severity for f in findings(*pairs)] == ["warning"]

    # It is a warning where shapes or grids prove two percent.
    for confidence, seconds, severity in (
        ("shapes", 3e-4, "warning"),
        ("grid", 3e-4, "warning"),
        ("shapes", 2.9e-4, "note"),
        ("grid", 2.9e-4, "note"),
        ("order", 9e-3, "note"),
        (None, 9e-3, "note"),
    ):
        assert [f.severity for f in findings(a_pair_proved_by(confidence, seconds))] == [severity]


def test_what_it_suggests() -> None:
    # Where not even a direction is known only what is between is told.
    unknown = to_contiguous("k1", source=None, target=None, direction="other")
    trial = a_recorded_trial(unknown, BACK, redundant_pairs=(a_pair_proved_by("order"),))
    (found,) = check(a_trace_diagnosis(trial))
    assert found.message.startswith("1 round trip by the order of kernels only; around batch_norm and relu; on ")
    assert found.suggestion == TRY_THE_OTHER

    # A library that computes contiguous is met with a contiguous model.
    (found,) = findings(a_recorded_pair("k2", "k1"))
    assert found.suggestion == (
        "the library computes contiguous here: record it again with model = "
        "model.to(memory_format=torch.contiguous_format) and x = x.to(memory_format=torch.contiguous_format); "
        + MEASURE
    )

    # Five dimensions are channels last 3d.
    (found,) = findings(a_pair_proved_by("shapes", tensor_shape=(1, 64, 8, 56, 56)))
    assert found.suggestion == TRY_CHANNELS_LAST.replace("torch.channels_last", "torch.channels_last_3d")

    # Pairs whose conversions are not in the record are still told.
    trial = a_recorded_trial(redundant_pairs=(a_pair_proved_by("shapes"),))
    (found,) = check(a_trace_diagnosis(trial))
    assert found.message.startswith(
        "1 round trip with shapes that agree all along the way; around batch_norm and relu;"
    )
    assert found.suggestion == TRY_THE_OTHER

    # An amd gpu is told of the switch that channels last needs there.
    miopen = {"kernel": "batched_transpose_64x64_pack_4x4_ediv_2x2_half"}
    out, back = to_contiguous("k1", **miopen), to_channels_last("k2", **miopen)
    (found,) = check(a_trace_diagnosis(a_recorded_trial(out, back, redundant_pairs=(a_pair_proved_by("shapes"),))))
    assert found.suggestion == TRY_CHANNELS_LAST + evidence.miopen_words([out])
    assert "PYTORCH_MIOPEN_SUGGEST_NHWC=1" in found.suggestion

    # A group norm that converts by itself is told with what would help.
    norm = a_pair_proved_by("shapes", between=("aten::native_group_norm", "aten::silu"))
    (both,) = findings(norm, a_pair_proved_by("shapes"))
    (alone,) = findings(norm)
    (none,) = findings(a_pair_proved_by("shapes"))
    assert both.message.endswith("1 of them goes through a group norm that runs in contiguous_format only")
    assert alone.message.endswith("all of them go through a group norm that runs in contiguous_format only")
    assert "a group norm that is not enough in eager" in (both.suggestion or "")
    assert "group norm" not in f"{none.message} {none.suggestion}"
