from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest
import torch
from torch import nn
from torch.nn import functional

from layoutdoctor.diagnosis.configurations import BUILTIN_CONFIGURATIONS
from layoutdoctor.errors import SubjectError
from layoutdoctor.measure.equivalence import StepResults, check_equivalence
from layoutdoctor.run.rehearsal import compute_reference
from layoutdoctor.subjects.prepare import prepare
from layoutdoctor.subjects.step import Step
from layoutdoctor.subjects.subject import LoadedSubject, subject_from_python

if TYPE_CHECKING:
    from collections.abc import Callable

BY_NAME = {configuration.name: configuration for configuration in BUILTIN_CONFIGURATIONS}
X = torch.randn(2, 3, 8, 8, generator=torch.Generator().manual_seed(0))


def a_model() -> nn.Module:
    return nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Conv2d(4, 2, 3))


def results_of(subject: LoadedSubject, mode: Any = "inference", name: str = "eager") -> StepResults:
    prepared = prepare(subject, BY_NAME[name], mode)
    return Step(prepared.run, prepared.module, prepared.args, prepared.kwargs, mode).results()


def changed_output(results: StepResults, change: Callable[[torch.Tensor], torch.Tensor]) -> StepResults:
    return replace(results, outputs=[change(results.outputs[0].clone()), *results.outputs[1:]])


@pytest.mark.parametrize("mode", ["inference", "training"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64])
def test_another_memory_format_is_equal(mode: Any, dtype: torch.dtype) -> None:
    subject = subject_from_python(a_model().to(dtype), X.to(dtype))

    equivalence = check_equivalence(compute_reference(subject, mode), results_of(subject, mode, "eager-channels-last"))

    assert equivalence.status == "equal", equivalence.detail
    assert equivalence.reference == ("float64" if dtype != torch.float64 else equivalence.reference)
    assert equivalence.gradients_checked is (mode == "training")
    assert equivalence.output_layouts_differ is True
    assert equivalence.max_abs_error is not None
    assert equivalence.tolerance is not None
    assert equivalence.max_abs_error <= equivalence.tolerance


@pytest.mark.parametrize("relative", [1e-3, 1.0])
def test_one_wrong_value_is_different_and_named(relative: float) -> None:
    subject = subject_from_python(a_model(), X)
    reference = compute_reference(subject, "inference")
    largest = reference.tensors["output 0"].largest

    def spoil(output: torch.Tensor) -> torch.Tensor:
        output[0, 0, 0, 0] += relative * largest
        return output

    equivalence = check_equivalence(reference, changed_output(results_of(subject), spoil))

    assert equivalence.status == "different"
    assert equivalence.max_abs_error == pytest.approx(relative * largest, rel=0.01)
    assert equivalence.largest_value == largest
    assert equivalence.detail is not None
    assert equivalence.detail.startswith("output 0 differs by ")
    assert "the larger of 10 x eager's own error" in equivalence.detail


def test_a_wrong_gradient_is_different_and_named() -> None:
    subject = subject_from_python(a_model(), X)
    results = results_of(subject, "training")
    results.gradients["3.weight"] = results.gradients["3.weight"] * 1.05

    equivalence = check_equivalence(compute_reference(subject, "training"), results)

    assert equivalence.status == "different"
    assert equivalence.detail is not None
    assert equivalence.detail.startswith("gradient of 3.weight differs by ")


def test_a_gradient_may_differ_by_what_one_flipped_activation_makes() -> None:
    """An activation within rounding of a ReLU's kink sends its gradient elsewhere: half a percent was seen."""
    subject = subject_from_python(a_model(), X)
    results = results_of(subject, "training")
    results.gradients["3.weight"] = results.gradients["3.weight"] * 1.005

    assert check_equivalence(compute_reference(subject, "training"), results).status == "equal"


@pytest.mark.parametrize(("value", "status"), [(1.000001, "equal"), (1.1, "different")])
def test_a_gradient_may_be_lost_where_rounding_decides_whether_there_is_one(value: float, status: str) -> None:
    """Eager in channels_last differed so from eager in a third of networks with batch norms, in training."""
    model = nn.Sequential(nn.Linear(1, 1), nn.ReLU())
    nn.init.ones_(model[0].weight)
    nn.init.constant_(model[0].bias, -1.0)
    subject = subject_from_python(model, torch.tensor([[value]]))
    results = results_of(subject, "training")
    for gradient in results.gradients.values():
        gradient.zero_()

    equivalence = check_equivalence(compute_reference(subject, "training"), results)

    assert equivalence.status == status
    assert equivalence.detail is not None
    assert ("with perturbed weights" in equivalence.detail) == (status == "equal")
    assert ("too sensitive to rounding to be told: 2 gradients" in equivalence.detail) == (status == "equal")


def test_a_bias_in_front_of_a_batch_norm_may_differ_by_rounding() -> None:
    """Its gradient is zero but for rounding, so that eager's own error says nothing about another order's."""
    subject = subject_from_python(a_model(), X)
    reference = compute_reference(subject, "training")
    results = results_of(subject, "training")
    scale = reference.tensors["gradient of 0.weight"].largest
    results.gradients["0.bias"] = results.gradients["0.bias"] + 5e-6 * scale

    assert check_equivalence(reference, results).status == "equal"


