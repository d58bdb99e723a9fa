from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest
import torch
from live_trials import reference_of
from torch import nn
from torch._dynamo.utils import rmse, same
from torch.nn import functional

from layoutdoctor.diagnosis.configurations import BY_NAME
from layoutdoctor.measure.equivalence import Part, Reference, StepResults, check_equivalence, reference_tensor
from layoutdoctor.subjects.prepare import prepare
from layoutdoctor.subjects.subject import LoadedSubject, subject_from_python

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from layoutdoctor.diagnosis.trial import Equivalence

X = torch.randn(2, 3, 8, 8, generator=torch.Generator().manual_seed(0))


def a_model() -> nn.Module:
    return nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Conv2d(4, 2, 3))


def results_of(subject: LoadedSubject, mode: Any = "inference", name: str = "eager") -> StepResults:
    return prepare(subject, BY_NAME[name], mode).results()


def changed_output(results: StepResults, change: Callable[[torch.Tensor], torch.Tensor]) -> StepResults:
    return replace(results, outputs=[change(results.outputs[0].clone()), *results.outputs[1:]])


@pytest.mark.parametrize("mode", ["inference", "training"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64])
def test_another_memory_format_is_equal(mode: Any, dtype: torch.dtype) -> None:
    subject = subject_from_python(a_model().to(dtype), X.to(dtype))

    equivalence = check_equivalence(reference_of(subject, mode), results_of(subject, mode, "eager-channels-last"))

    assert equivalence.status == "equal", equivalence.detail
    assert equivalence.reference == ("float64" if dtype != torch.float64 else "eager float64")
    assert (equivalence.eager_relative_error is None) is (dtype == torch.float64)
    assert equivalence.gradients_checked is (mode == "training")
    assert equivalence.output_layouts_differ is True
    assert equivalence.relative_error is not None
    assert equivalence.tolerance is not None
    assert equivalence.relative_error <= equivalence.tolerance


def test_one_wrong_value_is_different_and_named() -> None:
    subject = subject_from_python(a_model(), X)
    reference = reference_of(subject, "inference")
    exact = reference.tensors["output 0"].exact
    error = 1e-3 * exact.abs().max().item()

    def spoil(output: torch.Tensor) -> torch.Tensor:
        output[0, 0, 0, 0] += error
        return output

    equivalence = check_equivalence(reference, changed_output(results_of(subject), spoil))

    assert equivalence.status == "different"
    assert equivalence.max_abs_error == pytest.approx(error, rel=0.01)
    assert equivalence.relative_error == pytest.approx(error / exact.norm().item(), rel=0.01)
    assert equivalence.tolerance == 1e-4
    assert equivalence.detail is not None
    assert equivalence.detail.startswith("output 0: relative error ")


def of_tensor(exact: torch.Tensor, eager: torch.Tensor, found: torch.Tensor, name: str = "output 0") -> Equivalence:
    reference = Reference("float64", {name: reference_tensor(name, Part.of(exact), Part.of(eager))})
    if name == "output 0":
        return check_equivalence(reference, StepResults([found], {}, ()))
    with_output = {"output 0": reference_tensor("output 0", Part.of(ONES), Part.of(ONES)), **reference.tensors}
    gradients = {name.removeprefix("gradient of "): found}
    return check_equivalence(replace(reference, tensors=with_output), StepResults([ONES], gradients, ()))


ONES = torch.ones(2)


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
def test_errors_are_those_of_torchs_accuracy_check_and_what_that_calls_same_is_equal(
    seed: int, dtype: torch.dtype
) -> None:
    generator = torch.Generator().manual_seed(seed)
    shape = tuple(torch.randint(1, 9, (4,), generator=generator).tolist())
    exact = torch.randn(shape, generator=generator, dtype=torch.float64) + 1
    eager = exact.to(dtype)
    own = rmse(exact, eager.double()).item()
    amount = 10 ** (4 * torch.rand((), generator=generator).item() - 1) * own
    found = (exact + amount * torch.randn(shape, generator=generator)).to(dtype)

    seen = of_tensor(exact, eager, found)

    size = rmse(exact, torch.zeros_like(exact)).item()
    assert seen.relative_error == pytest.approx(rmse(exact, found.double()).item() / size)
    assert seen.eager_relative_error == pytest.approx(own / size)
    assert seen.max_abs_error == pytest.approx((exact - found.double()).abs().max().item())
    if same(eager, found, exact, tol=1e-5, log_error=lambda *_: None):
        assert seen.status == "equal"


