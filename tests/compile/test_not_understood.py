"""Graphs that cannot be followed in full: counted as not understood, named in the report, never guessed."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
import torch
from live_trials import diagnosed, trial_of

if TYPE_CHECKING:
    from collections.abc import Callable


pytestmark = pytest.mark.compile


@torch.library.custom_op("layoutdoctor_tests::double", mutates_args=())
def double(x: torch.Tensor) -> torch.Tensor:
    return x * 2


@double.register_fake
def _(x: torch.Tensor) -> torch.Tensor:
    return torch.empty_like(x)


def doubled(x: torch.Tensor) -> torch.Tensor:
    return double(x)


class Around(torch.nn.Module):
    """Something odd between two convolutions."""

    def __init__(self, middle: Callable[[torch.Tensor], torch.Tensor]) -> None:
        super().__init__()
        self.first = torch.nn.Conv2d(4, 16, 3, padding=1)
        self.second = torch.nn.Conv2d(16, 16, 3, padding=1)
        self.middle = middle

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.second(self.middle(self.first(x)))


def branch(x: torch.Tensor) -> torch.Tensor:
    return torch.cond(x.sum() > 0, lambda y: y.relu(), lambda y: y.sin(), (x,))


def through_complex(x: torch.Tensor) -> torch.Tensor:
    return torch.fft.ifft2(torch.fft.fft2(x)).real


def through_quantised(x: torch.Tensor) -> torch.Tensor:
    return torch.quantize_per_tensor(x, 0.1, 0, torch.quint8).dequantize()


def image() -> torch.Tensor:
    return torch.randn(2, 4, 16, 16)


@pytest.mark.parametrize(
    ("middle", "what"),
    [
        (branch, "sub-graph (cond)"),
        (doubled, "custom operation (layoutdoctor_tests.double.default)"),
        (through_complex, "complex tensor"),
    ],
    ids=lambda value: getattr(value, "__name__", None),
)
def test_what_cannot_be_followed_is_named_in_the_record_and_in_the_report(middle: Any, what: str) -> None:
    # torch 2.13 itself compiles a cond between channels-last convolutions to code that raises, so it is off here.
    diagnosis = diagnosed(Around(middle), image(), "inductor-layout-opt-off")
    trial = trial_of(diagnosis, "inductor-layout-opt-off")

    named = [line for graph in trial.graphs for line in graph.not_understood]
    assert any(line.startswith(f"{what}: ") for line in named), named
    assert what in " ".join(str(diagnosis).split())
    assert trial.redundant_pairs == ()  # a region through it is no round trip
    assert all(graph.hook_failure is None for graph in trial.graphs)


@pytest.mark.filterwarnings("ignore:torch.quantize_per_tensor:UserWarning")
def test_a_quantised_tensor_between_convolutions_ends_in_a_report() -> None:
    diagnosis = diagnosed(Around(through_quantised), image(), "eager,inductor")

    assert trial_of(diagnosis).redundant_pairs == ()
    assert "quantise" in str(diagnosis)


def test_an_input_changed_in_place_is_named() -> None:
    class InPlace(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.conv = torch.nn.Conv2d(4, 8, 3)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            x.mul_(2)
            return self.conv(x)

    trial = trial_of(diagnosed(InPlace(), image()))

    assert any(
        line.startswith("change of an input in place: ") for graph in trial.graphs for line in graph.not_understood
    )


def test_symbolic_sizes_claim_nothing_but_what_is_known() -> None:
    x = image()
    torch._dynamo.mark_dynamic(x, 0)
    trial = trial_of(diagnosed(Around(torch.relu), x))
    (graph,) = trial.graphs

    assert any(line.startswith("symbolic sizes: ") for line in graph.not_understood)
    assert {conversion.tensor for conversion in graph.conversions} <= {"weight"}
    assert all(isinstance(size, int) for c in graph.conversions for size in (c.target.shape if c.target else ()))


def test_a_loop_over_a_symbolic_size_is_named_so_though_what_it_writes_has_known_sizes() -> None:
    class Mean(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.conv = torch.nn.Conv2d(4, 8, 3)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.conv(x).mean((0, 2, 3))

    x = image()
    torch._dynamo.mark_dynamic(x, 0)
    (graph,) = trial_of(diagnosed(Mean(), x)).graphs

    assert {line.split(":")[0] for line in graph.not_understood} == {"symbolic sizes"}
