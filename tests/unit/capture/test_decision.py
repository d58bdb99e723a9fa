from __future__ import annotations

import itertools
import types
from typing import TYPE_CHECKING, Any

import pytest
import torch
import torch._inductor.fx_utils  # torch 2.7 asks for it in the decision and leaves the import to others
from fx_builders import backward_only, traced
from torch._guards import detect_fake_mode
from torch._inductor.graph import GraphLowering
from torch._inductor.virtualized import V
from torch._subclasses.fake_tensor import FakeTensorMode

from layoutdoctor.capture.compat import InductorHooks, inductor_config
from layoutdoctor.capture.fx_graph import calls_of
from layoutdoctor.capture.session import record_decision
from layoutdoctor.recording.decision import RawDecision, convolution_class, describe_decision

if TYPE_CHECKING:
    from collections.abc import Callable

    from layoutdoctor.diagnosis.graph import Decision


def convolutions(*weights: tuple[int, ...], groups: int = 1, size: int = 8, mode: str = "fake") -> Any:
    """A graph of independent convolutions with weights of these shapes."""

    def run(*tensors: torch.Tensor) -> list[torch.Tensor]:
        inputs, kernels = tensors[: len(weights)], tensors[len(weights) :]
        return [torch.conv2d(x, w, groups=groups) for x, w in zip(inputs, kernels, strict=True)]

    inputs = [(2, weight[1] * groups, size, size) for weight in weights]
    return traced(run, *inputs, *weights, mode=mode)


def asked(graph_module: Any, *, is_inference: bool, **settings: bool) -> tuple[bool, RawDecision]:
    """torch's own decision about a graph, seen through the hook."""
    seen: list[RawDecision] = []

    def note(graph: Any, applied: bool, log: list[str], inference: bool) -> None:
        seen.append(record_decision(applied, log, inference))

    values = [node.meta["val"] for node in graph_module.graph.nodes if "val" in node.meta]
    # torch 2.7 counts flops in the fake mode that a compile has set.
    mode = detect_fake_mode(values) or FakeTensorMode()
    with inductor_config().patch(**settings), InductorHooks(note, lambda *_: None) as hooks, V.set_fake_mode(mode):
        result = GraphLowering.decide_layout_opt(graph_module, is_inference=is_inference)
    assert hooks.failures == []
    (raw,) = seen
    return result, raw


def explained(graph_module: Any, raw: RawDecision | None, applied: bool, count: int, *more: Any) -> Decision:
    calls = tuple(calls_of(graph_module, more[0] if more else {}))
    return describe_decision(calls, len(graph_module.graph.nodes), raw, applied, count)


def card(graph_module: Any, *, is_inference: bool, onednn: bool = False, **settings: bool) -> Decision:
    with torch.backends.mkldnn.flags(enabled=onednn):
        result, raw = asked(graph_module, is_inference=is_inference, **settings)
        decision = explained(graph_module, raw, result, 0)
    assert decision.applied == result
    return decision


