"""Facts about a trial that rules rest on: why it compiled again, and where graphs were cut."""

from __future__ import annotations

import pytest
import torch
from live_trials import diagnosed, trial_of

pytestmark = pytest.mark.compile


class Block(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv = torch.nn.Conv2d(8, 8, 3, padding=1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        torch._dynamo.graph_break()
        return torch.relu(self.conv(x))


class TwoEncoders(torch.nn.Module):
    """Two equal blocks, one of whose weights took on the strides of another format (pytorch #126241)."""

    def __init__(self) -> None:
        super().__init__()
        self.query, self.key = Block(), Block()
        self.key.conv.weight.data = self.key.conv.weight.data.to(memory_format=torch.channels_last)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.query(x) + self.key(x)


class Cut(torch.nn.Module):
    """A graph break between two convolutions."""

    def __init__(self) -> None:
        super().__init__()
        self.first = torch.nn.Conv2d(3, 64, 3, padding=1)
        self.second = torch.nn.Conv2d(64, 64, 3, padding=1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = torch.relu(self.first(x))
        torch._dynamo.graph_break()
        return torch.relu(self.second(x))


def test_a_recompile_because_of_a_parameters_strides_is_told_with_its_name() -> None:
    diagnosis = diagnosed(TwoEncoders(), torch.randn(2, 8, 16, 16))

    (reason,) = trial_of(diagnosis).recompile_reasons
    assert "stride mismatch" in reason
    assert "weight" in reason
    (finding,) = (finding for finding in diagnosis.findings if finding.code == "LD211")
    assert "conv.weight" in finding.message


def test_a_graph_break_cuts_the_region_and_conversions_say_where_their_time_is_from() -> None:
    diagnosis = diagnosed(Cut(), torch.randn(2, 3, 16, 16), "inductor,inductor-channels-last")

    assert [trial.recompile_reasons for trial in diagnosis.trials] == [(), ()]  # what another one compiled is none
    assert "LD211" not in {finding.code for finding in diagnosis.findings}
    findings = [finding for finding in diagnosis.findings if finding.code == "LD212"]
    assert [finding.configuration for finding in findings] == ["inductor"]
    first, second = trial_of(diagnosis).graphs
    assert [c.role for c in first.conversions if c.tensor == "activation"] == ["entry", "exit"]
    assert [c.role for c in second.conversions if c.tensor == "activation"] == ["entry", "exit"]
    bandwidth = diagnosis.environment.copy_bandwidth_bytes_per_second
    assert bandwidth is not None
    assert 1e8 < bandwidth < 1e13
    for graph in trial_of(diagnosis).graphs:
        for c in graph.conversions:
            assert (c.seconds is None) == (c.seconds_source is None)
            if c.seconds_source == "measured" and c.seconds and c.bytes_moved is not None:
                assert not c.fused
                assert c.bandwidth_share == pytest.approx(c.bytes_moved / c.seconds / bandwidth)
            if c.seconds_source == "estimated" and c.bytes_moved is not None:
                assert c.seconds == pytest.approx(c.bytes_moved / bandwidth)
