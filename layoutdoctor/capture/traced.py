"""The model as a text that torch alone can run: torch's own text of the graph that dynamo traced."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

import torch

from layoutdoctor.diagnosis.trial import TracedModel, TracedTensor
from layoutdoctor.examination.traced_text import needs_torch_alone

if TYPE_CHECKING:
    from collections.abc import Sequence

_WEIGHT = re.compile(r"_(parameters|buffers)_")
"""In the names that dynamo gives to what it reads: ``l_self_modules_conv_parameters_weight_``."""


def traced_model(graph_module: Any) -> TracedModel | None:
    """
    The text of a graph, with no name of the user's: weights are ``w0``, inputs ``x0``, values what torch calls them.

    Args:
        graph_module: As dynamo hands it to a backend, with parameters and buffers among its inputs.

    Returns:
        None if the text needs more than torch (sub-graphs, constants, custom operations), or an input is no plain
        tensor of known sizes.
    """
    old = list(graph_module.graph.nodes)
    inputs = [node for node in old if node.op == "placeholder"]
    weights = [node for node in inputs if _WEIGHT.search(node.name)]
    inputs = [node for node in inputs if node not in weights]
    tensors = [_tensor(node.meta.get("example_value")) for node in (*weights, *inputs)]
    known = tuple(tensor for tensor in tensors if tensor is not None)
    if len(known) < len(tensors):
        return None
    graph, new = torch.fx.Graph(), dict[Any, Any]()
    for stem, nodes in (("w", weights), ("x", inputs)):
        new |= {node: graph.placeholder(f"{stem}{number}") for number, node in enumerate(nodes)}

    def renamed(value: Any) -> Any:
        if isinstance(value, torch.fx.Node):
            return new[value]
        return str(value) if isinstance(value, torch.device) else value

    for node in old[len(known) :]:
        args, kwargs = torch.fx.node.map_aggregate((node.args, node.kwargs), renamed)
        new[node] = graph.create_node(node.op, node.target, args, kwargs)
    text = graph.python_code("self").src.strip()
    if not needs_torch_alone(text):
        return None
    return TracedModel(text=text, weights=known[: len(weights)], inputs=known[len(weights) :])


def _tensor(value: Any) -> TracedTensor | None:
    """A tensor as a script can make another one: None for one of symbolic sizes, sparse, or that overlaps itself."""
    if not isinstance(value, torch.Tensor) or value.layout is not torch.strided or value.is_quantized:
        return None
    sizes: Sequence[Any] = (*value.shape, *value.stride())
    if any(type(size) is not int for size in sizes) or 0 in value.stride():
        return None
    return TracedTensor(
        shape=tuple(value.shape),
        stride=tuple(value.stride()),
        dtype=str(value.dtype).removeprefix("torch."),
        requires_grad=value.requires_grad,
    )
