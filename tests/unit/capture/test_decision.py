from __future__ import annotations

import types
from typing import TYPE_CHECKING, Any

import pytest
import torch
import torch._inductor.fx_utils  # torch 2.7 asks for it in the decision and leaves the import to others
from torch._guards import detect_fake_mode
from torch._inductor.graph import GraphLowering
from torch._inductor.virtualized import V
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx.experimental.proxy_tensor import make_fx

from layoutdoctor.capture.compat import InductorHooks, inductor_config
from layoutdoctor.capture.decision import RawDecision, convolution_class, describe_decision, record_decision

if TYPE_CHECKING:
    from collections.abc import Callable

    from layoutdoctor.diagnosis.records import Decision


def traced(function: Callable[..., Any], *shapes: tuple[int, ...], mode: str = "fake") -> Any:
    with torch.no_grad():
        return make_fx(function, tracing_mode=mode)(*(torch.empty(shape) for shape in shapes))


def convolutions(*weights: tuple[int, ...], groups: int = 1, size: int = 8, mode: str = "fake") -> Any:
    """A graph of independent convolutions with weights of these shapes."""

    def run(*tensors: torch.Tensor) -> list[torch.Tensor]:
        inputs, kernels = tensors[: len(weights)], tensors[len(weights) :]
        return [torch.conv2d(x, w, groups=groups) for x, w in zip(inputs, kernels, strict=True)]

    inputs = [(2, weight[1] * groups, size, size) for weight in weights]
    return traced(run, *inputs, *weights, mode=mode)


def backward_only() -> Any:
    def run(gradient: torch.Tensor, x: torch.Tensor, weight: torch.Tensor) -> Any:
        ones, zeros = [1, 1], [0, 0]
        arguments = (None, ones, zeros, ones, False, zeros, 1, [True, True, False])
        return torch.ops.aten.convolution_backward(gradient, x, weight, *arguments)[:2]

    return traced(run, (2, 8, 6, 6), (2, 4, 8, 8), (8, 4, 3, 3))


def asked(graph_module: Any, *, is_inference: bool, **settings: bool) -> tuple[bool, RawDecision]:
    """torch's own decision about a graph, seen through the hook."""
    seen: list[RawDecision] = []

    def note(graph: Any, applied: bool, log: list[str], inference: bool | None) -> None:
        seen.append(record_decision(applied, log, inference))

    values = [node.meta["val"] for node in graph_module.graph.nodes if "val" in node.meta]
    # torch 2.7 counts flops in the fake mode that a compile has set.
    mode = detect_fake_mode(values) or FakeTensorMode()
    with inductor_config().patch(**settings), InductorHooks(note, lambda *_: None) as hooks, V.set_fake_mode(mode):
        result = GraphLowering.decide_layout_opt(graph_module, is_inference=is_inference)
    assert hooks.failures == []
    (raw,) = seen
    return result, raw


def card(graph_module: Any, *, is_inference: bool, onednn: bool = False, **settings: bool) -> Decision:
    with torch.backends.mkldnn.flags(enabled=onednn):
        result, raw = asked(graph_module, is_inference=is_inference, **settings)
        decision = describe_decision(graph_module, raw, result, 0)
    assert decision.applied == result
    return decision


def test_without_onednn_a_cpu_is_not_the_reason() -> None:
    assert card(convolutions((128, 64, 3, 3)), is_inference=True).rule == "weighted-flops"
    assert card(convolutions((128, 64, 3, 3)), is_inference=False).rule == "no-veto"


def test_a_grouped_convolution_vetoes_in_training() -> None:
    decision = card(convolutions((64, 16, 3, 3), groups=4), is_inference=False)

    assert (decision.applied, decision.rule) == (False, "grouped-convolution")
    assert decision.deciding_nodes == ("convolution",)
    assert "more than one channel per group (convolution [64, 16, 3, 3])" in decision.explanation
    assert [(c.class_, c.groups, c.weight_shape) for c in decision.convolutions] == [("grouped", 4, (64, 16, 3, 3))]


def test_fewer_output_than_input_channels_veto_in_training_and_only_the_ones_that_do_are_named() -> None:
    decision = card(convolutions((128, 64, 3, 3), (32, 64, 3, 3), (32, 64, 1, 1)), is_inference=False)

    assert (decision.applied, decision.rule) == (False, "smaller-out-channels")
    assert decision.deciding_nodes == ("convolution_1",)
    assert "(convolution_1 [32, 64, 3, 3])" in decision.explanation


def test_small_channels_everywhere_veto_in_training() -> None:
    decision = card(convolutions((64, 64, 3, 3), (48, 32, 3, 3)), is_inference=False)

    assert (decision.applied, decision.rule) == (False, "small-channels")
    assert decision.deciding_nodes == ("convolution", "convolution_1")
    assert "at most 64 input and output channels" in decision.explanation


def test_in_inference_the_flops_of_each_class_are_weighed() -> None:
    grouped = card(convolutions((64, 16, 3, 3), groups=4), is_inference=True)
    small = card(convolutions((32, 32, 3, 3)), is_inference=True)

    assert (grouped.applied, grouped.rule) == (False, "weighted-flops")
    assert "predict a slowdown (default " in grouped.explanation
    assert (small.applied, small.rule) == (True, "weighted-flops")
    assert "predict no slowdown" in small.explanation


