"""
Builds the ``Decision`` of a graph: which rule of Inductor's layout heuristic decided, with an explanation.

Torch decides. The record is built in the same way for a compile that was watched and for a compile whose log was read.
This module does not import torch.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec

from layoutdoctor.diagnosis import Convolution, ConvolutionClass, Decision, Layout, Size, SourceLocation
from layoutdoctor.words import listing

SMALL_CHANNELS = 64
"""A convolution with at most this many input and output channels counts as small in ``decide_layout_opt``."""

NODES_PER_CONVOLUTION = 300
"""A graph with at least this many FX nodes per convolution is declined by ``decide_layout_opt``."""


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
    """Explains the rule that decided. ``count`` is the number of convolutions that this version of torch considers."""
    plural = "" if count == 1 else "s"
    named = [
        f"{c.module or c.node} {list(c.weight_shape)}" if c.weight_shape else (c.module or c.node)
        for c in convolutions
        if c.node in deciding
    ]
    which = f" ({listing(named, 3)})" if named else ""
    texts = {
        "config-off": "layout_optimization is switched off for this compile",
        "forced": "force_layout_optimization is set, so Inductor checks nothing else",
        "no-convolution": "the graph has no convolution, so there is nothing to optimize",
        "only-backward-convolutions": (
            f"the graph has {len(convolutions)} convolution_backward and no convolution; this torch counts "
            "no convolution_backward (pytorch #189239)"
        ),
        "cpu-onednn": (
            f"all {count} convolutions run on a CPU with oneDNN, where Inductor always chooses channels-last"
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
            "in training Inductor then skips the whole graph"
        ),
        "smaller-out-channels": (
            "the first dimension of a weight is at most half its second, with a kernel larger than 1 (few output "
            f"channels for many input channels, or the reverse if transposed){which}; in training Inductor then skips "
            "the whole graph"
        ),
        "small-channels": (
            f"all convolutions have at most {SMALL_CHANNELS} input and output channels; "
            "in training Inductor skips such graphs"
        ),
        "no-veto": f"in training no rule speaks against channels-last for {count} convolution{plural}",
        "packed": (
            f"freezing packed the convolution{plural} for oneDNN, which chooses their layout "
            "itself: nothing is left to decide"
        ),
        "not-recorded": "the log does not record the decision, and the strides fit either decision",
        "set-from-outside": (
            "the decision was made before this graph was lowered (freezing passes the decision to this compile)"
        ),
    }
    return texts.get(rule, "torch did not say how it decided")


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
"""Texts that torch logs when a rule declines, each with our name of the rule; torch/_inductor/graph.py, 2.7 to 2.15."""


@dataclass(frozen=True)
class RawDecision:
    """
    One call of torch's ``decide_layout_opt``: its result, its log and the settings that it looked at.

    Attributes:
        is_inference: Whether the graph is for inference. Inductor has one heuristic for inference, one for training.
        enabled: Value of ``config.layout_optimization`` that was in effect for this compile.
        forced: Value of ``config.force_layout_optimization`` that was in effect for this compile.
        has_onednn: Whether oneDNN could be used (``torch.backends.mkldnn``).
        counts_backward: Whether this version of torch takes ``convolution_backward`` into account, too.
    """

    applied: bool
    log: tuple[str, ...]
    is_inference: bool
    enabled: bool
    forced: bool
    has_onednn: bool
    counts_backward: bool


@dataclass(frozen=True)
class FxTensor:
    """A tensor among the arguments or results of a call."""

    layout: Layout | None
    device: str


@dataclass(frozen=True)
class FxCall:
    """
    A call of an FX graph.

    Attributes:
        target: The operator that is called.
        args: The positional arguments. A tensor is an ``FxTensor``; an argument that could not be read is None.
        result: The tensor that the call returns, or the first of several; None if it returns no tensor.
        is_aten: Whether the operator is ATen's. Any other convolution was packed for oneDNN by freezing, and oneDNN
            chooses the layout.
    """

    name: str
    target: str
    args: tuple[Any, ...]
    result: FxTensor | None
    is_aten: bool
    location: SourceLocation | None
    module: str | None


def _is_forward(target: str) -> bool:
    """Whether an operator is a forward convolution: ``aten.convolution`` or a convolution packed for oneDNN."""
    return target == "aten.convolution.default" or ("mkldnn" in target and "convolution" in target)


def _is_backward(node: FxCall) -> bool:
    return "convolution_backward" in node.target


def describe_decision(
    calls: Sequence[FxCall],
    node_count: int,
    raw: RawDecision | None,
    applied: bool,
    channels_last_count: int,
    written: Mapping[str, Layout] = {},
    rule: str = "",
) -> Decision:
    """
    Builds the ``Decision`` of a graph.

    Args:
        calls: The graph's calls, in order.
        node_count: Number of all FX nodes of the graph.
        raw: The call of the heuristic; None if it was not called.
        rule: The rule that decided; empty to find it from ``raw``.
        applied: Value of ``GraphLowering.layout_opt`` that was in effect in the end.
        channels_last_count: Value of ``GraphLowering.num_channels_last_conv``.
        written: Layouts of the tensors that library calls write, by node name; they replace the layouts in the graph.
    """
    forward = [node for node in calls if _is_forward(node.target)]
    backward = [node for node in calls if _is_backward(node)]
    nodes = forward + backward
    log = () if raw is None else raw.log
    counted = nodes if raw is not None and raw.counts_backward else forward
    rule = rule or _rule(raw, counted, backward, applied=applied)
    forced = _forced_names(nodes, applied, channels_last_count, written)
    convolutions = tuple(_convolution(node, channels_last=node.name in forced) for node in nodes)
    deciding = tuple(node.name for node in counted if _vetoes(node, rule))
    return Decision(
        applied=applied,
        rule=rule,
        explanation=_explanation(
            rule,
            log,
            applied=applied,
            convolutions=convolutions,
            count=len(counted),
            deciding=deciding,
            node_count=node_count,
        ),
        convolution_count=len(nodes),
        channels_last_convolution_count=len(forced),
        convolutions=convolutions,
        deciding_nodes=deciding,
        log="\n".join(log) or None,
    )


def _rule(raw: RawDecision | None, counted: Sequence[FxCall], backward: Sequence[FxCall], *, applied: bool) -> str:
    """Finds the rule that decided: from the settings, from torch's log, or by elimination; ``not-said`` if unknown."""
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
    if not raw.applied and counted:
        return "not-said" if any(node.is_aten for node in counted) else "packed"
    if not raw.applied:
        return "only-backward-convolutions" if backward else "no-convolution"
    if raw.has_onednn and all(_is_on_cpu(node) for node in [*counted, *backward]):
        return "cpu-onednn"
    return "weighted-flops" if raw.is_inference else "no-veto"


