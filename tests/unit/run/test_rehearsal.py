from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
import torch
from live_trials import reference_of
from torch import nn

from layoutdoctor.errors import SubjectError
from layoutdoctor.run import rehearsal
from layoutdoctor.run.rehearsal import run_first
from layoutdoctor.subjects.subject import subject_from_python

if TYPE_CHECKING:
    from collections.abc import Iterator


def test_memory_that_runs_out_in_the_first_run_is_an_error_that_says_so() -> None:
    def greedy(x: torch.Tensor) -> torch.Tensor:
        return x + torch.empty(1 << 49, dtype=torch.uint8)[: x.numel()]

    with pytest.raises(SubjectError) as caught:
        run_first(subject_from_python(greedy, torch.ones(2)), "inference")

    message = str(caught.value)
    assert message.startswith("cannot run greedy on float32[2]: out of memory: 512 TiB were asked for (test_rehearsal")
    assert message.endswith("; diagnose it on a machine with more memory, or with a smaller input")


X = torch.randn(2, 3, 8, 8, generator=torch.Generator().manual_seed(0))


def test_memory_that_runs_out_in_float64_costs_only_that() -> None:
    def greedy(x: torch.Tensor) -> torch.Tensor:
        if x.dtype == torch.float64:
            torch.empty(1 << 49, dtype=torch.uint8)
        return x + 1

    reference = reference_of(subject_from_python(greedy, X))

    assert reference.name == "eager float32"
    assert reference.notes == (
        "the outputs were compared with eager's, not with float64's: out of memory: 512 TiB were asked for",
    )


def test_a_model_with_other_shapes_in_float64_is_compared_with_eager() -> None:
    subject = subject_from_python(lambda x: x if x.dtype == torch.float32 else x[:1], X)

    reference = reference_of(subject)

    assert (reference.name, reference.why_not_exact) == (
        "eager float32",
        "in float64 the model's outputs have other shapes",
    )


def test_values_that_fade_out_are_noted() -> None:
    class Fading(nn.Module):
        def __init__(self, factor: float) -> None:
            super().__init__()
            self.factor = factor

        def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
            return x * self.factor, x.sum(dim=1).to(torch.int64)

    def notes(factor: float) -> tuple[str, ...]:
        return run_first(subject_from_python(Fading(factor), torch.full((1, 2), 1e-30)), "inference").notes

    assert notes(1.0) == ()
    assert notes(1e-9) == (rehearsal.FADED_NOTE,)  # subnormal
    assert notes(0.0) == (rehearsal.FADED_NOTE,)


@pytest.fixture
def tf32_kept() -> Iterator[None]:
    """Puts torch's setting back."""
    before = torch.backends.cudnn.allow_tf32, torch.backends.cuda.matmul.allow_tf32
    yield
    torch.backends.cudnn.allow_tf32, torch.backends.cuda.matmul.allow_tf32 = before


class FakeGpu:
    """A GPU as ``compute_reference`` sees it: the tensors stay on the CPU."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, capability: tuple[int, int], *, tf32: bool) -> None:
        self.runs: list[tuple[torch.dtype, bool]] = []
        monkeypatch.setattr(rehearsal, "_device_of", lambda subject: torch.device("cuda"))
        monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: capability)
        torch.backends.cudnn.allow_tf32 = tf32

    def model(self, x: torch.Tensor) -> torch.Tensor:
        self.runs.append((x.dtype, torch.backends.cudnn.allow_tf32))
        return x * 3


@pytest.mark.usefixtures("tf32_kept")
@pytest.mark.parametrize(
    ("capability", "dtype", "tf32", "exact", "name"),
    [
        ((9, 0), torch.float32, False, (torch.float64, False), "float64"),
        ((9, 0), torch.float32, True, (torch.float32, False), "float32"),
        ((9, 0), torch.float16, True, (torch.float32, False), "float32"),
        ((8, 9), torch.float32, True, (torch.float32, False), "float32"),
        ((8, 9), torch.float32, False, None, "eager float32"),
        ((7, 5), torch.float32, True, None, "eager float32"),  # which has no TF32
    ],
)
def test_a_gpu_has_a_reference_of_its_own_type_or_in_float64(
    capability: tuple[int, int],
    dtype: torch.dtype,
    tf32: bool,
    exact: Any,
    name: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    gpu = FakeGpu(monkeypatch, capability, tf32=tf32)

    def model(x: torch.Tensor) -> torch.Tensor:
        return gpu.model(x)

    reference = reference_of(subject_from_python(model, X.to(dtype)))

    assert gpu.runs == [(dtype, tf32)] * 2 + ([] if exact is None else [exact])
    assert (reference.name, reference.why_not_exact) == (name, "")
    assert reference.may_use_tf32 is (tf32 and capability >= (8, 0))


@pytest.mark.usefixtures("tf32_kept")
def test_a_model_under_autocast_on_a_gpu_needs_no_float64(monkeypatch: pytest.MonkeyPatch) -> None:
    gpu = FakeGpu(monkeypatch, (9, 0), tf32=False)

    weights = torch.randn(4, 8, generator=torch.Generator().manual_seed(1))

    def model(x: torch.Tensor) -> torch.Tensor:
        with torch.autocast("cpu", dtype=torch.bfloat16):
            return gpu.model(x) @ weights.T

    given = torch.randn(16, 8, generator=torch.Generator().manual_seed(2))
    reference = reference_of(subject_from_python(model, given))

    assert gpu.runs[-1] == (torch.float32, False)
    assert reference.name == "float32"
    output = reference.tensors["output 0"]
    assert torch.equal(output.exact, given * 3 @ weights.T)  # in which nothing was cast
    assert 1e-4 < output.eager_error / output.size < 1e-2
    assert torch.is_autocast_enabled("cpu") is False