@pytest.mark.parametrize(
    ("change", "detail"),
    [
        (lambda output: output[:1], "output 0: shape [1, 2, 4, 4], eager gives [2, 2, 4, 4]"),
        (lambda output: output.half(), "output 0: dtype torch.float16, eager gives torch.float32"),
        (lambda output: output.fill_(float("nan")), "output 0: 64 of 64 values are NaN or infinite, finite in eager"),
    ],
    ids=["shape", "dtype", "nan"],
)
def test_another_shape_dtype_or_nan_is_different(change: Any, detail: str) -> None:
    subject = subject_from_python(a_model(), X)

    equivalence = check_equivalence(
        compute_reference(subject, "inference"), changed_output(results_of(subject), change)
    )

    assert (equivalence.status, equivalence.detail, equivalence.max_abs_error) == ("different", detail, None)


def test_missing_and_additional_tensors_are_different() -> None:
    subject = subject_from_python(a_model(), X)
    reference = compute_reference(subject, "training")
    results = results_of(subject, "training")
    fewer = replace(results, gradients={})
    more = replace(results, outputs=[*results.outputs, X])

    assert check_equivalence(reference, fewer).detail == (
        "gradient of 0.weight: eager gives it, this configuration does not"
    )
    assert check_equivalence(reference, more).detail == "output 1: eager does not give it"


def test_nan_and_infinity_where_eager_has_them_are_equal() -> None:
    subject = subject_from_python(lambda x: torch.stack([x / 0, (x - x) / 0, x]), torch.tensor([1.0, -1.0]))
    reference = compute_reference(subject, "inference")

    def flip(output: torch.Tensor) -> torch.Tensor:
        output[0, 0] = -output[0, 0]
        return output

    assert check_equivalence(reference, results_of(subject)).status == "equal"
    assert check_equivalence(reference, changed_output(results_of(subject), flip)).detail == (
        "output 0: 1 values differ where eager gives NaN or infinity"
    )


def test_a_number_that_eager_could_not_hold_is_equal_to_the_reference() -> None:
    subject = subject_from_python(lambda x: x * 300 / 300, torch.tensor([300.0, 1.0], dtype=torch.float16))
    reference = compute_reference(subject, "inference")
    eager = reference.tensors["output 0"].eager
    assert eager is not None
    assert eager.isinf().tolist() == [True, False]

    fused = StepResults([torch.tensor([300.0, 1.0], dtype=torch.float16)], {}, reference.output_layouts)

    assert check_equivalence(reference, fused).status == "equal"


def test_whole_numbers_have_to_be_equal() -> None:
    subject = subject_from_python(lambda x: x.argmax(1), torch.eye(3))
    reference = compute_reference(subject, "inference")

    assert check_equivalence(reference, results_of(subject)).status == "equal"
    assert check_equivalence(reference, changed_output(results_of(subject), lambda output: output + 1)).detail == (
        "output 0: 3 of 3 int64 values differ"
    )


def test_a_random_model_is_not_checked_where_other_numbers_were_drawn() -> None:
    subject = subject_from_python(nn.Sequential(nn.Conv2d(3, 4, 3), nn.Dropout()), X)
    reference = compute_reference(subject, "training")
    prepared = prepare(subject, BY_NAME["eager"], "training")
    other = Step(prepared.run, prepared.module, prepared.args, {}, "training", first_seed=5).results()

    same_draw = check_equivalence(reference, results_of(subject, "training"))
    other_draw = check_equivalence(reference, other)

    assert compute_reference(subject, "inference").random is None
    assert (same_draw.status, same_draw.reference) == ("equal", "eager float32")
    assert (other_draw.status, other_draw.detail) == (
        "not_checked",
        "the model is random: output 0 differs between two eager runs with different seeds, "
        "and this configuration drew other numbers",
    )


def test_a_model_that_refuses_float64_is_compared_with_eager_and_says_so() -> None:
    def only_float32(x: torch.Tensor) -> torch.Tensor:
        return functional.conv2d(x, torch.ones(1, 3, 3, 3))

    subject = subject_from_python(only_float32, X)
    reference = compute_reference(subject, "inference")
    equivalence = check_equivalence(reference, results_of(subject))

    assert (equivalence.status, equivalence.reference, reference.notes) == ("equal", "eager float32", ())
    assert equivalence.detail is not None
    assert "; float64 could not be the reference: RuntimeError: " in equivalence.detail


def test_a_model_that_raises_only_at_a_later_run_is_told_in_one_line() -> None:
    calls: list[int] = []

    def tires(x: torch.Tensor) -> torch.Tensor:
        calls.append(1)
        if len(calls) > 1:
            raise RuntimeError("tired")
        return x + 1

    with pytest.raises(SubjectError, match=r"cannot run tires on .*: RuntimeError: tired"):
        compute_reference(subject_from_python(tires, torch.ones(3)), "inference")
