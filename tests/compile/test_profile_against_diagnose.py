"""What ``profile()`` sees of a program is what ``diagnose()`` sees of the same configuration, graph by graph."""

from __future__ import annotations

from collections import Counter
from itertools import product
from typing import TYPE_CHECKING, Any

import pytest
import torch
from torch import nn

import layoutdoctor

if TYPE_CHECKING:
    from collections.abc import Callable

    from layoutdoctor.diagnosis.diagnosis import Diagnosis
    from layoutdoctor.diagnosis.graph import Graph

pytestmark = [pytest.mark.compile, pytest.mark.slow]


class Attention(nn.Module):
    """Convolutions around a squeeze, a view that needs contiguous memory, and a norm."""

    def __init__(self) -> None:
        super().__init__()
        self.entry = nn.Conv2d(8, 16, 3, padding=1)
        self.inner = nn.Conv2d(16, 16, 3, padding=1)
        self.norm = nn.GroupNorm(4, 16)
        self.exit = nn.Conv2d(16, 8, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.entry(x).relu()
        flat = x.flatten(2)
        x = x + (flat @ flat.transpose(1, 2)).softmax(-1).mean(-1)[:, :, None, None] * x.contiguous()
        return self.exit(self.norm(self.inner(x)).relu())


class Video(nn.Module):
    """3-D convolutions with a copy of frames between."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Conv3d(4, 8, (1, 3, 3), padding=(0, 1, 1))
        self.second = nn.Conv3d(8, 8, 3, padding=1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.first(x).relu()
        x = torch.cat([x[:, :, :1], x], dim=2)
        return self.second(x.contiguous()).mean((3, 4))


SUBJECTS: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...], Any]] = {
    "attention": (Attention, (2, 8, 24, 24), torch.channels_last),
    "video": (Video, (1, 4, 3, 16, 16), torch.channels_last_3d),
}
PROGRAMS = [
    pytest.param(name, mode, format_, id=f"{name}, {mode}, {'channels_last' if format_ else 'as it comes'}")
    for name, mode, format_ in product(SUBJECTS, ("inference", "training"), (False, True))
]


def profiled(model: nn.Module, x: torch.Tensor, *, compiled: bool, training: bool) -> Diagnosis:
    torch._dynamo.reset()
    run = torch.compile(model) if compiled else model
    model.train(training)
    with layoutdoctor.profile(steps=2) as seen, torch.set_grad_enabled(training):
        for _ in range(5):
            outputs = run(x)
            if training:
                model.zero_grad(set_to_none=True)
                outputs.square().mean().backward()
            seen.step()
    return seen.diagnosis


def of_graph(graph: Graph) -> Counter[tuple[object, ...]]:
    """Everything of a graph's conversions that is no time and no name."""
    return Counter(
        (c.direction, c.tensor, c.role, c.fused, c.bytes_moved, c.location and c.location.line, c.source, c.target)
        for c in graph.conversions
        if c.owner == "compiler"
    )


@pytest.mark.parametrize(("name", "mode", "last"), PROGRAMS)
def test_compiled_graphs_have_the_same_conversions(name: str, mode: str, last: bool) -> None:
    make, shape, format_ = SUBJECTS[name]
    torch.manual_seed(0)
    model, x = make(), torch.randn(shape)
    configuration = "inductor-channels-last" if last else "inductor"
    diagnosis = layoutdoctor.diagnose(
        model,
        x,
        mode="training" if mode == "training" else "inference",
        configurations=[configuration],
        budget_seconds=1,
    )
    if last:
        model, x = model.to(memory_format=format_), x.to(memory_format=format_)
    seen = profiled(model, x, compiled=True, training=mode == "training")

    expected, found = diagnosis.trial(configuration).graphs, seen.trials[0].graphs
    assert [graph.direction for graph in found] == [graph.direction for graph in expected]
    assert [of_graph(graph) for graph in found] == [of_graph(graph) for graph in expected]
    assert [graph.decision and graph.decision.applied for graph in found] == [
        graph.decision and graph.decision.applied for graph in expected
    ]


@pytest.mark.parametrize("name", SUBJECTS)
def test_eager_steps_have_the_same_copies(name: str) -> None:
    make, shape, format_ = SUBJECTS[name]
    torch.manual_seed(0)
    model, x = make(), torch.randn(shape)
    diagnosis = layoutdoctor.diagnose(model, x, configurations=["eager-channels-last"], budget_seconds=1)
    seen = profiled(model.to(memory_format=format_), x.to(memory_format=format_), compiled=False, training=False)

    def copies(graphs: tuple[Graph, ...]) -> Counter[tuple[object, ...]]:
        found = (c for graph in graphs for c in graph.conversions if c.owner != "library" and c.source is not None)
        return Counter((c.owner, c.direction, c.source.shape) for c in found)

    per_call, of_two_steps = copies(diagnosis.trial("eager-channels-last").graphs), copies(seen.trials[0].graphs)
    assert per_call
    assert of_two_steps == Counter({kind: 2 * count for kind, count in per_call.items()})
