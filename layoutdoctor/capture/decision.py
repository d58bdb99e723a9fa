"""Inductor's layout decision as torch has it at hand: the settings in effect, and the calls of the graph."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from layoutdoctor.capture.compat import counts_backward_convolutions, inductor_config
from layoutdoctor.capture.fx_graph import first_tensor, layout_of, node_location, node_module, target_name
from layoutdoctor.recording.decision import Call, RawDecision, Tensor

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence


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


def calls_of(graph_module: Any, extern_targets: Mapping[str, str]) -> Iterator[Call]:
    """
    The calls of an FX graph.

    Args:
        extern_targets: Operators of external calls, by the node they come from.
    """
    for node in graph_module.graph.nodes:
        if node.op == "call_function":
            yield Call(
                name=node.name,
                target=target_name(node, extern_targets),
                args=tuple(_tensor(part.meta.get("val")) if hasattr(part, "meta") else part for part in node.args),
                result=_tensor(node.meta.get("val")),
                is_aten=str(node.target).startswith("aten."),
                location=node_location(node),
                module=node_module(node),
            )


def _tensor(value: object) -> Tensor | None:
    tensor = first_tensor(value)
    return None if tensor is None else Tensor(layout_of(tensor), tensor.device.type)
