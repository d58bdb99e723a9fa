from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
import torch
import torch.utils.checkpoint
from torch import nn

from layoutdoctor.diagnosis.configurations import BUILTIN_CONFIGURATIONS
from layoutdoctor.errors import SubjectError
from layoutdoctor.measure import equivalence, memory
from layoutdoctor.measure.equivalence import check_equivalence
from layoutdoctor.run import rehearsal
from layoutdoctor.run.rehearsal import check_runs, compute_reference
from layoutdoctor.subjects.prepare import prepare
from layoutdoctor.subjects.subject import subject_from_python

if TYPE_CHECKING:
    from collections.abc import Callable

    from layoutdoctor.diagnosis.records import Mode

MIB = 1 << 20


class Heavy(nn.Module):
    """4 MiB of weights; remembers that it was copied."""

    copies = 0

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(1024, 1024))

    def __deepcopy__(self, memo: Any) -> Heavy:
        type(self).copies += 1
        made = Heavy.__new__(Heavy)
        nn.Module.__init__(made)
        made.weight = memo.get(id(self.weight), self.weight)
        return made

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x @ self.weight


@pytest.fixture
def free(monkeypatch: pytest.MonkeyPatch) -> Callable[[float], None]:
    """Sets what is free, in MiB."""
    Heavy.copies = 0
    return lambda amount: monkeypatch.setattr(memory, "available_memory", lambda device: int(amount * MIB))


def test_a_model_whose_copy_does_not_fit_is_refused_before_it_is_copied(free: Callable[[float], None]) -> None:
    free(3)

    with pytest.raises(SubjectError) as caught:
        check_runs(subject_from_python(Heavy(), torch.ones(1, 1024)), "inference")

    assert str(caught.value) == (
        "cannot diagnose Heavy: on cpu it needs at least 4.00 MiB beside what is in use (4.00 MiB of weights, 4.00 KiB "
        "of inputs), 3.00 MiB are free; diagnose it on a machine with more memory, with a smaller input (--input), or "
        "in a smaller dtype (--dtype bf16)"
    )
    assert Heavy.copies == 0


def test_training_needs_the_gradients_too(free: Callable[[float], None], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rehearsal, "resident_peak", lambda run, device: (run(), None)[1])
    free(7)
    subject = subject_from_python(Heavy(), torch.ones(1, 1024))

    with pytest.raises(
        SubjectError, match=r"at least 8.00 MiB .* \(4.00 MiB of weights, 4.00 KiB of inputs, 4.00 MiB of g"
    ):
        check_runs(subject, "training")
    assert Heavy.copies == 0
    check_runs(subject, "inference")


def test_a_model_that_just_fits_is_rehearsed(free: Callable[[float], None], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rehearsal, "resident_peak", lambda run, device: (run(), 2 * MIB)[1])
    free(6 + 8 / 1024)  # outputs of 4 KiB, in float64

    shown = check_runs(subject_from_python(Heavy(), torch.ones(1, 1024)), "inference")

    assert Heavy.copies == 1
    assert shown.shared.activation_bytes == 2 * MIB


def test_what_the_rehearsal_took_is_needed_beside_the_weights(
    free: Callable[[float], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rehearsal, "resident_peak", lambda run, device: (run(), 2 * MIB)[1])
    free(6)

    with pytest.raises(SubjectError) as caught:
        check_runs(subject_from_python(Heavy(), torch.ones(1, 1024)), "inference")

    assert "(4.00 MiB of weights, 2.00 MiB of activations, 8.00 KiB of the reference)" in str(caught.value)


def test_memory_that_runs_out_in_the_first_run_is_told_as_that() -> None:
    def greedy(x: torch.Tensor) -> torch.Tensor:
        return x + torch.empty(1 << 49, dtype=torch.uint8)[: x.numel()]

    with pytest.raises(SubjectError) as caught:
        check_runs(subject_from_python(greedy, torch.ones(2)), "inference")

    message = str(caught.value)
    assert message.startswith("cannot run greedy on float32[2]: out of memory: 512 TiB were asked for (test_rehearsal")
    assert message.endswith("; diagnose it on a machine with more memory, or with a smaller input")


X = torch.randn(2, 3, 8, 8, generator=torch.Generator().manual_seed(0))
CHANNELS_LAST = next(c for c in BUILTIN_CONFIGURATIONS if c.name == "eager-channels-last")


def a_model() -> nn.Module:
    return nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Conv2d(4, 2, 3))


