from __future__ import annotations

from typing import Any

from builders import a_comparison, a_diagnosis, a_location, a_trial, contiguous, kernels
from trace_builders import PADDING, finder_in_trace, to_channels_last

from layoutdoctor.diagnosis.records import Conversion, Finding
from layoutdoctor.rules.ld107_channel_padding import check

findings = finder_in_trace(check)

PAD_ONCE = (
    "pad the channels once and leave the layout as it is: give that layer an input and a weight with a multiple of 8 "
    "channels in half precision (of 4 in TF32), zeros in the added ones; measure, since the library may find another "
    "kernel then"
)


def a_padding(id: str = "pad", **changes: Any) -> Conversion:
    fields: dict[str, Any] = {"kernel": PADDING, "direction": "none", "source": contiguous((4, 3, 224, 224))}
    return to_channels_last(id, **{**fields, **changes})


def test_kernels_that_pad_channels_are_told_with_their_cost_and_a_cure_that_is_no_layout() -> None:
    paddings = [a_padding(f"pad {i}", step=f"ProfilerStep#{i}", bytes_moved=1024) for i in range(2)]

    assert findings(*paddings) == [
        Finding(
            code="LD107",
            rule="channel-padding",
            severity="note",
            configuration="recorded",
            message="2 kernels pad or fold the channels of tensors with 3 for a convolution, which no memory format "
            "saves, 1 in each of 2 recorded steps; 200 us of 15.0 ms kernel time (1.3 %, 5.0 % of the convolution "
            "time), 80.0 us of it while nothing else ran",
            suggestion=PAD_ONCE,
            location=a_location(),
            module="body.0.0",
            seconds=2e-4,
            bytes_moved=2048,
            evidence=("pad 0", "pad 1"),
        )
    ]


def test_from_two_percent_on_it_is_a_warning() -> None:
    assert [f.severity for f in findings(a_padding(seconds=3e-4))] == ["warning"]


def test_what_is_no_finding() -> None:
    # A layout conversion is no padding and a name that only sounds like one neither.
    others = [to_channels_last("a"), to_channels_last("b", kernel="myAddPaddingKernelHelper", direction="none")]
    assert findings(*others, to_channels_last("c", kernel=None)) == []

    # A single launch whose name does not match is not taken for a cut one.
    assert findings(a_padding(kernel="void cudnn::ops::nhwcAddPaddingKer")) == []


def test_a_line_of_a_table_counts_for_all_its_launches_also_where_its_name_is_cut() -> None:
    cut = a_padding(kernel="void cudnn::ops::nhwcAddPaddingKer", count=24, source=None, location=None, module=None)

    (found,) = findings(cut)

    assert found.message.startswith(
        "24 kernels pad or fold the channels for a convolution, which no memory format saves;"
    )
    assert (found.location, found.module) == (None, None)


def test_in_the_diagnosis_of_a_model_the_baseline_is_looked_at() -> None:
    padded, clean = kernels(a_padding()), kernels()
    comparison = a_comparison()
    trials = a_trial("eager", kernels=padded), a_trial(kernels=clean)

    assert list(check(a_diagnosis(*trials, comparison=comparison))) == []
    assert [f.configuration for f in check(a_diagnosis(a_trial(kernels=padded), comparison=comparison))] == ["inductor"]