def test_a_graph_with_few_convolutions_is_skipped_and_its_nodes_are_counted() -> None:
    def run(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        y = torch.conv2d(x, weight)
        for _ in range(320):
            y = y + 1
        return y

    graph_module = traced(run, (1, 4, 8, 8), (4, 4, 3, 3))
    decision = card(graph_module, is_inference=False)

    assert (decision.applied, decision.rule) == (False, "few-convolutions")
    assert f"1 convolution among {len(list(graph_module.graph.nodes))} FX nodes" in decision.explanation


def test_symbolic_sizes_are_skipped() -> None:
    decision = card(convolutions((128, 64, 3, 3), mode="symbolic"), is_inference=True)

    assert (decision.applied, decision.rule) == (False, "dynamic-shape")
    assert decision.deciding_nodes == ("convolution",)
    assert decision.convolutions[0].weight_shape is None


@pytest.mark.parametrize("onednn", [True, False])
def test_a_switch_that_is_off_decides_before_anything_else(onednn: bool) -> None:
    decision = card(convolutions((128, 64, 3, 3)), is_inference=True, onednn=onednn, layout_optimization=False)

    assert (decision.applied, decision.rule) == (False, "config-off")


def test_a_backward_graph_says_that_its_convolutions_were_not_counted() -> None:
    decision = card(backward_only(), is_inference=False, onednn=True)

    if decision.applied:
        pytest.skip("this torch counts backward convolutions")
    assert (decision.rule, decision.convolution_count) == ("only-backward-convolutions", 1)
    assert "1 convolution_backward and no convolution" in decision.explanation
    assert (decision.convolutions[0].weight_shape, decision.convolutions[0].rank) == ((8, 4, 3, 3), 2)


def test_only_as_many_two_dimensional_convolutions_count_as_channels_last_as_torch_made() -> None:
    graph_module = convolutions((128, 64, 3, 3), (8, 8, 3, 3), (8, 8, 1, 1))
    _, raw = asked(graph_module, is_inference=True)
    decision = describe_decision(graph_module, raw, True, 2)

    assert decision.channels_last_convolution_count == 2
    assert [c.channels_last for c in decision.convolutions] == [True, True, False]
    assert describe_decision(graph_module, raw, True, 0).channels_last_convolution_count == 0


def torchs_own(name: str) -> Callable[[Any], bool]:
    """A function inside ``decide_layout_opt``, taken out of its code."""
    outer = GraphLowering.decide_layout_opt
    code = next((c for c in outer.__code__.co_consts if isinstance(c, types.CodeType) and c.co_name == name), None)
    if code is None or code.co_freevars:
        pytest.skip(f"this torch has no {name} to compare with")
    return types.FunctionType(code, outer.__globals__)


@pytest.mark.parametrize("groups", [1, 2, 16])
@pytest.mark.parametrize("out_channels", [16, 32, 64, 96, 128, 256])
@pytest.mark.parametrize("in_per_group", [1, 16, 32, 64, 65, 128])
@pytest.mark.parametrize("kernel", [1, 3])
def test_the_class_of_a_convolution_is_the_one_torchs_own_functions_give(
    groups: int, out_channels: int, in_per_group: int, kernel: int
) -> None:
    shape = (out_channels, in_per_group, kernel, kernel)
    weight = types.SimpleNamespace(meta={"val": torch.empty(shape, device="meta")})
    node = types.SimpleNamespace(args=(None, weight, None, groups))
    checks = (("grouped", "is_grouped"), ("small", "is_small_channel"), ("in_out", "is_in_out_channel"))
    expected = next((name for name, function in checks if torchs_own(function)(node)), "default")

    assert convolution_class(shape, groups) == expected


def test_whether_torch_decides_by_backward_convolutions_is_read_right() -> None:
    """With oneDNN every graph with a convolution that counts is switched, and only then."""
    result, raw = asked_with_onednn(backward_only())

    assert raw.counts_backward is result


def asked_with_onednn(graph_module: Any) -> tuple[bool, RawDecision]:
    with torch.backends.mkldnn.flags(enabled=True):
        return asked(graph_module, is_inference=False)


@pytest.mark.parametrize(
    ("counts", "applied", "log", "rule", "deciding", "words"),
    [
        (True, True, (), "cpu-onednn", (), "the convolution runs on a CPU with oneDNN"),
        (True, False, ("all convolution channels are too small",), "small-channels", ("backward",), "at most 64 input"),
        (True, False, (), "not-said", (), "torch did not say"),
        (False, False, (), "only-backward-convolutions", (), "counts only the latter"),
        (None, False, (), "not-said", (), "torch did not say"),
    ],
)
def test_a_backward_graph_is_explained_by_what_this_torch_counts(
    counts: bool | None, applied: bool, log: tuple[str, ...], rule: str, deciding: tuple[str, ...], words: str
) -> None:
    graph_module = backward_only()
    (node,) = [node for node in graph_module.graph.nodes if "convolution_backward" in str(node.target)]
    raw = RawDecision(applied, log, False, enabled=True, forced=False, has_onednn=True, counts_backward=counts)

    decision = describe_decision(graph_module, raw, applied, int(applied))

    assert (decision.rule, decision.applied) == (rule, applied)
    assert decision.deciding_nodes == tuple(node.name for _ in deciding)
    assert words in decision.explanation
