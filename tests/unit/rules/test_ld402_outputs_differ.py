from __future__ import annotations

from typing import Any

from builders import a_trial, finder

from layoutdoctor.diagnosis.records import Equivalence, Finding, Trial
from layoutdoctor.rules.ld402_outputs_differ import check

findings = finder(check)

REPORT = "do not use this configuration; the saved diagnosis belongs into a bug report to PyTorch"
KEEP = "keep the input's layout, or replace as_strided() by indexing that does not see strides"
FIXED = "make the model deterministic (no dropout, a fixed seed) before its configurations are compared"


def a_different(name: str, **changes: Any) -> Trial:
    fields = {"status": "different", "max_abs_error": 0.5, "tolerance": 1e-4, "reference": "float64"}
    return a_trial(name, equivalence=Equivalence(**{**fields, **changes}))


def test_a_compiled_configuration_that_differs_alone_is_a_warning_and_a_bug_to_report() -> None:
    assert findings(a_trial("eager"), a_different("inductor")) == [
        Finding(
            code="LD402",
            rule="outputs-differ",
            severity="warning",
            configuration="inductor",
            message="the outputs of inductor differ from the float64 reference by up to 0.5, where 0.0001 is allowed; "
            "eager does not, so it comes from compiling",
            suggestion=REPORT,
        )
    ]


def test_equal_and_unchecked_outputs_are_no_finding() -> None:
    unchecked = a_trial("eager", equivalence=Equivalence(status="not_checked"))

    assert findings(a_trial(), unchecked, a_trial("inductor-layout-opt-off", equivalence=None)) == []


def test_a_trial_that_is_the_same_as_another_is_not_told_again() -> None:
    same = a_different("inductor-layout-opt-on")
    same = Trial(configuration=same.configuration, status="same_as", same_as="inductor", equivalence=same.equivalence)

    assert [f.configuration for f in findings(a_different("inductor"), same)] == ["inductor"]


def test_what_it_suggests() -> None:
    # Channels last that differs in eager as well is the models own doing.
    trials = (a_trial("eager"), a_different("eager-channels-last"), a_different("inductor-channels-last"))
    assert [(f.message, f.suggestion) for f in findings(*trials)] == [
        (
            "the outputs of eager-channels-last differ from the float64 reference by up to 0.5, where 0.0001 is "
            "allowed: the model itself depends on the strides of its tensors, as as_strided() does",
            KEEP,
        ),
        (
            "the outputs of inductor-channels-last differ from the float64 reference by up to 0.5, where 0.0001 is "
            "allowed; eager-channels-last differs too: the model itself depends on the strides of its tensors, "
            "as as_strided() does",
            KEEP,
        ),
    ]

    # With eager off as well no configuration is to blame.
    assert [(f.message, f.suggestion) for f in findings(a_different("inductor"), a_different("eager"))] == [
        (
            "the outputs of inductor differ from the float64 reference by up to 0.5, where 0.0001 is allowed; "
            "eager differs too: the model is random, or float32 alone is too coarse for it",
            FIXED,
        ),
        (
            "the outputs of eager differ from the float64 reference by up to 0.5, where 0.0001 is allowed: "
            "the model is random, or float32 alone is too coarse for it",
            FIXED,
        ),
    ]

    # A contiguous configuration is not excused by an eager that differs in channels last.
    found = findings(a_different("inductor-layout-opt-off"), a_trial("eager"), a_different("eager-channels-last"))
    assert [(f.configuration, f.suggestion) for f in found] == [
        ("inductor-layout-opt-off", REPORT),
        ("eager-channels-last", KEEP),
    ]


def test_what_was_not_recorded_is_left_out_and_a_detail_is_told() -> None:
    bare = a_different("inductor", max_abs_error=None, reference=None, detail="output 1 has another shape")
    no_tolerance = a_different("inductor-layout-opt-off", tolerance=None)

    assert [f.message for f in findings(bare, no_tolerance)] == [
        "the outputs of inductor differ from the eager reference (output 1 has another shape)",
        "the outputs of inductor-layout-opt-off differ from the float64 reference by up to 0.5",
    ]
