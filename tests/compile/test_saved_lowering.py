"""What a diagnosis has lowered is found by processes that compile the same later, and by the next diagnosis."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec
import pytest
import torch
from torch import nn
from torch._dynamo.utils import counters
from torch._inductor.graph import GraphLowering

from layoutdoctor.capture.compat import inductor_config
from layoutdoctor.diagnosis.configurations import choose_configurations
from layoutdoctor.diagnosis.records import Graph
from layoutdoctor.examination.kernels.host import GENERATED_PREFIX
from layoutdoctor.examination.kernels.least import ran_the_same
from layoutdoctor.isolation.messages import PROFILE, Profiled, Request
from layoutdoctor.isolation.starts import call_graphs_by_name
from layoutdoctor.recording.saved import pack, unpack
from layoutdoctor.run.diagnose import record_subject
from layoutdoctor.run.fresh import serve_turns
from layoutdoctor.subjects.load import execute_file
from layoutdoctor.subjects.subject import subject_from_python

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from layoutdoctor.diagnosis.records import Mode, Trial
    from layoutdoctor.isolation.messages import AnyMessage
    from layoutdoctor.recording.recording import Recording

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
def entries(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A cache of its own for each test; where Inductor keeps graphs in it."""
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path))
    with inductor_config().patch(fx_graph_cache=True):
        yield tmp_path / "fxgraph"


def observed(model: nn.Module, example_input: torch.Tensor, mode: Mode, configuration: str) -> Trial:
    """A trial before anything is examined."""
    return recorded(model, example_input, mode, configuration).trial


def recorded(model: nn.Module, example_input: torch.Tensor, mode: Mode, configuration: str) -> Recording:
    torch._dynamo.reset()
    chosen = choose_configurations(configuration, mode)
    request = Request(mode=mode, configurations=chosen, budget_seconds=0.1)
    (recording,) = record_subject(subject_from_python(model, example_input), request)
    assert recording.trial.failure is None
    return recording


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
def test_who_compiles_the_same_after_a_diagnosis_lowers_nothing_and_runs_the_same(
    model: type[nn.Module], shape: tuple[int, ...], mode: Mode, configuration: str, graphs: int
) -> None:
    recording = recorded(model().train(mode == "training"), torch.ones(shape), mode, configuration)
    torch._dynamo.reset()
    counters.clear()

    subject = subject_from_python(model().train(mode == "training"), torch.ones(shape))
    (chosen,) = choose_configurations(configuration, mode)
    told: list[AnyMessage] = []
    serve_turns(lambda: subject, chosen, mode, [PROFILE], told.append)

    found = counters["inductor"]
    assert (found["fxgraph_cache_hit"], found["fxgraph_cache_miss"]) == (graphs, 0)
    profiled = told[-1]
    assert isinstance(profiled, Profiled)
    names = {graph.code_fingerprint: graph.name for graph in recording.trial.graphs}
    call_graphs_by_name(profiled.iterations, names)
    assert ran_the_same(profiled.iterations, recording.iterations)
    ran = set(profiled.iterations[0].events.names)
    for graph in recording.trial.graphs:
        assert {f"{GENERATED_PREFIX}{graph.name}::{kernel}" for kernel in graph.kernel_names} <= ran


@pytest.fixture
def lowers_nothing(monkeypatch: pytest.MonkeyPatch) -> Callable[[], None]:
    """Makes every compile fail from then on that does not find its graphs."""

    def refuse(*_: object) -> None:
        raise AssertionError("a graph was lowered")

    return lambda: monkeypatch.setattr(GraphLowering, "compile_to_module", refuse)


@pytest.mark.parametrize("configuration", ["inductor", "inductor-channels-last"])
@pytest.mark.parametrize("mode", ["inference", "training"])
def test_a_second_diagnosis_sees_the_same_graphs_and_lowers_nothing(
    entries: Path, lowers_nothing: Callable[[], None], mode: Mode, configuration: str
) -> None:
    model = Small().train(mode == "training")
    cold = observed(model, torch.ones(2, 3, 9, 9), mode, configuration)
    saved = files_in(entries.parent / "layoutdoctor") | files_in(entries)

    lowers_nothing()
    warm = observed(model, torch.ones(2, 3, 9, 9), mode, configuration)

    assert len(cold.graphs) == (2 if mode == "training" else 1)
    assert len(saved) == 2 * len(cold.graphs)
    for one, other in zip(cold.graphs, warm.graphs, strict=True):
        assert all(getattr(one, field) == getattr(other, field) for field in one.__struct_fields__)
    assert (warm.notes, warm.recompile_count) == (cold.notes, cold.recompile_count)
    assert files_in(entries.parent / "layoutdoctor") | files_in(entries) == saved


CODE = """
from torch import nn


class Edited(nn.Module):
    def __init__(self):
        super().__init__()
        self.convolution = nn.Conv2d(3, 8, 3)

    def forward(self, x):
        return self.convolution(x).relu()
"""


def lines_of(trial: Trial) -> list[tuple[int, str | None]]:
    """Line and text of every convolution."""
    places = [
        convolution.location for graph in trial.graphs if graph.decision for convolution in graph.decision.convolutions
    ]
    return [(place.line, place.code) for place in places if place is not None]


def test_a_line_that_moved_is_told_where_it_is_now(
    tmp_path: Path, entries: Path, lowers_nothing: Callable[[], None]
) -> None:
    """The generated code is the same, and Inductor's key."""
    file = tmp_path / "edited.py"

    def seen(code: str) -> Trial:
        file.write_text(code)
        return observed(execute_file(file).Edited().eval(), torch.ones(2, 3, 9, 9), "inference", "inductor")

    before = seen(CODE)
    saved = files_in(entries)
    after = seen(f"# a line\n{CODE}")
    assert lines_of(before) == [(11, "return self.convolution(x).relu()")]
    assert lines_of(after) == [(12, "return self.convolution(x).relu()")]
    assert files_in(entries) == saved

    lowers_nothing()
    assert seen(CODE).graphs == before.graphs
    assert seen(f"# a line\n{CODE}").graphs == after.graphs


DAMAGES: dict[str, Callable[[bytes], bytes]] = {
    "empty": lambda data: b"",
    "cut off": lambda data: data[: len(data) // 2],
    "of something else": lambda data: pack({"name": "graph 0"}),
    "of other code": lambda data: pack(msgspec.structs.replace(unpack(data, Graph), code_fingerprint="0" * 64)),
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_record_that_does_not_fit_is_written_anew(entries: Path, damage: str) -> None:
    cold = observed(Small().eval(), torch.ones(2, 3, 9, 9), "inference", "inductor")
    (record,) = files_in(entries.parent / "layoutdoctor")
    whole = record.read_bytes()
    record.write_bytes(DAMAGES[damage](whole))

    again = observed(Small().eval(), torch.ones(2, 3, 9, 9), "inference", "inductor")

    assert again.graphs == cold.graphs
    assert (again.notes, record.read_bytes()) == (cold.notes, whole)
