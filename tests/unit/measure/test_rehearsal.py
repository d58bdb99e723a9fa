from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
import torch
from torch import nn

from layoutdoctor.errors import SubjectError
from layoutdoctor.measure import memory, rehearsal
from layoutdoctor.measure.rehearsal import check_runs
from layoutdoctor.subjects.subject import subject_from_python

if TYPE_CHECKING:
    from collections.abc import Callable

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


def test_training_needs_the_gradients_too(free: Callable[[float], None]) -> None:
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


def test_where_nobody_knows_what_is_free_nothing_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memory, "available_memory", lambda device: None)

    assert check_runs(subject_from_python(Heavy(), torch.ones(1, 1024)), "training").shared.changed == ()
