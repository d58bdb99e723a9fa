"""All configurations are lowered before any of them runs: what is recorded is what compiling in one go gives."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec
import pytest
import torch
from live_trials import diagnosed, trial_of

from layoutdoctor.capture import building
from layoutdoctor.run.diagnosing import Diagnosing

if TYPE_CHECKING:
    from layoutdoctor.diagnosis.records import Diagnosis, Mode

pytestmark = pytest.mark.compile

BOTH = "inductor,inductor-channels-last"
CAPTURED = "name direction decision nodes buffers kernel_names code_fingerprint hook_failure not_understood".split()


class Network(torch.nn.Module):
    """Counts its calls, as code between graphs would; it may break the graph in front of all others."""

    def __init__(self, *, breaks: bool = False, catches: bool = False) -> None:
        super().__init__()
        self.convolution, self.norm = torch.nn.Conv2d(3, 8, 3), torch.nn.BatchNorm2d(8)
        self.breaks, self.catches = breaks, catches
        self.register_buffer("count", torch.zeros(()))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if self.breaks:
            self.count.add_(1)
            torch._dynamo.graph_break()
        if not self.catches:
            return torch.relu(self.norm(self.convolution(x))) + self.count
        try:
            return torch.relu(self.norm(self.convolution(x))) + self.count
        except BaseException:
            return x.sum() + self.count


def recorded(network: torch.nn.Module, mode: Mode = "inference") -> Diagnosis:
    torch.manual_seed(0)
    return diagnosed(network, torch.randn(2, 3, 12, 12), BOTH, mode)


def facts(diagnosis: Diagnosis) -> list[Any]:
    """What was captured of each trial, and whether its outputs are right."""
    trials = [trial_of(diagnosis, name) for name in BOTH.split(",")]
    return [
        (
            [[msgspec.to_builtins(getattr(graph, name)) for name in CAPTURED] for graph in trial.graphs],
            trial.graph_break_reasons,
            trial.recompile_count,
            trial.equivalence and trial.equivalence.status,
        )
        for trial in trials
    ]


@pytest.mark.parametrize("mode", ["inference", "training"])
@pytest.mark.parametrize("how", [{}, {"breaks": True}, {"catches": True}])
def test_the_same_is_recorded_as_without(how: dict[str, bool], mode: Mode, monkeypatch: pytest.MonkeyPatch) -> None:
    torch.manual_seed(1)
    network = Network(**how)
    ahead = facts(recorded(network, mode))
    monkeypatch.setattr(Diagnosing, "_lower", lambda self, trials: None)

    assert ahead == facts(recorded(network, mode))
    assert all(status == "equal" for *_, status in ahead)


def test_nothing_is_lowered_twice_and_modules_of_the_same_code_run(monkeypatch: pytest.MonkeyPatch) -> None:
    closed: list[str] = []
    close = building.Postponed.close

    def counting(self: building.Postponed, module: Any) -> None:
        closed.append(module.__file__)
        close(self, module)

    monkeypatch.setattr(building.Postponed, "close", counting)
    torch.manual_seed(2)
    diagnosis = diagnosed(torch.nn.Linear(4, 4), torch.randn(2, 4), "inductor,inductor-layout-opt-off")

    assert len(closed) == 2
    assert trial_of(diagnosis).recompile_count == 0
    other = diagnosis.trial("inductor-layout-opt-off")
    assert other is not None
    assert other.same_as == "inductor"


def test_what_the_cpp_compiler_refuses_costs_the_configuration(monkeypatch: pytest.MonkeyPatch) -> None:
    finish = building.Postponed.finish
    refused: list[Any] = []

    def refusing(self: building.Postponed) -> None:
        finish(self)
        if not refused:
            refused.append(self)
            raise RuntimeError("C++ compile error")

    monkeypatch.setattr(building.Postponed, "finish", refusing)
    diagnosis = recorded(Network())
    failed = diagnosis.trial("inductor")

    assert failed is not None
    assert failed.failure is not None
    assert (failed.failure.kind, failed.failure.message) == ("compile", "RuntimeError: C++ compile error")
    assert trial_of(diagnosis, "inductor-channels-last").graphs
