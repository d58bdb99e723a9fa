"""Convolutions that equal one matrix product, because their patches do not overlap, and their share of the work."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

from layoutdoctor.diagnosis import FxNode, Graph, Size
from layoutdoctor.examination.graphs.layout_agnostic import base_name, convolves
from layoutdoctor.examination.layouts import layout_or_unknown

LEAST_WORK_SHARE = 0.02
"""Such convolutions are not worth a change if their share of a model's work is smaller than this."""

_CALL_FLOPS = 1e6
"""The fixed work of a call: about 20 us, in floating-point operations of a CPU."""

_WEIGHT_FLOPS = 40
"""The work for each element of a convolution's weight, which libraries read and convert in every call."""

_3D_FACTOR = 10
"""
The work of a 3-D convolution relative to a 2-D one: libraries have no good kernel for 3-D patches. On a CPU
(torch 2.13, kernel and input 2x14x14), one took 16 times as long as the matrix product in float32, 77 in bfloat16.
"""

_PRODUCTS = ("mm", "linear", "matmul", "dot_product")


def is_matrix_product(
    kernel: Sequence[Size],
    stride: Sequence[int],
    padding: Sequence[int],
    dilation: Sequence[int],
    image: Sequence[Size],
) -> bool:
    """
    Whether a convolution, neither grouped nor transposed, equals a matrix product, because its patches do not overlap.

    There must be no padding and no dilation. Either the kernel covers the whole image, or kernel size and stride are
    equal and divide the image. False for a pointwise convolution of more than one pixel, which is fast already.

    Args:
        image: Spatial sizes of the input.
    """
    if any(padding) or any(step != 1 for step, size in zip(dilation, kernel, strict=True) if size != 1):
        return False
    if tuple(image) == tuple(kernel):
        return True
    pairs = list(zip(image, kernel, strict=False))
    is_whole = all(isinstance(i, int) and isinstance(k, int) and k and i % k == 0 for i, k in pairs)
    return is_whole and len(image) == len(kernel) and tuple(stride) == tuple(kernel) and set(kernel) != {1}


def convolved(graph: Graph) -> Iterator[tuple[FxNode, FxNode]]:
    """The forward convolutions of a graph, each with its input, if the input is no weight and has a known layout."""
    nodes = {node.name: node for node in graph.nodes}
    for node in graph.nodes:
        source = nodes.get(node.inputs[0]) if _convolves(node) and node.inputs else None
        if source is not None and source.layout is not None and source.tensor != "weight":
            yield node, source


def _convolves(node: FxNode) -> bool:
    return convolves(node.target) and not node.backward and "backward" not in node.target


def share_of(graphs: Iterable[Graph], is_one: Callable[[FxNode], bool]) -> float:
    """Estimates the share of convolutions that fit ``is_one`` in all work of forward convolutions and products."""
    own, every = 0.0, 0.0
    for graph in graphs:
        nodes = {node.name: node for node in graph.nodes}
        for node in graph.nodes:
            is_convolution = _convolves(node)
            if is_convolution or (not node.backward and any(word in base_name(node.target) for word in _PRODUCTS)):
                work = _CALL_FLOPS + (_convolution_flops if is_convolution else _product_flops)(node, nodes)
                own, every = own + (work if is_convolution and is_one(node) else 0.0), every + work
    return own / every if every else 0.0


def _convolution_flops(node: FxNode, nodes: Mapping[str, FxNode]) -> float:
    weight = _sizes(nodes.get(node.inputs[1])) if len(node.inputs) > 1 else ()
    if not weight:
        return 0.0
    for_each = 2 * math.prod(_sizes(node)) / max(weight[0], 1) + _WEIGHT_FLOPS
    return math.prod(weight) * for_each * (_3D_FACTOR if len(weight) == 5 else 1)


def _product_flops(node: FxNode, nodes: Mapping[str, FxNode]) -> float:
    """The work of a product of the last two inputs; the first input of ``addmm`` is the tensor that it adds."""
    left = _sizes(nodes.get(node.inputs[-2])) if len(node.inputs) > 1 else ()
    return 2 * math.prod(_sizes(node)) * left[-1] if left else 0.0


def _sizes(node: FxNode | None) -> tuple[int, ...]:
    """The sizes of a tensor, with 1 for each symbolic size."""
    return tuple(size if isinstance(size, int) else 1 for size in layout_or_unknown(node).shape)