def test_where_float64_does_not_fit_eager_is_the_reference_and_a_note_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    subject = subject_from_python(nn.Linear(256, 256), torch.ones(1, 256))
    rehearsal = check_runs(subject, "inference")
    rehearsal.shared.activation_bytes = 0  # what a first run takes depends on what the process did before
    monkeypatch.setattr(memory, "available_memory", lambda device: 400_000)  # the weights in float32 are 263,168 bytes

    reference = compute_reference(subject, "inference", rehearsal)

    assert reference.name == "eager float32"
    (note,) = reference.notes
    assert note.startswith("the outputs were compared with eager's, not with float64's: float64 needs ")
    assert "of weights in float64" in note
    assert reference.why_not_exact is not None
    assert note.endswith(reference.why_not_exact)
    results = prepare(subject, CHANNELS_LAST, "inference", rehearsal.shared).step("inference", fresh_inputs=False)
    checked = check_equivalence(reference, results.results())
    assert (checked.status, checked.reference) == ("equal", "eager float32")


def test_where_it_fits_it_is_the_reference(monkeypatch: pytest.MonkeyPatch) -> None:
    subject = subject_from_python(nn.Linear(256, 256), torch.ones(1, 256))
    rehearsal = check_runs(subject, "inference")
    need = 8 * (256 * 256 + 256) + 2 * rehearsal.shared.activation_bytes
    monkeypatch.setattr(memory, "available_memory", lambda device: need)

    reference = compute_reference(subject, "inference", rehearsal)

    assert (reference.name, reference.notes) == ("float64", ())


def test_in_training_one_large_gradient_in_float64_has_to_fit(monkeypatch: pytest.MonkeyPatch) -> None:
    subject = subject_from_python(nn.Linear(512, 512), torch.ones(1, 512))
    rehearsal = check_runs(subject, "training")
    rehearsal.shared.activation_bytes = 5 * MIB  # the gradients among them
    need = 8 * (512 * 512 + 512) + 8 * 512 * 512 + 2 * 4 * MIB
    names = []
    for free in (need, need - 1):
        monkeypatch.setattr(memory, "available_memory", lambda device, free=free: free)
        names.append(compute_reference(subject, "training", rehearsal).name)

    assert names == ["float64", "eager float32"]


def test_memory_that_runs_out_in_float64_costs_only_that(monkeypatch: pytest.MonkeyPatch) -> None:
    def greedy(x: torch.Tensor) -> torch.Tensor:
        if x.dtype == torch.float64:
            torch.empty(1 << 49, dtype=torch.uint8)
        return x + 1

    reference = compute_reference(subject_from_python(greedy, X), "inference")

    assert reference.name == "eager float32"
    assert reference.notes == (
        "the outputs were compared with eager's, not with float64's: out of memory: 512 TiB were asked for",
    )


def test_a_model_with_other_shapes_in_float64_is_compared_with_eager() -> None:
    subject = subject_from_python(lambda x: x if x.dtype == torch.float32 else x[:1], X)

    reference = compute_reference(subject, "inference")

    assert (reference.name, reference.why_not_exact) == ("eager float32", "it gives other outputs in float64")


@pytest.mark.parametrize("mode", ["inference", "training"])
def test_what_is_kept_is_the_outputs_in_float64_and_the_gradients_in_float32(mode: Mode) -> None:
    reference = compute_reference(subject_from_python(a_model(), X), mode)

    kept = {name: (tensor.exact.dtype, tensor.eager) for name, tensor in reference.tensors.items()}

    assert kept.pop("output 0") == (torch.float64, None)
    assert all(value == (torch.float32, None) for value in kept.values())
    assert len(kept) == (6 if mode == "training" else 0)


