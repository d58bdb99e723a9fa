from __future__ import annotations

from builders import Told, a_diagnosis, a_graph, a_location, a_trial, contiguous, kernels
from trace_builders import a_generated_copy, a_permuted_copy, an_eager_copy, finder_in_trace, to_channels_last

from layoutdoctor.diagnosis.layout import strided_layout
from layoutdoctor.rules.copies import LD110

findings = finder_in_trace(LD110.check)


def test_what_it_says(told: Told) -> None:
    copies = (a_permuted_copy("p0"), a_permuted_copy("p1", location=a_location(31), module="blocks.1"))
    told("Copies of attention are a note that keeps them apart from layout conversions", findings(*copies))

    # Below one percent of the time nothing is told.
    assert [f.code for f in findings(a_permuted_copy("p0", seconds=1.5e-4))] == ["LD110"]
    assert findings(a_permuted_copy("p0", seconds=1.49e-4)) == []


def test_what_is_no_finding() -> None:
    # Without times nothing is told.
    assert findings(a_permuted_copy("p0", seconds=None)) == []

    # A copy in the same order is none of them.
    sliced = strided_layout((8, 12, 197, 64), (12 * 200 * 64, 200 * 64, 64, 1))
    assert findings(a_permuted_copy("p0", source=sliced, seconds=1e-3)) == []

    # Dimensions of size one have no order.
    shape = (8, 1, 197, 64)
    strided = strided_layout(shape, (197 * 64, 64, 64, 1))
    assert findings(a_permuted_copy("p0", source=strided, target=contiguous(shape), seconds=1e-3)) == []

    # A copy whose layouts were not recorded proves nothing.
    assert findings(a_permuted_copy("p0", source=None, seconds=1e-3)) == []
    assert findings(a_permuted_copy("p0", target=None, seconds=1e-3)) == []

    # What changes a layout is told elsewhere.
    assert findings(an_eager_copy("c0"), a_generated_copy("g0"), to_channels_last("k0", direction="none")) == []

    # In the diagnosis of a model nothing is told.
    trial = a_trial(kernels=kernels(), graphs=(a_graph(conversions=(a_permuted_copy("p0", seconds=1e-3),)),))
    assert list(LD110.check(a_diagnosis(trial))) == []
