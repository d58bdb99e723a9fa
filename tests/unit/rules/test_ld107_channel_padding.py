from __future__ import annotations

from typing import TYPE_CHECKING, Any

from builders import Told, a_comparison, a_diagnosis, a_trial, contiguous, kernels
from trace_builders import PADDING, finder_in_trace, to_channels_last

from layoutdoctor.rules.ld107_channel_padding import check

if TYPE_CHECKING:
    from layoutdoctor.diagnosis.records import Conversion

findings = finder_in_trace(check)


def a_padding(id: str = "pad", **changes: Any) -> Conversion:
    fields: dict[str, Any] = {"kernel": PADDING, "direction": "none", "source": contiguous((4, 3, 224, 224))}
    return to_channels_last(id, **{**fields, **changes})


def test_kernels_that_pad_channels_are_told_with_their_cost_and_a_cure_that_is_no_layout(told: Told) -> None:
    paddings = [a_padding(f"pad {i}", step=f"ProfilerStep#{i}", bytes_moved=1024) for i in range(2)]
    told("Kernels that pad channels are told with their cost and a cure that is no layout", findings(*paddings))


def test_from_two_percent_on_it_is_a_warning() -> None:
    assert [f.severity for f in findings(a_padding(seconds=3e-4))] == ["warning"]


def test_what_is_no_finding() -> None:
    # A layout conversion is no padding and a name that only sounds like one neither.
    others = [to_channels_last("a"), to_channels_last("b", kernel="myAddPaddingKernelHelper", direction="none")]
    assert findings(*others, to_channels_last("c", kernel=None)) == []

    # A single launch whose name does not match is not taken for a cut one.
    assert findings(a_padding(kernel="void cudnn::ops::nhwcAddPaddingKer")) == []


def test_a_line_of_a_table_counts_for_all_its_launches_also_where_its_name_is_cut(told: Told) -> None:
    cut = a_padding(kernel="void cudnn::ops::nhwcAddPaddingKer", count=24, source=None, location=None, module=None)
    told("A line of a table counts for all its launches also where its name is cut", findings(cut))


def test_in_the_diagnosis_of_a_model_the_baseline_is_looked_at() -> None:
    padded, clean = kernels(a_padding()), kernels()
    comparison = a_comparison()
    trials = a_trial("eager", kernels=padded), a_trial(kernels=clean)

    assert list(check(a_diagnosis(*trials, comparison=comparison))) == []
    assert [f.configuration for f in check(a_diagnosis(a_trial(kernels=padded), comparison=comparison))] == ["inductor"]