class CheckpointedTwice(nn.Module):
    """A layer whose gradient comes in two parts, before one whose gradient comes at once."""

    def __init__(self) -> None:
        super().__init__()
        self.twice, self.once = nn.Linear(8, 8), nn.Linear(8, 8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for _ in range(2):
            x = torch.utils.checkpoint.checkpoint(self.twice, x, use_reentrant=True)
        return self.once(x)


def test_gradients_that_are_compared_one_by_one_give_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    subject = subject_from_python(CheckpointedTwice(), torch.ones(2, 8, requires_grad=True))
    whole = compute_reference(subject, "training")
    compared: list[str] = []
    original = rehearsal.reference_tensor

    def compare(name: str, exact: torch.Tensor, eager: torch.Tensor) -> Any:
        compared.append(name)
        return original(name, exact, eager)

    monkeypatch.setattr(rehearsal, "reference_tensor", compare)
    monkeypatch.setattr(rehearsal, "_LARGE_GRADIENT", 1)

    one_by_one = compute_reference(subject, "training")

    assert set(compared[:2]) == {"gradient of once.weight", "gradient of once.bias"}  # while the backward runs
    assert list(one_by_one.tensors) == list(whole.tensors)
    assert one_by_one.name == whole.name == "float64"
    for name, tensor in whole.tensors.items():
        other = one_by_one.tensors[name]
        assert torch.equal(tensor.exact, other.exact)
        assert (tensor.error_of_eager, tensor.largest) == (other.error_of_eager, other.largest)


def test_a_backward_that_ends_half_way_in_float64_leaves_eagers_gradients(monkeypatch: pytest.MonkeyPatch) -> None:
    class NotInFloat64(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.last = nn.Linear(8, 8), nn.Linear(8, 8)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            def check(gradient: torch.Tensor) -> None:
                if gradient.dtype == torch.float64:
                    raise ValueError("only float32 here")

            x = self.first(x)
            x.register_hook(check)
            return self.last(x)

    monkeypatch.setattr(rehearsal, "_LARGE_GRADIENT", 1)

    reference = compute_reference(subject_from_python(NotInFloat64(), torch.ones(2, 8)), "training")

    assert (reference.name, reference.why_not_exact) == ("eager float32", "ValueError: only float32 here")
    assert len(reference.tensors) == 5


@pytest.mark.parametrize("mode", ["inference", "training"])
def test_pieces_give_what_the_whole_gives(mode: Mode, monkeypatch: pytest.MonkeyPatch) -> None:
    subject = subject_from_python(a_model(), X)
    results = prepare(subject, CHANNELS_LAST, mode).step(mode, fresh_inputs=False).results()
    whole = check_equivalence(compute_reference(subject, mode), results)
    spoiled = results.outputs[0].clone()
    spoiled[1, 1, 3, 3] += 0.5
    results.outputs[0] = spoiled
    wrong = check_equivalence(compute_reference(subject, mode), results)
    monkeypatch.setattr(equivalence, "_PIECE", 5)
    results.outputs[0] = spoiled

    assert check_equivalence(compute_reference(subject, mode), results) == wrong
    assert wrong.status == "different"
    assert whole.status == "equal"
    longest = torch.arange(12.0).reshape(1, 3, 4)
    pieces = list(equivalence._pieces(longest, longest.double()))
    assert [tuple(piece.shape) for piece, _ in pieces] == [(1, 3, 1)] * 4
    assert torch.equal(torch.cat([piece for piece, _ in pieces], 2), longest)


def test_values_that_fade_out_are_told() -> None:
    class Fading(nn.Module):
        def __init__(self, factor: float) -> None:
            super().__init__()
            self.factor = factor

        def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
            return x * self.factor, x.sum(dim=1).to(torch.int64)

    def notes(factor: float) -> tuple[str, ...]:
        return check_runs(subject_from_python(Fading(factor), torch.full((1, 2), 1e-30)), "inference").notes

    assert notes(1.0) == ()
    assert notes(1e-9) == (rehearsal.FADED_NOTE,)  # subnormal
    assert notes(0.0) == (rehearsal.FADED_NOTE,)
