"""
Inductor's layout decision for every casebook model, lowered for ``cuda:90`` on a machine without a GPU.

The expected table is the casebook's own (Appendix C: the heuristic asked directly, with CUDA's branches), not what
layoutdoctor once said. Only the decisions of the first graph are compared; the backward has its own test.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest
import torch
from live_trials import requested_of_target
from torch import nn

import layoutdoctor
from layoutdoctor.diagnosis.configurations import choose_configurations
from layoutdoctor.workers.messages import Request

pytestmark = pytest.mark.compile

IS_SWEEP = "SWEEP" in os.environ
CASEBOOK = Path(__file__).parent.parent / "casebook"

# Case: (applied, rule, deciding convolutions) in inference, then in training.
NONE = (False, "no-convolution", ())
GAIN = (True, "weighted-flops", ())
CLEAR = (True, "no-veto", ())


def small(count: int) -> tuple[bool, str, tuple[str, ...]]:
    names = ("convolution", *(f"convolution_{number}" for number in range(1, count)))
    return (False, "small-channels", names)


DECISIONS = {
    "01_conv_chain_layout_opt": (GAIN, small(4)),
    "03_upsample_between_convs": (GAIN, (False, "smaller-out-channels", ("convolution_1",))),
    "04_mps_training_convnet": (GAIN, small(4)),
    "06_backward_without_conv_nodes": (GAIN, CLEAR),
    "07_conv3d_chain": (GAIN, small(4)),
    "09_no_global_winner": (GAIN, (False, "grouped-convolution", ("convolution_2",))),
    "10_dynamic_shapes": (GAIN, small(3)),
    "11_weight_stride_recompile": (GAIN, small(2)),
    "13_channel_shuffle": (GAIN, small(2)),
    "15_instance_norm": (GAIN, small(3)),
    "17_group_norm_only": (NONE, NONE),
    "19_reflect_pad": (GAIN, small(2)),
    "20_interpolate_output_strides": (NONE, NONE),
    "21_as_strided_channels_last": (NONE, NONE),
    "22_force_layout_avgpool_flatten": (GAIN, small(1)),
    "24_transpose_grouped_conv1d": (GAIN, CLEAR),
    "25_conv1d_stack": (GAIN, CLEAR),
    "27_pointwise_grad_strides": (GAIN, small(3)),
    "29_layernorm2d_flips_network": (GAIN, small(3)),
    "30_unet_in_out_channels": (GAIN, (False, "smaller-out-channels", ("convolution_3", "convolution_4"))),
    "32_user_contiguous_calls": (GAIN, small(2)),
    "34_dilated_conv": (GAIN, CLEAR),
    "36_depthwise_mobile": (GAIN, CLEAR),
    "38_half_precision_backbone": (GAIN, CLEAR),
}
# One case for each rule, and a convolution in three dimensions.
FEW = ("01", "03", "06", "07", "09", "17", "30")
CASES = [
    pytest.param(case, mode, expected[number], id=f"{case[:2]} {mode}")
    for case, expected in DECISIONS.items()
    for number, mode in enumerate(("inference", "training"))
    if IS_SWEEP or case[:2] in FEW
]


def test_the_table_has_every_case() -> None:
    assert sorted(DECISIONS) == sorted(path.stem for path in CASEBOOK.glob("[0-9]*.py"))


@pytest.mark.parametrize(("case", "mode", "expected"), CASES)
def test_the_decision_is_that_of_the_casebook(
    case: str, mode: str, expected: tuple[bool, str, tuple[str, ...]]
) -> None:
    diagnosis = requested_of_target(
        str(CASEBOOK / f"{case}.py"),
        Request(mode=mode, configurations=choose_configurations("inductor"), lower_for="cuda:90"),
    )

    (trial,) = diagnosis.trials
    assert trial.failure is None
    assert (trial.status, trial.is_static, trial.measurement, trial.kernels) == ("ok", True, None, None)
    graph = trial.graphs[0]
    assert graph.direction == ("inference" if mode == "inference" else "forward")
    assert all(graph.hook_failure is None for graph in trial.graphs)
    assert graph.decision is not None
    assert (graph.decision.applied, graph.decision.rule, graph.decision.deciding_nodes) == expected
    if mode == "training" and graph.decision.convolution_count:
        (backward,) = trial.graphs[1:]
        assert backward.decision is not None
        assert (backward.decision.applied, backward.decision.rule) == (False, "only-backward-convolutions")


class Broken(nn.Module):
    """The same code behind a graph break meets images of several sizes in one call."""

    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(nn.Conv2d(16, 16, 3, padding=1) for _ in range(3))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for block in self.blocks:
            x = nn.functional.avg_pool2d(self.twice(block, x), 2)
        return x

    def twice(self, block: nn.Module, x: torch.Tensor) -> torch.Tensor:
        x = block(x)
        torch._dynamo.graph_break()
        return block(x).relu()


def test_sizes_become_symbolic_behind_a_graph_break_as_they_do_for_the_user() -> None:
    model, images = Broken().eval(), torch.randn(2, 16, 32, 32)
    own: list[bool] = []  # whether torch.compile itself gave each graph symbolic sizes

    def seeing(graph_module: Any, _: Any) -> Any:
        values = [node.meta.get("example_value") for node in graph_module.graph.nodes]
        own.append(
            any(isinstance(v, torch.Tensor) and any(isinstance(s, torch.SymInt) for s in v.shape) for v in values)
        )
        return graph_module.forward

    torch._dynamo.reset()
    with torch.no_grad():
        torch.compile(model, backend=seeing)(images)
    torch._dynamo.reset()
    diagnosis = layoutdoctor.diagnose(model, images, configurations=["inductor"], lower_for="cuda:90")

    rules = [graph.decision and graph.decision.rule for graph in diagnosis.trial("inductor").graphs]
    assert any(own)
    assert [rule == "dynamic-shape" for rule in rules] == own
