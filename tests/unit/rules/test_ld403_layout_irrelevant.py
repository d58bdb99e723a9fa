from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec
from builders import (
    Told,
    a_comparison,
    a_conversion,
    a_decision,
    a_diagnosis,
    a_failed_trial,
    a_graph,
    a_ratio,
    a_subject,
    a_trial,
    kernels,
)

from layoutdoctor.rules.ld403_layout_irrelevant import check

if TYPE_CHECKING:
    from layoutdoctor.diagnosis.records import Diagnosis, Finding

OFF = "inductor-layout-opt-off"
SLIGHT = kernels(a_conversion(seconds=4.5e-5))
NO_CONVOLUTION = a_decision(applied=False, rule="no-convolution", convolution_count=0, convolutions=())


def a_model(
    ratio: float = 1.0, summary: Any = SLIGHT, decision: Any = None, modules: int = 1, **changes: Any
) -> Diagnosis:
    trial = a_trial(graphs=(a_graph(decision or a_decision()),), kernels=summary)
    fields: dict[str, Any] = {
        "comparison": a_comparison(a_ratio(OFF, ratio)),
        "subject": a_subject(convolution_module_count=modules),
    }
    return a_diagnosis(trial, a_trial(OFF), **{**fields, **changes})


def findings(diagnosis: Diagnosis) -> list[Finding]:
    return list(check(diagnosis))


def test_what_it_says(told: Told) -> None:
    told("Few conversions and nothing faster is said with the reason", findings(a_model()))
    for summary in (kernels(), None):
        told(
            "A model without convolution says so also without kernels",
            findings(a_model(summary=summary, decision=NO_CONVOLUTION, modules=0)),
        )
    told("No conversion at all is a reason", findings(a_model(ratio=0.8, summary=kernels())))


def test_what_is_no_finding() -> None:
    for changes in (
        {"ratio": 1.2},
        {"summary": None},
        {"summary": kernels(lacks=("the log",))},
        {"summary": kernels(a_conversion(seconds=1e-3))},
        {"comparison": None},
        {"comparison": a_comparison()},
        {"comparison": a_comparison(a_ratio(OFF, 1.0, width=0.2))},
        {"comparison": a_comparison(a_ratio(OFF, 0.9, coverage=None, round_count=7))},
        {"interrupted": "Ctrl-C"},
    ):
        assert findings(a_model(**changes)) == []


def test_which_facts_it_gives() -> None:
    # Times too noisy to exclude a gain do not matter without a convolution.
    noisy = a_model(decision=NO_CONVOLUTION, modules=0, comparison=a_comparison(a_ratio(OFF, 1.0, width=0.5)))
    assert len(findings(noisy)) == 1

    # Fused conversions do not count.
    fused = a_conversion("buf0", owner="compiler", fused=True, seconds=None)
    trial = a_trial(graphs=(a_graph(a_decision(), conversions=(fused,)),))
    assert len(findings(a_diagnosis(trial, comparison=a_comparison(a_ratio(OFF, 1.0))))) == 1

    # A configuration without a result might have been faster.
    for status in ("failed", "crashed", "timed_out"):
        broken = msgspec.structs.replace(a_failed_trial("inductor-channels-last"), status=status)
        known, without = a_model(), a_model(decision=NO_CONVOLUTION, modules=0)
        assert findings(msgspec.structs.replace(known, trials=(*known.trials, broken))) == []
        assert len(findings(msgspec.structs.replace(without, trials=(*without.trials, broken)))) == 1
