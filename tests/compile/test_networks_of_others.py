"""What went wrong once on networks that no one here wrote, each as a small model."""

from __future__ import annotations

import pytest
import torch
from live_trials import diagnosed, trial_of
from torch import nn
from torch.nn import functional

pytestmark = pytest.mark.compile


class PooledBeside(nn.Module):
    """The head of a classifier beside its features."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, 16, 3, padding=1)
        self.pool = nn.AdaptiveAvgPool2d(1)

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        y = torch.relu(self.conv(x))
        return y, self.pool(y)


class NormedBranch(nn.Module):
    """A residual block whose first convolution is read by a group norm as well."""

    def __init__(self) -> None:
        super().__init__()
        self.c1, self.c2, self.c3 = (nn.Conv2d(16, 16, 3, padding=1) for _ in range(3))
        self.norm = nn.GroupNorm(4, 16)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        a = self.c1(x)
        return self.c3(a + self.c2(functional.silu(self.norm(a))))


class TokensBetween(nn.Module):
    """A transformer block on ``[N, H * W, C]``, whose bytes are those of channels_last, and a ``.contiguous()``."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = nn.Conv2d(3, 16, 3, padding=1), nn.Conv2d(16, 16, 3, padding=1)
        self.norm, self.linear = nn.LayerNorm(16), nn.Linear(16, 16)

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        y = self.a(x)
        n, c, h, w = y.shape
        y = self.norm(y.flatten(2).transpose(1, 2))
        y = y + self.linear(y)
        y = y.reshape(n, h, w, c).permute(0, 3, 1, 2).contiguous()
        return y, self.b(y)


class MeanOfNormed(nn.Module):
    """A mean whose exact value is zero: what is left is rounding."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.norm = nn.Conv3d(4, 16, 3), nn.GroupNorm(4, 16)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.norm(self.conv(x)).mean(dim=[1, 2, 3, 4])


def test_a_pooled_output_in_training_costs_no_graph_its_buffers() -> None:
    diagnosis = diagnosed(PooledBeside(), torch.randn(2, 3, 16, 16), "inductor-channels-last", "training")
    graphs = trial_of(diagnosis, "inductor-channels-last").graphs

    assert [graph.hook_failure for graph in graphs] == [None, None]
    assert all(graph.buffers for graph in graphs)
    # What is written in place through a view has the view's own strides.
    assert {buffer.problem for graph in graphs for buffer in graph.buffers} == {None}


@pytest.mark.parametrize("name", ["eager", "inductor-layout-opt-off"])
def test_a_conversion_that_a_group_norm_needs_is_in_no_pair(name: str) -> None:
    trial = trial_of(diagnosed(NormedBranch(), torch.randn(2, 16, 64, 64), name), name)

    assert trial.kernels is not None
    by_id = {conversion.id: conversion for conversion in trial.kernels.conversions}
    pairs = [(by_id[pair.first].module, by_id[pair.second].module) for pair in trial.redundant_pairs]
    blocked = any(conversion.direction == "to_blocked" for conversion in by_id.values())
    assert pairs == ([("c2", "c3")] if blocked else [])


def test_where_tokens_hold_the_bytes_of_channels_last_no_layer_norm_is_to_blame() -> None:
    trial = trial_of(diagnosed(TokensBetween(), torch.randn(2, 3, 32, 32), "inductor"), "inductor")

    assert [breaker.op for graph in trial.graphs for breaker in graph.breakers if "norm" in breaker.op] == []


def test_a_mean_whose_terms_cancel_is_compared_at_the_size_of_its_terms() -> None:
    x = torch.randn(2, 4, 12, 24, 24)
    diagnosis = diagnosed(MeanOfNormed(), x, "eager,eager-channels-last,inductor")

    assert [t.equivalence.status for t in diagnosis.trials if t.equivalence is not None] == ["equal"] * 3
    assert "LD402" not in {finding.code for finding in diagnosis.findings}
