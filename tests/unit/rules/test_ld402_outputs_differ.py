from __future__ import annotations

from typing import Any

from builders import Told, a_trial, finder

from layoutdoctor.diagnosis.records import Equivalence, Trial
from layoutdoctor.rules.outputs import LD402

findings = finder(LD402.check)


def a_different(name: str, **changes: Any) -> Trial:
    fields = {"status": "different", "relative_error": 0.5, "tolerance": 1e-4, "reference": "float64"}
    return a_trial(name, equivalence=Equivalence(**{**fields, **changes}))


def test_what_is_no_finding() -> None:
    unchecked = a_trial("eager", equivalence=Equivalence(status="not_checked"))

    assert findings(a_trial(), unchecked, a_trial("inductor-layout-opt-off", equivalence=None)) == []


def test_what_it_suggests(told: Told) -> None:
    bare = a_different("inductor", relative_error=None, reference=None, detail="output 1 has another shape")
    no_tolerance = a_different("inductor-layout-opt-off", tolerance=None)
    told("What was not recorded is left out and a detail is told", findings(bare, no_tolerance))
    told(
        "The default that differs alone is an error and a bug to report",
        findings(a_trial("eager"), a_different("inductor")),
    )
    off = a_trial("inductor-layout-opt-off")
    told(
        "What is right without layout optimization comes with it",
        findings(a_trial("eager"), a_different("inductor"), off),
    )
    trials = (a_trial("eager"), a_different("eager-channels-last"), a_different("inductor-channels-last"))
    told("Channels last that differs in eager as well is the models own doing", findings(*trials))
    told("With eager off as well no configuration is to blame", findings(a_different("inductor"), a_different("eager")))
    told(
        "A contiguous configuration is not excused by an eager that differs in channels last",
        findings(a_different("inductor-layout-opt-off"), a_trial("eager"), a_different("eager-channels-last")),
    )

    # A trial that is the same as another is not told again.
    same = a_different("inductor-layout-opt-on")
    same = Trial(configuration=same.configuration, status="same_as", same_as="inductor", equivalence=same.equivalence)
    assert [f.configuration for f in findings(a_different("inductor"), same)] == ["inductor"]
