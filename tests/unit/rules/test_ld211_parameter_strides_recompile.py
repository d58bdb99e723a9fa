from __future__ import annotations

from typing import TYPE_CHECKING

from builders import Told, a_diagnosis, a_trial

from layoutdoctor.rules.source import LD211

if TYPE_CHECKING:
    from layoutdoctor.diagnosis.records import Finding

OLD = "tensor 'L['self'].encoder_q.layer1[0].conv1.weight' stride mismatch at index 2. expected 1, actual 64"
NEW = (
    "0/0: tensor 'fn._modules['body']._modules['0']._parameters['weight']' stride mismatch at index 1. expected 9, "
    "actual 1. Guard failed on a parameter, consider using torch._dynamo.config.force_parameter_static_shapes = False"
)


def findings(*reasons: str) -> list[Finding]:
    return list(LD211.check(a_diagnosis(a_trial(recompile_reasons=reasons, recompile_count=len(reasons)))))


def test_what_it_says(told: Told) -> None:
    told("A recompile for the strides of a parameter names it", findings(OLD))
    told("The names of torch 2 13 are made plain and other reasons are counted", findings(NEW, "L['x'] is None", OLD))
    told(
        "An input with other strides is called a tensor",
        findings("tensor 'L['x']' stride mismatch at index 0. expected 8, actual 9"),
    )

    # It is told once.
    trials = (
        a_trial("inductor-layout-opt-on", recompile_reasons=(OLD,)),
        a_trial("inductor", recompile_reasons=(OLD,)),
    )
    assert [f.configuration for f in LD211.check(a_diagnosis(*trials))] == ["inductor"]


def test_what_is_no_finding() -> None:
    for reasons in (
        (),
        ("tensor 'L['x']' size mismatch at index 2. expected 32, actual 64",),
        (OLD, OLD.replace("stride mismatch", "size mismatch")),
        ("tensor 'L['x']' requires_grad mismatch. expected requires_grad=0",),
    ):
        assert findings(*reasons) == []
