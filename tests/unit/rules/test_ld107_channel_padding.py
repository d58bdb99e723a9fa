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


def test_what_it_says(told: Told) -> None:
    paddings = [a_padding(f"pad {i}", step=f"ProfilerStep#{i}", bytes_moved=1024) for i in range(2)]
    told("Kernels that pad channels are told with their cost and a cure that is no layout", findings(*paddings))

    cut = a_padding(kernel="void cudnn::ops::nhwcAddPaddingKer", count=24, source=None, location=None, module=None)
    told("A line of a table counts for all its launches also where its name is cut", findings(cut))

    # From two percent on it is a warning.
    assert [f.severity for f in findings(a_padding(seconds=3e-4))] == ["warning"]

    # In the diagnosis of a model the baseline is looked at.
    padded, clean = kernels(a_padding()), kernels()
    comparison = a_comparison()
    trials = a_trial("eager", kernels=padded), a_trial(kernels=clean)
    assert list(check(a_diagnosis(*trials, comparison=comparison))) == []
    assert [f.configuration for f in check(a_diagnosis(a_trial(kernels=padded), comparison=comparison))] == ["inductor"]


def test_what_is_no_finding() -> None:
    # A layout conversion is no padding and a name that only sounds like one neither.
    others = [to_channels_last("a"), to_channels_last("b", kernel="myAddPaddingKernelHelper", direction="none")]
    assert findings(*others, to_channels_last("c", kernel=None)) == []

    # A single launch whose name does not match is not taken for a cut one.
    assert findings(a_padding(kernel="void cudnn::ops::nhwcAddPaddingKer")) == []
