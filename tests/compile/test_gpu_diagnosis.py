"""As ``unit/test_gpu_diagnosis``, for compiled models: Inductor's real graphs, with a GPU's kernels beside them."""

from __future__ import annotations

import pytest
import torch
from planted import Planted
from torch import nn

import layoutdoctor

pytestmark = pytest.mark.compile
IMAGES = (2, 8, 16, 16)


class Chain(nn.Module):
    """A round trip around relu where the library converts, none where Inductor makes everything channels-last."""

    def __init__(self) -> None:
        super().__init__()
        self.planted = Planted("import gpu_profiles, pytest; gpu_profiles.pretend_gpu(pytest.MonkeyPatch())")
        self.first = nn.Conv2d(8, 40, 3, padding=1)
        self.second = nn.Conv2d(40, 72, 3, padding=1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.second(torch.relu(self.first(x))).tanh()


@pytest.mark.smoke
def test_compiled_graphs_are_joined_with_the_kernels_of_a_gpu() -> None:
    diagnosis = layoutdoctor.diagnose(
        Chain(),
        torch.ones(IMAGES),
        configurations=("inductor-layout-opt-off", "inductor"),
        budget_seconds=0.01,
    )
    contiguous, optimized = (diagnosis.trial(name) for name in ("inductor-layout-opt-off", "inductor"))

    assert contiguous is not None
    assert contiguous.kernels is not None
    assert [(c.module, c.graph, c.port, c.tensor, c.direction) for c in contiguous.kernels.conversions] == [
        (module, "graph 0", *facts)
        for module in ("first", "second")
        for facts in (
            ("input 0", "activation", "to_channels_last"),
            ("input 1", "weight", "to_channels_last"),
            ("output 0", "activation", "to_contiguous"),
        )
    ]
    (pair,) = contiguous.redundant_pairs
    assert (pair.first, pair.second, pair.between) == ("conversion 2", "conversion 3", ("aten.relu.default",))
    assert (pair.evidence, pair.module, pair.graph) == ("kernels", "second", "graph 0")
    generated = [kernel for kernel in contiguous.kernels.kernels if kernel.library == "inductor"]
    assert [kernel.name.startswith("triton_poi_fused") for kernel in generated] == [True, True]
    assert {kernel.graph for kernel in generated} == {"graph 0"}
    assert not any(graph.conversions for graph in contiguous.graphs)

    # With layout optimization the conversions are Inductor's own kernels: each counts once, and takes a kernel's time.
    assert optimized is not None
    assert optimized.kernels is not None
    assert (optimized.kernels.conversion_count, optimized.kernels.convolution_count) == (0, 2)
    (graph,) = optimized.graphs
    assert {(c.owner, c.direction) for c in graph.conversions if c.tensor == "activation"} == {
        ("compiler", "to_channels_last"),
        ("compiler", "to_contiguous"),
    }
    launched = {kernel.name: kernel.seconds for kernel in optimized.kernels.kernels if kernel.library == "inductor"}
    measured = [c for c in graph.conversions if c.seconds_source == "measured"]
    assert measured
    assert all(0 < (c.seconds or 0.0) <= launched[str(c.kernel)] for c in measured)