def with_many_nodes() -> Any:
    def run(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        y = torch.conv2d(x, weight)
        for _ in range(320):
            y = y + 1
        return y

    return traced(run, (1, 4, 8, 8), (4, 4, 3, 3))


ONE, GROUPED = convolutions((128, 64, 3, 3)), convolutions((64, 16, 3, 3), groups=4)
FEWER = convolutions((128, 64, 3, 3), (32, 64, 3, 3), (32, 64, 1, 1))
SMALL = convolutions((64, 64, 3, 3), (48, 32, 3, 3))
SYMBOLIC = convolutions((128, 64, 3, 3), mode="symbolic")
WEIGHED = "in inference Inductor weighs each convolution's flops by its class"


@pytest.mark.parametrize(
    ("graph", "is_inference", "applied", "rule", "deciding", "words"),
    [
        (ONE, True, True, "weighted-flops", "", WEIGHED),  # without oneDNN a CPU is not the reason
        (ONE, False, True, "no-veto", "", "in training no rule speaks against channels-last for 1 convolution"),
        (GROUPED, False, False, "grouped-convolution", "convolution", "per group (convolution [64, 16, 3, 3])"),
        (FEWER, False, False, "smaller-out-channels", "convolution_1", "(convolution_1 [32, 64, 3, 3])"),
        (SMALL, False, False, "small-channels", "convolution convolution_1", "at most 64 input and output channels"),
        (GROUPED, True, False, "weighted-flops", "", "predict a slowdown (default "),
        (convolutions((32, 32, 3, 3)), True, True, "weighted-flops", "", "predict no slowdown"),
        (with_many_nodes(), False, False, "few-convolutions", "", "1 convolution among 324 FX nodes"),
        (SYMBOLIC, True, False, "dynamic-shape", "convolution", "a convolution has symbolic sizes (convolution)"),
    ],
)
def test_the_rule_that_decided_is_named_with_the_nodes_that_did(
    graph: Any, is_inference: bool, applied: bool, rule: str, deciding: str, words: str
) -> None:
    decision = card(graph, is_inference=is_inference)

    assert (decision.applied, decision.rule, decision.deciding_nodes) == (applied, rule, tuple(deciding.split()))
    assert words in decision.explanation


def test_a_card_has_what_is_known_of_each_convolution() -> None:
    (grouped,) = card(GROUPED, is_inference=False).convolutions
    (symbolic,) = card(SYMBOLIC, is_inference=True).convolutions

    assert (grouped.class_, grouped.groups, grouped.weight_shape) == ("grouped", 4, (64, 16, 3, 3))
    assert symbolic.weight_shape is None


def test_a_switch_that_is_off_decides_before_anything_else() -> None:
    for onednn in (True, False):
        decision = card(ONE, is_inference=True, onednn=onednn, layout_optimization=False)

        assert (decision.applied, decision.rule) == (False, "config-off")


def test_only_as_many_two_dimensional_convolutions_count_as_channels_last_as_torch_made() -> None:
    graph_module = convolutions((128, 64, 3, 3), (8, 8, 3, 3), (8, 8, 1, 1))
    _, raw = asked(graph_module, is_inference=True)
    decision = explained(graph_module, raw, True, 2)

    assert decision.channels_last_convolution_count == 2
    assert [c.channels_last for c in decision.convolutions] == [True, True, False]
    assert explained(graph_module, raw, True, 0).channels_last_convolution_count == 0


def torchs_own(name: str) -> Callable[[Any], bool]:
    """A function inside ``decide_layout_opt``, taken out of its code."""
    outer = GraphLowering.decide_layout_opt
    code = next((c for c in outer.__code__.co_consts if isinstance(c, types.CodeType) and c.co_name == name), None)
    if code is None or code.co_freevars:
        pytest.skip(f"this torch has no {name} to compare with")
    return types.FunctionType(code, outer.__globals__)


@pytest.mark.parametrize(
    ("groups", "out_channels", "in_per_group", "kernel"),
    list(itertools.product((1, 2, 16), (16, 32, 64, 96, 128, 256), (1, 16, 32, 64, 65, 128), (1, 3))),
)
def test_the_class_of_a_convolution_is_the_one_torchs_own_functions_give(
    groups: int, out_channels: int, in_per_group: int, kernel: int
) -> None:
    shape = (out_channels, in_per_group, kernel, kernel)
    weight = types.SimpleNamespace(meta={"val": torch.empty(shape, device="meta")})
    node = types.SimpleNamespace(args=(None, weight, None, groups))
    checks = (("grouped", "is_grouped"), ("small", "is_small_channel"), ("in_out", "is_in_out_channel"))
    expected = next((name for name, function in checks if torchs_own(function)(node)), "default")

    assert convolution_class(shape, groups) == expected


def test_a_graph_whose_convolutions_freezing_packed_has_nothing_to_decide() -> None:
    """torch counts a packed convolution only where the operation behind it was fused into it."""
    graph_module = torch.fx.GraphModule({}, torch.fx.Graph())
    x, weight = (graph_module.graph.placeholder(name) for name in ("x", "weight"))
    packed = graph_module.graph.call_function(torch.ops.mkldnn._convolution_pointwise.default, (x, weight))
    x.meta["val"], weight.meta["val"], packed.meta["val"] = (
        torch.empty(shape) for shape in ((1, 8, 4, 4, 4), (8, 8, 3, 3, 3), (1, 8, 2, 2, 2))
    )

    decision = card(graph_module, is_inference=True, onednn=True)

    assert (decision.rule, decision.convolution_count) == ("packed", 1)
    assert decision.explanation.startswith("freezing packed the convolution for oneDNN")


def test_whether_torch_decides_by_backward_convolutions_is_read_right() -> None:
    """With oneDNN every graph with a convolution that counts is switched, and only then."""
    with torch.backends.mkldnn.flags(enabled=True):
        result, raw = asked(backward_only(), is_inference=False)

    assert raw.counts_backward is result


@pytest.mark.parametrize(
    ("counts", "applied", "log", "rule", "words"),
    [
        (True, True, (), "cpu-onednn", "the convolution runs on a CPU with oneDNN"),
        (True, False, ("all convolution channels are too small",), "small-channels", "at most 64 input"),
        (True, False, (), "not-said", "torch did not say"),
        (False, False, (), "only-backward-convolutions", "counts no convolution_backward"),
    ],
)
def test_a_backward_graph_is_explained_by_what_this_torch_counts(
    counts: bool, applied: bool, log: tuple[str, ...], rule: str, words: str
) -> None:
    graph_module = backward_only()
    names = tuple(node.name for node in graph_module.graph.nodes if "convolution_backward" in str(node.target))
    raw = RawDecision(applied, log, False, enabled=True, forced=False, has_onednn=True, counts_backward=counts)

    decision = explained(graph_module, raw, applied, int(applied))

    assert (decision.rule, decision.applied) == (rule, applied)
    assert decision.deciding_nodes == (names if rule == "small-channels" else ())
    assert words in decision.explanation
