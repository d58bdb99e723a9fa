"""Configurations that freeze the weights: what is recorded of them, and that no other one is taken for them."""

from __future__ import annotations

import pytest
import torch
from live_trials import trial_of
from torch import nn

import layoutdoctor
from layoutdoctor.diagnosis.configurations import choose_configurations

pytestmark = pytest.mark.compile

X = torch.randn(2, 16, 12, 12, generator=torch.Generator().manual_seed(0))
FROZEN = tuple(c.name for c in choose_configurations("all") if c.freezes)


class Residual(nn.Module):
    """Convolutions of all kinds that freezing packs: one that adds in place, one transposed, one of one channel."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv2d(16, 32, 3, padding=1)
        self.first = nn.Conv2d(32, 32, 3, padding=1, bias=False)
        self.norm = nn.BatchNorm2d(32)
        self.second = nn.Conv2d(32, 32, 1)
        self.last = nn.Sequential(nn.ConvTranspose2d(32, 16, 2, 2), nn.Conv2d(16, 1, 1))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = torch.relu(self.stem(x))
        result: torch.Tensor = self.last(torch.relu(self.second(torch.relu(self.norm(self.first(x)))) + x))
        return result


def test_frozen_trials_have_their_decision_kernels_and_equal_outputs_and_are_taken_for_no_other() -> None:
    model = Residual().eval()

    diagnosis = layoutdoctor.diagnose(model, X, configurations=("inductor", *FROZEN), budget_seconds=0.01)

    default, statuses = trial_of(diagnosis), {trial.name: trial.same_as for trial in diagnosis.trials}
    assert default.kernels is not None
    assert sum(conversion.tensor == "weight" for conversion in default.kernels.conversions) >= 3
    for name in FROZEN:
        trial = diagnosis.measured_trial(name)
        assert trial is not None
        assert trial.configuration.freezes  # by name or as the same code, and never an unfrozen one
        assert trial.kernels is not None
        assert trial.equivalence is not None
        assert trial.measurement is not None
        assert (trial.equivalence.status, trial.kernels.lacks) == ("equal", ())
        (graph,) = trial.graphs
        assert graph.decision is not None
        assert graph.decision.convolution_count == graph.decision.channels_last_convolution_count == 5
        assert not any(conversion.tensor == "weight" for conversion in trial.kernels.conversions)
        ran = [kernel.node for kernel in trial.kernels.kernels if kernel.name in ("convolution", "deconvolution")]
        assert sorted(map(str, ran)) == sorted(c.node for c in graph.decision.convolutions)
        assert (trial.measurement.peak_memory_bytes or 0) > 0
    assert statuses["inductor-channels-last-opt-off-freezing"] == "inductor-channels-last-freezing"
    assert statuses["inductor-opt-off-freezing"] is None  # its output is in another format
    ready = trial_of(diagnosis, "inductor-channels-last-freezing").compile(model)
    torch.testing.assert_close(ready(X), model(X).detach(), rtol=1e-3, atol=1e-4)


class Transposed(nn.Module):
    """Transposed convolutions, no two of whose arguments are alike; freezing packs one together with what follows."""

    def __init__(self) -> None:
        super().__init__()
        self.grouped = nn.ConvTranspose2d(16, 12, 5, stride=3, padding=2, output_padding=1, groups=4)
        self.fused = nn.ConvTranspose2d(12, 6, (4, 3), stride=(2, 3), padding=(1, 0), dilation=(3, 2))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.relu(self.fused(self.grouped(x)))


def test_the_card_of_a_packed_transposed_convolution_says_what_the_unpacked_one_does() -> None:
    names = ("inductor", "inductor-freezing")

    diagnosis = layoutdoctor.diagnose(Transposed(), X[:1], configurations=names, budget_seconds=0.01)

    default, frozen = (trial.graphs[0].decision for trial in diagnosis.trials)
    assert default is not None
    assert frozen is not None
    assert len(frozen.convolutions) == 2
    for one, other in zip(default.convolutions, frozen.convolutions, strict=True):
        names_of = ("class_", "rank", "weight_shape", "groups", "stride", "padding", "dilation", "is_transposed")
        assert {name: getattr(one, name) for name in names_of} == {name: getattr(other, name) for name in names_of}
        assert other.node != one.node
    assert [c.stride for c in frozen.convolutions] == [(3, 3), (2, 3)]
