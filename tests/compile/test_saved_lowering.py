"""What a diagnosis has lowered is found by processes that compile the same later, and by the next diagnosis."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
import torch
from torch import nn
from torch._dynamo.utils import counters

from layoutdoctor.diagnosis.configurations import choose_configurations
from layoutdoctor.isolation.messages import Request
from layoutdoctor.run.diagnose import record_subject
from layoutdoctor.run.fresh import serve_turns
from layoutdoctor.subjects.subject import subject_from_python

if TYPE_CHECKING:
    from pathlib import Path

    from layoutdoctor.diagnosis.records import Mode, Trial

pytestmark = pytest.mark.compile


class Small(nn.Module):
    """Two convolutions and something that is fused."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Conv2d(3, 8, 3)
        self.second = nn.Conv2d(8, 4, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.second(torch.relu(self.first(x)))


class Scaled(nn.Module):
    """Frozen weights that oneDNN does not pack: such graphs Inductor can keep."""

    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.full((5, 7), 1.5))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.relu(x * self.scale)


@pytest.fixture(autouse=True)
def entries(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A cache of its own for each test; where Inductor keeps graphs in it."""
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path))
    return tmp_path / "fxgraph"


def observed(model: nn.Module, example_input: torch.Tensor, mode: Mode, configuration: str) -> Trial:
    """A trial before anything is examined."""
    torch._dynamo.reset()
    chosen = choose_configurations(configuration, mode)
    request = Request(mode=mode, configurations=chosen, budget_seconds=0.1)
    (recording,) = record_subject(subject_from_python(model, example_input), request)
    assert recording.trial.failure is None
    return recording.trial


def files_in(folder: Path) -> set[Path]:
    return {path for path in folder.rglob("*") if path.is_file()}


@pytest.mark.parametrize(
    ("model", "shape", "mode", "configuration", "graphs"),
    [
        (Small, (2, 3, 9, 9), "inference", "inductor", 1),
        (Small, (2, 3, 9, 9), "inference", "inductor-channels-last-opt-off", 1),
        (Small, (2, 3, 9, 9), "training", "inductor", 2),
        (Scaled, (5, 7), "inference", "inductor-freezing", 1),
    ],
)
def test_who_compiles_the_same_after_a_diagnosis_lowers_nothing(
    model: type[nn.Module], shape: tuple[int, ...], mode: Mode, configuration: str, graphs: int
) -> None:
    observed(model().train(mode == "training"), torch.ones(shape), mode, configuration)
    torch._dynamo.reset()
    counters.clear()

    subject = subject_from_python(model().train(mode == "training"), torch.ones(shape))
    (chosen,) = choose_configurations(configuration, mode)
    serve_turns(lambda: subject, chosen, mode, [], lambda message: None)

    found = counters["inductor"]
    assert (found["fxgraph_cache_hit"], found["fxgraph_cache_miss"]) == (graphs, 0)


@pytest.mark.parametrize("mode", ["inference", "training"])
def test_a_second_diagnosis_sees_the_same_graphs_and_saves_nothing_anew(entries: Path, mode: Mode) -> None:
    model = Small().train(mode == "training")
    cold = observed(model, torch.ones(2, 3, 9, 9), mode, "inductor")
    saved = files_in(entries)

    warm = observed(model, torch.ones(2, 3, 9, 9), mode, "inductor")

    assert len(saved) == len(cold.graphs) == (2 if mode == "training" else 1)
    assert warm.graphs == cold.graphs
    assert files_in(entries) == saved
