"""The decision card: which rule of Inductor's layout heuristic decided for a graph, explained; torch itself decided."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch

from layoutdoctor.capture.compat import counts_backward_convolutions, inductor_config
from layoutdoctor.capture.fx_graph import (
    first_of,
    first_tensor,
    layout_of,
    node_location,
    node_module,
    size_of,
    target_name,
)
from layoutdoctor.diagnosis.graph import Convolution, ConvolutionClass, Decision

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from layoutdoctor.diagnosis.layout import Layout


SMALL_CHANNELS = 64
"""``decide_layout_opt``: up to this many input and output channels a convolution counts as small."""

NODES_PER_CONVOLUTION = 300
"""``decide_layout_opt``: from this many FX nodes a convolution on, too few convolutions for a switch."""


def _explanation(
    rule: str,
    log: Sequence[str],
    *,
    applied: bool,
    convolutions: tuple[Convolution, ...],
    count: int,
    deciding: tuple[str, ...],
    node_count: int,
) -> str:
    """The rule that decided about a graph, in a sentence; ``count`` is how many convolutions this torch decides by."""
    plural = "" if count == 1 else "s"
    which = _names(convolutions, deciding)
    texts = {
        "config-off": "layout_optimization is switched off for this compile",
        "forced": "force_layout_optimization is set, so Inductor asks no further",
        "no-convolution": "the graph has no convolution, so there is nothing to optimize",
        "only-backward-convolutions": (
            f"the graph has {len(convolutions)} convolution_backward and no convolution; this torch counts "
            "only the latter, so it is lowered without layout optimization, whatever the forward was (pytorch #189239)"
        ),
        "cpu-onednn": (
            f"all {count} convolution{plural} run on a CPU with oneDNN, where Inductor always chooses channels-last"
            if count != 1
            else "the convolution runs on a CPU with oneDNN, where Inductor always chooses channels-last"
        ),
        "few-convolutions": (
            f"{count} convolution{plural} among {node_count} FX nodes: Inductor skips graphs with at least "
            f"{NODES_PER_CONVOLUTION} nodes per convolution"
        ),
        "dynamic-shape": f"a convolution has symbolic sizes{which}: Inductor skips dynamic shapes (pytorch #102670)",
        "weighted-flops": _flops_text(applied, log),
        "grouped-convolution": (
            f"a grouped convolution has more than one channel per group{which}; "
            "in training Inductor skips the whole graph for it"
        ),
        "smaller-out-channels": (
            "the first dimension of a weight is at most half its second, with a kernel larger than 1 (few output for "
            f"many input channels, the reverse where transposed){which}; in training Inductor skips the whole graph "
            "for it"
        ),
        "small-channels": (
            f"all convolutions have at most {SMALL_CHANNELS} input and output channels; "
            "in training Inductor skips such graphs"
        ),
        "no-veto": f"no rule speaks against it for {count} convolution{plural} in training",
        "packed": (
            f"freezing packed the {'convolutions' if plural else 'convolution'} for oneDNN, which chooses their layout "
            "itself: nothing is left to decide"
        ),
        "set-from-outside": "the decision was made before this graph was lowered (freezing passes it in)",
    }
    return texts.get(rule, "torch did not say how it decided")


def _names(convolutions: tuple[Convolution, ...], deciding: tuple[str, ...]) -> str:
    named = [
        f"{c.module or c.node} {list(c.weight_shape)}" if c.weight_shape else (c.module or c.node)
        for c in convolutions
        if c.node in deciding
    ]
    return f" ({first_of(named)})" if named else ""


def _flops_text(applied: bool, log: Sequence[str]) -> str:
    numbers = re.findall(r"(default|channels last): (\d+)", " ".join(log))
    figures = f" ({', '.join(f'{name} {int(value):,}' for name, value in numbers)} weighted flops)" if numbers else ""
    outcome = "predict no slowdown" if applied else "predict a slowdown"
    return f"in inference Inductor weighs each convolution's flops by its class; the weighted flops {outcome}{figures}"


_LOGGED_RULES = (
    ("only a few conv", "few-convolutions"),
    ("dynamic shape", "dynamic-shape"),
    ("weighted flops", "weighted-flops"),
    ("grouped convolution", "grouped-convolution"),
    ("smaller out_channel", "smaller-out-channels"),
    ("channels are too small", "small-channels"),
)
"""Torch's log lines when it declines, and our names for the rules (torch/_inductor/graph.py, torch 2.7 to 2.15)."""


@dataclass(frozen=True)
class RawDecision:
    """
    One call of ``decide_layout_opt``.

    Attributes:
        is_inference: Inductor uses another heuristic outside training.
        enabled: ``config.layout_optimization`` as in effect for this compile.
        forced: ``config.force_layout_optimization`` likewise.
        has_onednn: Whether oneDNN could be used (``torch.backends.mkldnn``).
        counts_backward: Whether this torch decides by ``convolution_backward``, too.
    """

    applied: bool
    log: tuple[str, ...]
    is_inference: bool
    enabled: bool
    forced: bool
    has_onednn: bool = True
    counts_backward: bool = False


