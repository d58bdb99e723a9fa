from __future__ import annotations

from builders import a_conversion, a_diagnosis, a_graph, a_location, a_trial
from trace_builders import a_generated_copy, an_eager_copy, finder_in_trace, to_channels_last

from layoutdoctor.diagnosis.records import Finding
from layoutdoctor.rules.ld109_generated_copy import check

findings = finder_in_trace(check)


def test_generated_kernels_that_look_like_copies_are_a_note_that_says_what_it_rests_on() -> None:
    copies = (
        a_generated_copy("g0"),
        a_generated_copy("g1"),
        a_generated_copy("g2", kernel="triton_poi_fused_convolution_7", cause="its operands lie in other orders"),
    )

    assert findings(*copies) == [
        Finding(
            code="LD109",
            rule="generated-copy",
            severity="note",
            configuration="recorded",
            message="experimental: 3 launches of generated kernels look like copies between layouts: "
            "triton_poi_fused_clone_3 (2) and triton_poi_fused_convolution_7 (1); evidence: it walks a "
            "two-dimensional tile (YBLOCK) and its operands lie in other orders; 300 us of 15.0 ms kernel time "
            "(2.0 %), 120 us of it while nothing else ran",
            suggestion="a trace cannot tell what a generated kernel does: diagnose the model itself (python -m "
            "layoutdoctor model.py), which reads its loops; or look at its code with TORCH_LOGS=output_code",
            location=a_location(),
            module="body.0.0",
            seconds=1e-4 + 1e-4 + 1e-4,
            bytes_moved=None,
            evidence=("g0", "g1", "g2"),
        )
    ]


def test_also_a_large_part_of_the_time_is_no_more_than_a_note() -> None:
    (found,) = findings(a_generated_copy("g0", seconds=9e-3, cause=None, exposed_seconds=None))

    assert (found.severity, found.message) == (
        "note",
        "experimental: 1 launch of a generated kernel looks like a copy between layouts: triton_poi_fused_clone_3; "
        "9.00 ms of 15.0 ms kernel time (60 %)",
    )


def test_what_is_no_finding() -> None:
    # A kernel that computes as well is not told.
    assert findings(a_generated_copy("g0", fused=True)) == []

    # Copies of others are not told.
    assert findings(an_eager_copy("c0"), to_channels_last("k0")) == []

    # In the diagnosis of a model the graph says what the compiler converts.
    copy = a_conversion(owner="compiler", direction="to_channels_last")
    assert list(check(a_diagnosis(a_trial(graphs=(a_graph(conversions=(copy,)),))))) == []
