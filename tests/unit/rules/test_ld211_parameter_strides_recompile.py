from __future__ import annotations

from builders import a_diagnosis, a_trial

from layoutdoctor.diagnosis.records import Finding
from layoutdoctor.rules.ld211_parameter_strides_recompile import check

OLD = "tensor 'L['self'].encoder_q.layer1[0].conv1.weight' stride mismatch at index 2. expected 1, actual 64"
NEW = (
    "0/0: tensor 'fn._modules['body']._modules['0']._parameters['weight']' stride mismatch at index 1. expected 9, "
    "actual 1. Guard failed on a parameter, consider using torch._dynamo.config.force_parameter_static_shapes = False"
)
IN_PLACE = (
    "update it in place (lerp_, copy_), which keeps its strides, or convert both models to one memory format before "
    "the first call (pytorch #126241)"
)


def findings(*reasons: str) -> list[Finding]:
    return list(check(a_diagnosis(a_trial(recompile_reasons=reasons, recompile_count=len(reasons)))))


def test_a_recompile_for_the_strides_of_a_parameter_names_it() -> None:
    assert findings(OLD) == [
        Finding(
            code="LD211",
            rule="parameter-strides-recompile",
            severity="warning",
            configuration="inductor",
            message="compiled again because of parameter strides, though no shape changed: 1 of 1 reason is a stride "
            "mismatch, of encoder_q.layer1[0].conv1.weight (stride of dimension 2: expected 1, actual 64)",
            suggestion=IN_PLACE,
            evidence=("L['self'].encoder_q.layer1[0].conv1.weight",),
        )
    ]


def test_the_names_of_torch_2_13_are_made_plain_and_other_reasons_are_counted() -> None:
    assert [f.message for f in findings(NEW, "L['x'] is None", OLD)] == [
        "compiled again because of parameter strides, though no shape changed: 2 of 3 reasons are a stride mismatch, "
        "of body.0.weight (stride of dimension 1: expected 9, actual 1) and encoder_q.layer1[0].conv1.weight (stride "
        "of dimension 2: expected 1, actual 64)"
    ]


def test_an_input_with_other_strides_is_called_a_tensor() -> None:
    found = findings("tensor 'L['x']' stride mismatch at index 0. expected 8, actual 9")

    assert [(f.message, f.suggestion) for f in found] == [
        (
            "compiled again because of tensor strides, though no shape changed: 1 of 1 reason is a stride mismatch, "
            "of L['x'] (stride of dimension 0: expected 8, actual 9)",
            "give the tensor in one layout on every call (pytorch #126241)",
        )
    ]


def test_a_size_that_changed_is_another_matter() -> None:
    for reasons in (
        (),
        ("tensor 'L['x']' size mismatch at index 2. expected 32, actual 64",),
        (OLD, OLD.replace("stride mismatch", "size mismatch")),
        ("tensor 'L['x']' requires_grad mismatch. expected requires_grad=0",),
    ):
        assert findings(*reasons) == []


def test_it_is_told_once() -> None:
    trials = (
        a_trial("inductor-layout-opt-on", recompile_reasons=(OLD,)),
        a_trial("inductor", recompile_reasons=(OLD,)),
    )

    assert [f.configuration for f in check(a_diagnosis(*trials))] == ["inductor"]