def record_decision(applied: bool, log: Sequence[str], is_inference: bool) -> RawDecision:
    """The decision with the settings in effect while it was made."""
    config, onednn = inductor_config(), torch.backends.mkldnn
    return RawDecision(
        applied,
        tuple(log),
        is_inference,
        enabled=bool(config.layout_optimization),
        forced=bool(config.force_layout_optimization),
        has_onednn=bool(onednn.enabled and onednn.is_available()),
        counts_backward=counts_backward_convolutions(),
    )


def _is_forward(target: str) -> bool:
    """Whether Inductor's heuristic counts an operator: ``aten.convolution``, and oneDNN's packed convolutions."""
    return target == "aten.convolution.default" or ("mkldnn" in target and "convolution" in target)


def _is_backward(node: Any) -> bool:
    return "convolution_backward" in str(node.target)


def describe_decision(
    graph_module: Any,
    raw: RawDecision | None,
    applied: bool,
    channels_last_count: int,
    extern_targets: Mapping[str, str] | None = None,
    written: Mapping[str, Layout] | None = None,
) -> Decision:
    """
    The decision card of a graph.

    Args:
        raw: The heuristic's answer; None if it was not asked.
        applied: ``GraphLowering.layout_opt``, what was in effect in the end.
        channels_last_count: ``GraphLowering.num_channels_last_conv``.
        written: The layouts that calls of a library write, by node, where the node's own is not what came of it.
    """
    calls = [node for node in graph_module.graph.nodes if node.op == "call_function"]
    forward = [node for node in calls if _is_forward(target_name(node, extern_targets or {}))]
    backward = [node for node in calls if _is_backward(node)]
    nodes = forward + backward
    counted = nodes if raw is not None and raw.counts_backward else forward
    rule = _rule(raw, counted, backward, applied=applied)
    forced = _forced_names(nodes, applied, channels_last_count, written or {})
    convolutions = tuple(_convolution(node, channels_last=node.name in forced) for node in nodes)
    deciding = tuple(node.name for node in counted if _vetoes(node, rule))
    return Decision(
        applied=applied,
        rule=rule,
        explanation=_explanation(
            rule,
            raw.log if raw is not None else (),
            applied=applied,
            convolutions=convolutions,
            count=len(counted),
            deciding=deciding,
            node_count=len(list(graph_module.graph.nodes)),
        ),
        convolution_count=len(nodes),
        channels_last_convolution_count=len(forced),
        convolutions=convolutions,
        deciding_nodes=deciding,
        log="\n".join(raw.log) if raw is not None and raw.log else None,
    )


def _rule(raw: RawDecision | None, counted: Sequence[Any], backward: Sequence[Any], *, applied: bool) -> str:
    """The rule that decided, by what torch logged, or by the only one that is left where it logs nothing."""
    if raw is None or raw.applied != applied:
        return "set-from-outside"
    if not raw.enabled:
        return "config-off"
    if raw.forced:
        return "forced"
    for line in raw.log:
        for part, rule in _LOGGED_RULES:
            if part in line:
                return rule
    if not raw.applied:
        return _unsaid_rule(raw, counted, backward)
    if raw.has_onednn and all(_is_on_cpu(node) for node in [*counted, *backward]):
        return "cpu-onednn"
    return "weighted-flops" if raw.is_inference else "no-veto"


def _unsaid_rule(raw: RawDecision, counted: Sequence[Any], backward: Sequence[Any]) -> str:
    """The rule by which Inductor decided against it without a word."""
    if counted and not any(map(_is_aten, counted)):
        return "packed"
    if counted:
        return "not-said"
    return "only-backward-convolutions" if backward else "no-convolution"


def _is_on_cpu(node: Any) -> bool:
    tensor = first_tensor(node.meta.get("val"))
    return tensor is not None and tensor.device.type == "cpu"


def _forced_names(nodes: Iterable[Any], applied: bool, count: int, written: Mapping[str, Layout]) -> set[str]:
    """Which convolutions layout optimization made channels-last: torch counts them, and takes the 2-D ones only."""
    packed = {node.name for node in nodes if not _is_aten(node) and _is_channels_last(node, written)}
    if not applied:
        return packed
    two_dimensional = [node.name for node in nodes if _rank(node) == 2 and node.name not in packed]
    return packed.union(two_dimensional[:count])


def _is_aten(node: Any) -> bool:
    """Whether a convolution is ATen's, not one that freezing packed for oneDNN (which decides the layout itself)."""
    return str(node.target).startswith("aten.")


def _is_channels_last(node: Any, written: Mapping[str, Layout]) -> bool:
    layout = written.get(node.name) or layout_of(first_tensor(node.meta.get("val")))
    return layout is not None and any(name.startswith("channels_last") for name in layout.memory_formats)


def _weight(node: Any) -> torch.Tensor | None:
    position = 2 if _is_backward(node) else 1
    argument = node.args[position] if len(node.args) > position else None
    value = getattr(argument, "meta", {}).get("val")
    return value if isinstance(value, torch.Tensor) else None


def _groups(node: Any) -> int | None:
    value = _argument(node, "groups")
    return value if isinstance(value, int) else None


