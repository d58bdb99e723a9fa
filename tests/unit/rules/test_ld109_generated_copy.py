from __future__ import annotations

from builders import Told, a_conversion, a_diagnosis, a_graph, a_trial
from trace_builders import a_generated_copy, an_eager_copy, finder_in_trace, to_channels_last

from layoutdoctor.rules.ld109_generated_copy import check

findings = finder_in_trace(check)


def test_what_it_says(told: Told) -> None:
    copies = (
        a_generated_copy("g0"),
        a_generated_copy("g1"),
        a_generated_copy("g2", kernel="triton_poi_fused_convolution_7", cause="its operands lie in other orders"),
    )
    told("Generated kernels that look like copies are a note that says what it rests on", findings(*copies))
    told(
        "Also a large part of the time is no more than a note",
        findings(a_generated_copy("g0", seconds=0.009, cause=None, exposed_seconds=None)),
    )


def test_what_is_no_finding() -> None:
    # A kernel that computes as well is not told.
    assert findings(a_generated_copy("g0", fused=True)) == []

    # Copies of others are not told.
    assert findings(an_eager_copy("c0"), to_channels_last("k0")) == []

    # In the diagnosis of a model the graph says what the compiler converts.
    copy = a_conversion(owner="compiler", direction="to_channels_last")
    assert list(check(a_diagnosis(a_trial(graphs=(a_graph(conversions=(copy,)),))))) == []
