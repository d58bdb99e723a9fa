from __future__ import annotations

from typing import TYPE_CHECKING, Any

from builders import Told, a_comparison, a_convolution, a_decision, a_diagnosis, a_graph, a_location, a_ratio, a_trial

from layoutdoctor.diagnosis.records import Equivalence, Finding, Trial
from layoutdoctor.rules.decisions import LD207
from layoutdoctor.rules.wording import shown

if TYPE_CHECKING:
    from layoutdoctor.diagnosis.records import Convolution, Decision, Graph

NARROWING = a_convolution(
    "convolution_4",
    class_="in_out",
    module="d2.0",
    weight_shape=(64, 192, 3, 3),
    groups=1,
    is_transposed=False,
    channels_last=False,
    location=a_location(31),
)
GROUPED = a_convolution(
    "convolution_1",
    class_="grouped",
    module="body.1",
    weight_shape=(64, 16, 3, 3),
    groups=4,
    is_transposed=False,
    channels_last=False,
)
OTHERS = tuple(a_convolution(f"other_{i}", channels_last=False) for i in range(5))
ALL_MEASURES = "--configurations all measures what the veto costs (inductor-layout-opt-forced)"


def a_veto(*deciding: Convolution, others: tuple[Convolution, ...] = OTHERS, **changes: Any) -> Decision:
    rule = "grouped-convolution" if deciding and deciding[0].class_ == "grouped" else "smaller-out-channels"
    fields: dict[str, Any] = {
        "applied": False,
        "rule": rule,
        "explanation": "torch says so",
        "deciding_nodes": tuple(convolution.node for convolution in deciding),
    }
    return a_decision(*others, *deciding, **{**fields, **changes})


def a_training(decision: Decision) -> Graph:
    return a_graph(decision, direction="forward")


def findings(*graphs: Graph, trial: dict[str, Any] | None = None, **changes: Any) -> list[Finding]:
    return list(LD207.check(a_diagnosis(a_trial(graphs=graphs, **(trial or {})), **changes)))


def test_what_it_says(told: Told) -> None:
    told(
        "The convolution that vetoed is named with the others that suffer from it",
        findings(a_training(a_veto(NARROWING))),
    )
    for deciding, others in (
        ((GROUPED,), OTHERS[:1]),
        ((NARROWING, a_convolution("c", module="up", weight_shape=(64, 128, 2, 2), is_transposed=True)), OTHERS),
        ((a_convolution("c", module=None, location=None, weight_shape=None, groups=None),), ()),
        ((a_convolution("c", module="m", location=None, weight_shape=(8, 16, 3, 3)),), ()),
    ):
        told(
            "What is known of the deciding convolutions is said", findings(a_training(a_veto(*deciding, others=others)))
        )
    told("Without a deciding node torchs own reason stands", findings(a_graph(a_veto())))


def test_what_is_no_finding() -> None:
    # A veto by something else is not told here.
    for rule in ("small-channels", "weighted-flops", "dynamic-shape", "config-off"):
        assert findings(a_training(a_veto(NARROWING, rule=rule))) == []

    # A decision that was applied is no veto.
    assert findings(a_training(a_veto(NARROWING, applied=True))) == []


def test_what_it_suggests(told: Told) -> None:
    # A faster way around that computes something else does not count.
    other = a_trial("inductor-channels-last", equivalence=Equivalence(status="different"))
    trials: tuple[Trial, ...] = (a_trial(graphs=(a_training(a_veto(GROUPED)),)), other)
    diagnosis = a_diagnosis(*trials, comparison=a_comparison(a_ratio("inductor-channels-last", 1.2)))
    assert [(f.severity, f.suggestion) for f in LD207.check(diagnosis)] == [("note", ALL_MEASURES)]

    static = {"is_static": True, "kernels": None, "measurement": None, "equivalence": None}
    told("On a device that is not there nothing measured is said", findings(a_training(a_veto(GROUPED)), trial=static))

    # It is a warning only where a way around was measured faster.
    for name in ("inductor-layout-opt-forced", "inductor-channels-last"):
        found = findings(a_training(a_veto(GROUPED)), comparison=a_comparison(a_ratio(name, 1.2)))
        assert [(f.severity, f.suggestion) for f in found] == [
            ("warning", f"{shown(name)} runs at 1.20x the speed of the default (1.17 to 1.23)")
        ]