@pytest.mark.parametrize(
    ("eager_error", "times", "status"),
    [
        (1e-2, 6, "equal"),  # frozen weights in bfloat16, folded into the convolutions
        (1e-2, 12, "different"),
        (1e-4, 50, "equal"),  # below the floor
        (1e-4, 200, "different"),
        (0.1, 4, "equal"),
        (0.1, 6, "different"),  # by more than half of the values
        (0.4, 1, "not_checked"),
    ],
)
def test_outputs_within_a_few_times_eagers_own_error_are_equal(eager_error: float, times: float, status: str) -> None:
    exact = torch.ones(1000, dtype=torch.float64)
    noise = torch.randn(1000, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    noise /= noise.square().mean().sqrt()

    eager, found = (exact + eager_error * noise).bfloat16(), (exact + times * eager_error * noise).bfloat16()
    seen = of_tensor(exact, eager, found)

    assert seen.status == status
    if eager_error >= 1e-2:
        assert seen.eager_relative_error == pytest.approx(eager_error, rel=0.1)
        assert seen.relative_error == pytest.approx(times * eager_error, rel=0.1)
    if status == "not_checked":
        assert seen.detail == "0 tensors compared; 1 tensor not compared: eager's own relative error is up to 0.4"


@pytest.mark.parametrize(
    ("change", "status"),
    [
        (lambda gradient: gradient * 1.15, "equal"),  # as a ReLU that rounding opens may change it
        (lambda gradient: gradient * 1.25, "different"),
        (torch.zeros_like, "different"),
        (lambda gradient: gradient.permute(0, 2, 3, 1).reshape(gradient.shape), "different"),
    ],
    ids=["by 15 %", "by 25 %", "zero", "read as channels_last"],
)
def test_a_gradient_is_different_only_where_it_is_wrong_beyond_its_tolerance(
    change: Callable[[torch.Tensor], torch.Tensor], status: str
) -> None:
    subject = subject_from_python(a_model(), X)
    results = results_of(subject, "training")
    results.gradients["3.weight"] = change(results.gradients["3.weight"])

    equivalence = check_equivalence(reference_of(subject, "training"), results)

    assert equivalence.status == status
    assert equivalence.detail is not None
    assert "gradient of 3.weight: relative error " in equivalence.detail


@pytest.mark.parametrize(("change", "status"), [(1e-5, "equal"), (0.1, "different")])
def test_a_bias_in_front_of_a_batch_norm_may_differ_by_rounding(change: float, status: str) -> None:
    """Its gradient is zero but for rounding, so it is compared beside a hundredth of its weight's gradient."""
    subject = subject_from_python(a_model(), X)
    reference = reference_of(subject, "training")
    results = results_of(subject, "training")
    results.gradients["0.bias"] = results.gradients["0.bias"] + change * reference.tensors["gradient of 0.weight"].size

    assert check_equivalence(reference, results).status == status


def test_a_large_gradient_of_the_models_own_parameter_hides_no_wrong_output() -> None:
    model = nn.Conv2d(3, 4, 3)
    with torch.no_grad():
        model.weight.mul_(1e-6)
        model.bias.zero_()  # type: ignore[union-attr]
    subject = subject_from_python(model, X)
    results = changed_output(results_of(subject, "training"), torch.zeros_like)

    assert check_equivalence(reference_of(subject, "training"), results).status == "different"


@pytest.mark.parametrize(("times", "status"), [(100, "equal"), (10_000, "different")])
def test_a_sum_whose_terms_cancel_may_differ_by_what_another_order_makes_of_it(times: float, status: str) -> None:
    exact, eager = torch.full((4,), 1e-17, dtype=torch.float64), torch.full((4,), 2e-9)

    seen = of_tensor(exact, eager, times * eager)

    assert seen.status == status
    assert seen.relative_error == pytest.approx(times)  # times eager's own error
    assert seen.eager_relative_error == pytest.approx(1)


@pytest.mark.parametrize(("error", "status"), [(0.0, "equal"), (1e-3, "different")])
def test_what_is_exactly_zero_has_to_be_zero(error: float, status: str) -> None:
    zero = torch.zeros(4, dtype=torch.float64)

    assert of_tensor(zero, zero.float(), zero.float() + error).status == status


@pytest.mark.parametrize(("may_use_tf32", "status"), [(False, "different"), (True, "equal")])
def test_where_float32_may_be_tf32_its_rounding_is_allowed(may_use_tf32: bool, status: str) -> None:
    subject = subject_from_python(a_model(), X)
    reference = replace(reference_of(subject, "inference"), may_use_tf32=may_use_tf32)

    def in_tf32(tensor: torch.Tensor) -> torch.Tensor:
        return (tensor.view(torch.int32) + 0x1000 & ~0x1FFF).view(torch.float32)  # ten bits are left

    model = a_model()
    model.load_state_dict({k: in_tf32(v) if v.dim() == 4 else v for k, v in subject.model.state_dict().items()})
    rounded = subject_from_python(model, in_tf32(X))

    assert check_equivalence(reference, results_of(rounded)).status == status


def test_a_reference_travels_as_a_file_and_is_read_from_it(tmp_path: Path) -> None:
    subject = subject_from_python(lambda x: (x / 0, x.argmax(1), x * (1 + 2j), x), X)
    reference = reference_of(subject, "inference")
    reference.save(tmp_path / "reference.pt")

    loaded = Reference.load(tmp_path / "reference.pt")

    assert replace(loaded, tensors={}) == replace(reference, tensors={})
    for name, tensor in reference.tensors.items():
        assert (loaded.tensors[name].eager is None) is (tensor.eager is None)
        assert loaded.tensors[name][2:] == tensor[2:]
    for results in (results_of(subject), changed_output(results_of(subject), lambda x: x + 1)):
        assert check_equivalence(loaded, results) == check_equivalence(reference, results)


@pytest.mark.parametrize(
    ("change", "detail"),
    [
        (lambda output: output[:1], "output 0: shape [1, 2, 4, 4], eager gives [2, 2, 4, 4]"),
        (lambda output: output.half(), "output 0: dtype torch.float16, eager gives torch.float32"),
        (
            lambda output: output.fill_(float("nan")),
            "output 0: 64 of 64 values are NaN or infinite, or differ where eager has NaN or infinity",
        ),
    ],
    ids=["shape", "dtype", "nan"],
)
def test_another_shape_dtype_or_nan_is_different(change: Any, detail: str) -> None:
    subject = subject_from_python(a_model(), X)

    equivalence = check_equivalence(reference_of(subject, "inference"), changed_output(results_of(subject), change))

    assert (equivalence.status, equivalence.detail, equivalence.max_abs_error) == ("different", detail, None)


def test_missing_and_additional_tensors_are_different() -> None:
    subject = subject_from_python(a_model(), X)
    reference = reference_of(subject, "training")
    results = results_of(subject, "training")
    fewer = replace(results, gradients={})
    more = replace(results, outputs=[*results.outputs, X])

    assert check_equivalence(reference, fewer).detail == (
        "gradient of 0.weight: present in eager mode, absent in this configuration"
    )
    assert check_equivalence(reference, more).detail == "output 1: absent in eager mode"


def test_nan_and_infinity_where_eager_has_them_are_equal() -> None:
    subject = subject_from_python(lambda x: torch.stack([x / 0, (x - x) / 0, x]), torch.tensor([1.0, -1.0]))
    reference = reference_of(subject, "inference")

    def flip(output: torch.Tensor) -> torch.Tensor:
        output[0, 0] = -output[0, 0]
        return output

    assert check_equivalence(reference, results_of(subject)).status == "equal"
    assert check_equivalence(reference, changed_output(results_of(subject), flip)).detail == (
        "output 0: 1 of 6 values are NaN or infinite, or differ where eager has NaN or infinity"
    )


def test_a_number_that_eager_could_not_hold_is_equal_to_the_reference() -> None:
    subject = subject_from_python(lambda x: x * 300 / 300, torch.tensor([300.0, 1.0], dtype=torch.float16))
    reference = reference_of(subject, "inference")
    eager = reference.tensors["output 0"].eager
    assert eager is not None
    assert eager.isinf().tolist() == [True, False]

    fused = StepResults([torch.tensor([300.0, 1.0], dtype=torch.float16)], {}, reference.output_layouts)

    assert check_equivalence(reference, fused).status == "equal"


@pytest.mark.parametrize("wrong", [(slice(None), 1), (slice(None), slice(None), 5), (..., 7), (1,)])
def test_of_a_large_tensor_a_part_is_compared_that_meets_every_index(
    wrong: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("layoutdoctor.measure.equivalence.MOST_COMPARED", 100)
    subject = subject_from_python(a_model(), X)  # gives [2, 2, 4, 4]
    large = subject_from_python(lambda x: x * 2, X)  # [2, 3, 8, 8]: 384 elements, of which every fifth is compared

    def spoil(output: torch.Tensor) -> torch.Tensor:
        output[wrong] += 0.01
        return output

    reference = reference_of(large, "inference")
    right = check_equivalence(reference, results_of(large, "inference", "eager-channels-last"))

    assert reference.tensors["output 0"].exact.numel() == 77
    assert right.status == "equal"
    assert right.detail == "1 tensor compared (1 in 5 elements of the largest)"
    assert check_equivalence(reference, changed_output(results_of(large), spoil)).status == "different"
    assert "elements" not in str(check_equivalence(reference_of(subject, "inference"), results_of(subject)).detail)


def test_pieces_give_what_the_whole_gives(monkeypatch: pytest.MonkeyPatch) -> None:
    subject = subject_from_python(a_model(), X)
    by_one = (torch.arange(64) == 7).reshape(2, 2, 4, 4)
    results = changed_output(results_of(subject, "inference", "eager-channels-last"), lambda output: output + by_one)
    whole = check_equivalence(reference_of(subject), results)

    monkeypatch.setattr("layoutdoctor.measure.equivalence._PIECE", 5)
    again = check_equivalence(reference_of(subject), results)

    assert (again.status, again.max_abs_error) == (whole.status, whole.max_abs_error) == ("different", pytest.approx(1))
    assert again.relative_error == pytest.approx(whole.relative_error)


def test_whole_numbers_have_to_be_equal() -> None:
    subject = subject_from_python(lambda x: x.argmax(1), torch.eye(3))
    reference = reference_of(subject, "inference")

    assert check_equivalence(reference, results_of(subject)).status == "equal"
    assert check_equivalence(reference, changed_output(results_of(subject), lambda output: output + 1)).detail == (
        "output 0: 3 of 3 int64 values differ"
    )


def test_a_random_model_is_not_checked_where_other_numbers_were_drawn() -> None:
    subject = subject_from_python(nn.Sequential(nn.Conv2d(3, 4, 3), nn.Dropout()), X)
    reference = reference_of(subject, "training")
    other = replace(prepare(subject, BY_NAME["eager"], "training"), first_seed=5).results()

    same_draw = check_equivalence(reference, results_of(subject, "training"))
    other_draw = check_equivalence(reference, other)

    assert reference_of(subject, "inference").random == ""
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
    reference = reference_of(subject, "inference")
    equivalence = check_equivalence(reference, results_of(subject))

    assert (equivalence.status, equivalence.reference, reference.notes) == ("equal", "eager float32", ())
    assert equivalence.detail is not None
    assert "; eager itself is the reference: RuntimeError: " in equivalence.detail