def derived_decision(
    calls: Sequence[FxCall],
    node_count: int,
    *,
    is_inference: bool,
    enabled: bool,
    forced: bool,
    counts_backward: bool,
    written: Mapping[str, Layout],
) -> Decision:
    """
    Builds the ``Decision`` of a compile that was not watched.

    The decision is derived from the strides in the generated code, and from the rules that need no flops. The result's
    ``applied`` is None if both decisions are possible. ``written`` has the layouts that library calls write, by node.
    """
    forward = [call for call in calls if _is_forward(call.target)]
    backward = [call for call in calls if _is_backward(call)]
    counted = forward + backward if counts_backward else forward
    applied, rule = _by_strides(forward, written), ""
    if not any(call.is_aten for call in counted):
        applied = False
    elif not enabled or forced:
        applied = enabled
    elif applied is not False and all(map(_is_on_cpu, counted)):
        applied, rule = True, "cpu-onednn"
    elif applied is None:
        rule = "not-recorded"
    elif not applied:
        rule = _veto(counted, node_count, is_inference=is_inference)
    raw = RawDecision(bool(applied), (), is_inference, enabled, forced, False, counts_backward)
    planar = sum(_rank(call) == 2 and call.is_aten for call in counted)
    decision = describe_decision(calls, node_count, raw, bool(applied), planar, written, rule)
    if not counted:
        return decision
    explanation = f"{decision.explanation} (derived from the graph and the strides of its generated code)"
    return msgspec.structs.replace(decision, applied=applied, explanation=explanation)


def _by_strides(forward: Sequence[FxCall], written: Mapping[str, Layout]) -> bool | None:
    """Whether the code turns contiguous outputs of convolutions into channels-last; None if no stride shows it."""
    found: list[bool] = []
    for call in forward:
        given, layout = _layout(call), written.get(call.name)
        if call.is_aten and _rank(call) == 2 and given is not None and layout is not None:
            if layout.memory_formats == ("contiguous_format",):
                return False
            found.append(given.memory_formats == ("contiguous_format",) and "channels_last" in layout.memory_formats)
    return True if any(found) else None


def _veto(counted: Sequence[FxCall], node_count: int, *, is_inference: bool) -> str:
    """Returns the first rule, in Inductor's order, by which Inductor declines; ``not-said`` if no rule fits."""
    if node_count >= NODES_PER_CONVOLUTION * len(counted):
        return "few-convolutions"
    if any(_vetoes(call, "dynamic-shape") for call in counted):
        return "dynamic-shape"
    if is_inference:
        return "weighted-flops"
    for rule in ("grouped-convolution", "smaller-out-channels"):
        if any(_vetoes(call, rule) for call in counted):
            return rule
    return "small-channels" if all(_vetoes(call, "small-channels") for call in counted) else "not-said"


def _is_on_cpu(node: FxCall) -> bool:
    return node.result is not None and node.result.device == "cpu"


