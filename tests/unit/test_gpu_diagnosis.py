"""A diagnosis on a GPU from end to end, as far as a CPU can tell: real operations and graphs, and a GPU's kernels."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
import torch
from gpu_profiles import GpuProfile, cudnn, pretend_gpu
from live_trials import seen_here
from recorded_builders import FORWARD, TO_NCHW
from torch import nn

import layoutdoctor

if TYPE_CHECKING:
    from pathlib import Path

    from gpu_profiles import Convolution, Launch

    from layoutdoctor.diagnosis.diagnosis import Diagnosis
    from layoutdoctor.diagnosis.trial import Trial

pytestmark = pytest.mark.thorough

IMAGES = (2, 8, 16, 16)


class Chain(nn.Module):
    """Two round trips: around relu, and around relu and a pooling."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Conv2d(8, 40, 3, padding=1)
        self.second = nn.Conv2d(40, 72, 3, padding=1)
        self.pool = nn.MaxPool2d(2)
        self.third = nn.Conv2d(72, 24, 3, padding=1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = torch.relu(self.second(torch.relu(self.first(x))))
        return self.third(self.pool(y))


class Siblings(nn.Module):
    """Two convolutions of one input, whose result is of the same sizes: the second one does not read the first's."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Conv2d(8, 8, 3, padding=1)
        self.second = nn.Conv2d(8, 8, 3, padding=1)

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return torch.relu(self.first(x)), self.second(x)


def diagnosed(
    monkeypatch: pytest.MonkeyPatch, model: nn.Module, profile: GpuProfile | None = None, **options: Any
) -> tuple[Diagnosis, Trial]:
    pretend_gpu(monkeypatch, profile)
    diagnosis, trial, _ = seen_here(model, torch.ones(IMAGES), **options)
    assert (trial.status, trial.failure) == ("ok", None)
    return diagnosis, trial


def pairs(trial: Trial) -> list[tuple[str | None, str | None, tuple[str, ...]]]:
    """Modules of both conversions of each round trip, and what stands between."""
    assert trial.kernels is not None
    by_id = {c.id: c for c in trial.kernels.conversions}
    return [(by_id[pair.first].module, by_id[pair.second].module, pair.between) for pair in trial.redundant_pairs]


def test_conversions_of_cudnn_are_listed_with_their_values_and_round_trips_are_proved(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    diagnosis, trial = diagnosed(monkeypatch, Chain())
    kernels = trial.kernels

    assert kernels is not None
    assert (kernels.count, kernels.conversion_count, kernels.convolution_count) == (15, 9, 12)
    assert (kernels.sources, kernels.lacks, kernels.not_understood_count) == (("torch.profiler",), (), 0)
    assert [(c.module, c.port, c.tensor, c.direction) for c in kernels.conversions] == [
        (module, *facts)
        for module in ("first", "second", "third")
        for facts in (
            ("input 0", "activation", "to_channels_last"),
            ("input 1", "weight", "to_channels_last"),
            ("output 0", "activation", "to_contiguous"),
        )
    ]
    assert {c.confidence for c in kernels.conversions} == {"shapes"}
    assert [c.source.shape for c in kernels.conversions if c.source is not None and c.tensor == "activation"] == [
        IMAGES,
        *[(2, 40, 16, 16)] * 2,
        (2, 72, 16, 16),
        (2, 72, 8, 8),
        (2, 24, 8, 8),
    ]
    assert pairs(trial) == [
        ("first", "second", ("aten.relu.default",)),
        ("second", "third", ("aten.relu.default", "aten.max_pool2d_with_indices.default")),
    ]
    assert all("test_gpu_diagnosis.py" in str(pair.location) for pair in trial.redundant_pairs)
    assert {finding.code for finding in diagnosis.findings} >= {"LD101", "LD103"}
    assert not any(graph.conversions for graph in trial.graphs)


def test_a_channels_last_model_converts_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    diagnosis, trial = diagnosed(monkeypatch, Chain(), configuration="eager-channels-last")

    assert trial.kernels is not None
    assert (trial.kernels.conversion_count, trial.kernels.convolution_count) == (0, 3)
    assert trial.redundant_pairs == ()
    assert not {finding.code for finding in diagnosis.findings} & {"LD101", "LD103", "LD111"}


def test_the_backward_is_told_as_well(monkeypatch: pytest.MonkeyPatch) -> None:
    _, trial = diagnosed(monkeypatch, Chain(), mode="training")
    kernels = trial.kernels

    assert kernels is not None
    backward = [c for c in kernels.conversions if c.op == "aten::convolution_backward"]
    assert [(c.module, c.port, c.tensor) for c in backward[:6]] == [
        ("third", "input 0", "gradient"),
        ("third", "input 2", "weight"),
        ("third", "output 0", "gradient"),
        ("third", "input 1", "activation"),
        ("third", "input 0", "gradient"),
        ("third", "output 1", "gradient"),
    ]
    assert [(c.module, c.port) for c in backward[12:]] == [
        ("first", "input 1"),
        ("first", "input 0"),
        ("first", "output 1"),
    ]
    assert sum(kernel.backward for kernel in kernels.kernels) > len(backward)
    assert ("second", "first", ("aten.threshold_backward.default",)) in pairs(trial)


def test_siblings_of_equal_sizes_are_no_round_trip(monkeypatch: pytest.MonkeyPatch) -> None:
    _, trial = diagnosed(monkeypatch, Siblings())

    assert trial.kernels is not None
    assert trial.kernels.conversion_count == 6
    assert trial.redundant_pairs == ()


def test_of_a_replayed_graph_nothing_is_claimed_but_what_its_kernels_are(monkeypatch: pytest.MonkeyPatch) -> None:
    _, trial = diagnosed(monkeypatch, Chain(), GpuProfile(has_external=False, is_replayed=True))
    kernels = trial.kernels

    assert kernels is not None
    assert kernels.conversion_count == 9
    assert {(c.node, c.port, c.tensor) for c in kernels.conversions} == {(None, None, "unknown")}
    assert trial.redundant_pairs == ()
    assert any("graph replays" in lack for lack in kernels.lacks)


def misfit(convolution: Convolution) -> list[Launch]:
    """cuDNN with a launch grid for the result that no tensor has."""
    return [(name, (9, 99, 9, 99) if name == TO_NCHW else shape) for name, shape in cudnn(convolution)]


def test_launch_grids_that_fit_no_tensor_prove_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    _, trial = diagnosed(monkeypatch, Chain(), GpuProfile(library=misfit))
    kernels = trial.kernels

    assert kernels is not None
    results = [c for c in kernels.conversions if c.direction == "to_contiguous"]
    assert {(c.port, c.tensor, c.source, c.bytes_moved) for c in results} == {(None, "unknown", None, None)}
    assert [c.module for c in results] == ["first", "second", "third"]
    assert trial.redundant_pairs == ()


def test_a_copy_between_layouts_takes_the_time_of_its_kernel(monkeypatch: pytest.MonkeyPatch) -> None:
    class Copies(Chain):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.first(x.contiguous(memory_format=torch.channels_last))

    def nothing(convolution: Convolution) -> list[Launch]:
        return [(FORWARD, None)]

    _, trial = diagnosed(monkeypatch, Copies(), GpuProfile(library=nothing))
    (graph,) = trial.graphs
    copies = [c for c in graph.conversions if c.owner == "user"]

    assert [(c.direction, c.bytes_moved, c.seconds_source) for c in copies] == [
        ("to_channels_last", 2 * 4 * 2 * 8 * 16 * 16, "measured")
    ]
    assert copies[0].seconds == pytest.approx(2.007e-6, abs=2e-9)
    assert trial.kernels is not None
    assert trial.kernels.conversions == ()


def test_a_trace_of_the_same_iteration_tells_no_more(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    file = tmp_path / "trace.json"
    _, trial = diagnosed(monkeypatch, Chain(), GpuProfile(keep=file))
    (recorded,) = layoutdoctor.examine_trace(file).trials

    assert recorded.kernels is not None
    assert trial.kernels is not None
    assert recorded.kernels.conversion_count == trial.kernels.conversion_count == 9
    assert recorded.kernels.conversion_seconds == trial.kernels.conversion_seconds
    assert [c.direction for c in recorded.kernels.conversions] == [c.direction for c in trial.kernels.conversions]
    assert {(p.first, p.second) for p in recorded.redundant_pairs} <= {
        (p.first, p.second) for p in trial.redundant_pairs
    }