def _rank(node: Any) -> int | None:
    tensor = first_tensor(node.meta.get("val")) if not _is_backward(node) else _weight(node)
    return None if tensor is None else tensor.dim() - 2


def _weight_shape(node: Any) -> tuple[int, ...] | None:
    weight = _weight(node)
    if weight is None:
        return None
    shape = tuple(size for size in map(size_of, weight.shape) if isinstance(size, int))
    if len(shape) < weight.dim():
        return None
    groups = _groups(node)
    if groups and not _is_aten(node) and _is_packed_transposed(node):
        return (shape[1] * groups, shape[0] // groups, *shape[2:])  # packed as if it were not transposed
    return shape


def _traits(shape: tuple[int, ...] | None, groups: int | None) -> dict[ConvolutionClass, bool]:
    """
    The classes by which Inductor weighs a convolution, in its own order, and whether each fits.

    Args:
        shape: Weight shape ``[C_out, C_in / groups, ...]``; None if not recorded.

    Source:
        ``decide_layout_opt``: ``is_grouped``, ``is_small_channel``, ``is_in_out_channel``; torch 2.7 to 2.15.
    """
    if shape is None:
        return {}
    return {
        "grouped": (groups or 1) > 1 and shape[1] > 1,
        "small": shape[0] <= SMALL_CHANNELS and shape[1] <= SMALL_CHANNELS,
        "in_out": len(shape) > 2 and shape[0] * 2 <= shape[1] and shape[2] > 1,
    }


def convolution_class(shape: tuple[int, ...] | None, groups: int | None) -> ConvolutionClass:
    """The first class that fits a convolution."""
    return next((name for name, fits in _traits(shape, groups).items() if fits), "default")


_VETOES: dict[str, ConvolutionClass] = {
    "grouped-convolution": "grouped",
    "smaller-out-channels": "in_out",
    "small-channels": "small",
}
"""Rules by which convolutions of a class decide against layout optimization."""


def _vetoes(node: Any, rule: str) -> bool:
    if rule in _VETOES:
        return _traits(_weight_shape(node), _groups(node)).get(_VETOES[rule], False)
    if rule == "dynamic-shape":
        first = 1 if _is_backward(node) else 0  # its input comes after the gradient
        values = [getattr(argument, "meta", {}).get("val") for argument in node.args[first : first + 2]]
        shapes = [value.shape for value in values if isinstance(value, torch.Tensor)]
        return any(isinstance(size_of(size), str) for shape in shapes for size in shape)
    return False


def _convolution(node: Any, *, channels_last: bool) -> Convolution:
    shape, groups = _weight_shape(node), _groups(node)
    return Convolution(
        node=node.name,
        class_=convolution_class(shape, groups),
        channels_last=channels_last,
        rank=_rank(node),
        location=node_location(node),
        module=node_module(node),
        weight_shape=shape,
        groups=groups,
        stride=_spatial(node, "stride"),
        padding=_spatial(node, "padding"),
        dilation=_spatial(node, "dilation"),
        is_transposed=_is_transposed(node),
        is_backward=_is_backward(node),
    )


_FORWARD_POSITIONS = {"stride": 3, "padding": 4, "dilation": 5, "transposed": 6, "groups": 8}
"""``aten.convolution(input, weight, bias, stride, padding, dilation, transposed, output_padding, groups)``."""

_PACKED_POSITIONS = {"padding": 3, "stride": 4, "dilation": 5, "groups": 6}
"""``mkldnn._convolution_pointwise(input, weight, bias, padding, stride, dilation, groups, ...)``."""

_PACKED_TRANSPOSED_POSITIONS = {"padding": 3, "stride": 5, "dilation": 6, "groups": 7}
"""``mkldnn._convolution_transpose_pointwise(input, weight, bias, padding, output_padding, stride, ...)``."""


def _argument(node: Any, name: str) -> Any:
    if _is_backward(node):
        position = _FORWARD_POSITIONS[name] + 1  # the sizes of the bias stand in front
    elif _is_aten(node):
        position = _FORWARD_POSITIONS[name]
    else:
        positions = _PACKED_TRANSPOSED_POSITIONS if _is_packed_transposed(node) else _PACKED_POSITIONS
        position = positions[name]
    return node.args[position] if position < len(node.args) else None


def _spatial(node: Any, name: str) -> tuple[int, ...] | None:
    values = _argument(node, name)
    if not isinstance(values, (list, tuple)) or not all(isinstance(value, int) for value in values):
        return None
    rank = _rank(node)
    repeated = len(values) == 1 and rank is not None and rank > 1
    return tuple(values) * rank if repeated and rank is not None else tuple(values)


def _is_packed_transposed(node: Any) -> bool:
    """By its arguments, as fused ones have another target: the dilation where others have the groups."""
    return len(node.args) > 6 and isinstance(node.args[6], (list, tuple))


def _is_transposed(node: Any) -> bool | None:
    if not _is_aten(node):
        return _is_packed_transposed(node)
    value = _argument(node, "transposed")
    return value if isinstance(value, bool) else None