def _forced_names(nodes: Iterable[FxCall], applied: bool, count: int, written: Mapping[str, Layout]) -> set[str]:
    """
    Returns the names of the convolutions that are channels-last.

    A convolution packed for oneDNN is included if its layout is channels-last. If layout optimization was applied, the
    first ``count`` other 2-D convolutions are included, too: torch records only how many it made channels-last.
    """
    packed = {node.name for node in nodes if not node.is_aten and _is_channels_last(node, written)}
    if not applied:
        return packed
    two_dimensional = [node.name for node in nodes if _rank(node) == 2 and node.name not in packed]
    return packed.union(two_dimensional[:count])


def _is_channels_last(node: FxCall, written: Mapping[str, Layout]) -> bool:
    layout = written.get(node.name) or _layout(node)
    return layout is not None and not {"channels_last", "channels_last_3d"}.isdisjoint(layout.memory_formats)


def _layout(node: FxCall) -> Layout | None:
    return None if node.result is None else node.result.layout


def _shape(value: object) -> tuple[Size, ...]:
    """Returns the sizes of a tensor; empty if they are not known."""
    return value.layout.shape if isinstance(value, FxTensor) and value.layout is not None else ()


def _whole_weight_shape(node: FxCall) -> tuple[Size, ...]:
    position = 2 if _is_backward(node) else 1
    return _shape(node.args[position]) if len(node.args) > position else ()


def _groups(node: FxCall) -> int | None:
    value = _argument(node, "groups")
    return value if isinstance(value, int) else None


def _rank(node: FxCall) -> int | None:
    shape = _whole_weight_shape(node) if _is_backward(node) else _shape(node.result)
    return len(shape) - 2 if shape else None


def _weight_shape(node: FxCall) -> tuple[int, ...] | None:
    whole = _whole_weight_shape(node)
    shape = tuple(size for size in whole if isinstance(size, int))
    if not shape or len(shape) < len(whole):
        return None
    groups = _groups(node)
    if groups and not node.is_aten and _is_packed_transposed(node):
        return (shape[1] * groups, shape[0] // groups, *shape[2:])  # packed like a weight that is not transposed
    return shape


def _traits(shape: tuple[int, ...] | None, groups: int | None) -> dict[ConvolutionClass, bool]:
    """
    Returns whether a convolution fits each of Inductor's classes, in Inductor's order; empty without a shape.

    Args:
        shape: Weight shape ``[C_out, C_in / groups, ...]``; if transposed, ``[C_in, C_out / groups, ...]``.

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
    """Returns Inductor's first class that fits a convolution; ``default`` if no class fits."""
    return next((name for name, fits in _traits(shape, groups).items() if fits), "default")


_VETOES: dict[str, ConvolutionClass] = {
    "grouped-convolution": "grouped",
    "smaller-out-channels": "in_out",
    "small-channels": "small",
}
"""Rules that decline layout optimization because of one class of convolutions, each with this class."""


def _vetoes(node: FxCall, rule: str) -> bool:
    if rule in _VETOES:
        return _traits(_weight_shape(node), _groups(node)).get(_VETOES[rule], False)
    if rule == "dynamic-shape":
        first = 1 if _is_backward(node) else 0  # in convolution_backward, the input comes after the gradient
        shapes = map(_shape, node.args[first : first + 2])
        return any(isinstance(size, str) for shape in shapes for size in shape)
    return False


def _convolution(node: FxCall, *, channels_last: bool) -> Convolution:
    shape, groups = _weight_shape(node), _groups(node)
    return Convolution(
        node=node.name,
        class_=convolution_class(shape, groups),
        channels_last=channels_last,
        rank=_rank(node),
        location=node.location,
        module=node.module,
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


def _argument(node: FxCall, name: str) -> Any:
    if _is_backward(node):
        position = _FORWARD_POSITIONS[name] + 1  # the gradient is a further argument before the others
    elif node.is_aten:
        position = _FORWARD_POSITIONS[name]
    else:
        positions = _PACKED_TRANSPOSED_POSITIONS if _is_packed_transposed(node) else _PACKED_POSITIONS
        position = positions[name]
    return node.args[position] if position < len(node.args) else None


def _spatial(node: FxCall, name: str) -> tuple[int, ...] | None:
    values = _argument(node, name)
    if not isinstance(values, (list, tuple)) or not all(isinstance(value, int) for value in values):
        return None
    return tuple(values) * max(1, _rank(node) or 1) if len(values) == 1 else tuple(values)


def _is_packed_transposed(node: FxCall) -> bool:
    """Whether a packed convolution is transposed: its argument 6 is the dilation, a list, and not the groups."""
    return len(node.args) > 6 and isinstance(node.args[6], (list, tuple))


def _is_transposed(node: FxCall) -> bool | None:
    if not node.is_aten:
        return _is_packed_transposed(node)
    value = _argument(node, "transposed")
    return value if isinstance(value, bool) else None
