"""
What in a compiled graph cannot be followed, in words: nothing is claimed about it, and the report names it.

Faces the capture session.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from layoutdoctor.capture.fx_graph import called_name, size_of

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from layoutdoctor.records import Buffer

_KNOWN_NAMESPACES = frozenset({"aten", "prims", "inductor", "inductor_prims", "prim", "mkldnn", "onednn", "rngprims"})
_SUB_GRAPHS = frozenset(
    "associative_scan autograd_function_apply checkpoint cond flex_attention flex_attention_backward foreach_map "
    "invoke_subgraph map map_impl scan tag_activation_checkpoint while_loop wrap wrap_with_set_grad_enabled".split()
)
_MOST_NAMED = 3


def not_understood_in(graph_module: Any, buffers: Sequence[Buffer]) -> tuple[str, ...]:
    """
    Every kind of thing in a graph that is counted as not understood, one line each with how often and where.

    Args:
        graph_module: The post-AOT FX graph.
        buffers: Inductor's buffers, whose loops may not have been read.
    """
    found: dict[str, list[str]] = {}
    for node in graph_module.graph.nodes:
        for what in _problems(node):
            found.setdefault(what, []).append(node.name)
    for buffer in buffers:
        if buffer.problem is not None:
            found.setdefault(buffer.problem, []).append(buffer.name)
    return described(found)


def described(found: Mapping[str, Sequence[str]]) -> tuple[str, ...]:
    """
    One line for each kind of thing: what it is, and where.

    Args:
        found: Names of nodes or buffers, by what is not understood about them.
    """
    return tuple(f"{what}: {_listed(names)}" for what, names in found.items())


def _listed(names: Sequence[str]) -> str:
    more = f" and {len(names) - _MOST_NAMED} more" if len(names) > _MOST_NAMED else ""
    return ", ".join(names[:_MOST_NAMED]) + more


def _problems(node: Any) -> Iterator[str]:
    if node.op == "call_function":
        yield from _operator_problems(node)
    values = node.meta.get("val")
    for value in values if isinstance(values, (tuple, list)) else (values,):
        what = tensor_problem(value)
        if what is not None:
            yield what


def _operator_problems(node: Any) -> Iterator[str]:
    target = node.target
    if isinstance(target, torch._ops.HigherOrderOperator):
        name = target.name() if callable(getattr(target, "name", None)) else str(target)
        is_sub_graph = name in _SUB_GRAPHS or any(argument.op == "get_attr" for argument in node.all_input_nodes)
        yield f"sub-graph ({name})" if is_sub_graph else f"custom kernel ({name})"
        return
    foreign = operator_problem(target)
    if foreign is not None:
        yield foreign
    elif str(target) == "aten.copy_.default" and _changes_input(node):
        yield "change of an input in place"
    elif "as_strided" in str(target) and "as_strided" in (called_name(node) or ""):
        # Inductor's own passes insert as_strided as well, to fix the strides of what a library call returns.
        yield "aliasing view (as_strided)"


def operator_problem(target: Any) -> str | None:
    """
    Why nothing is known about an operator; None for torch's own ones on plain tensors.

    Args:
        target: An ``OpOverload``, or what else an FX node calls.
    """
    namespace = getattr(target, "namespace", None)
    if namespace is not None and namespace not in _KNOWN_NAMESPACES:
        return f"{'quantised' if namespace.startswith('quantized') else 'custom'} operation ({target})"
    return f"quantised operation ({target})" if "quantize" in str(target) else None


def _changes_input(node: Any) -> bool:
    """Whether a copy is into a graph input of more than one dimension, whose strides can differ."""
    target = node.args[0] if node.args else None
    value = node.meta.get("val")
    is_input = getattr(target, "op", "") == "placeholder"
    return is_input and (not isinstance(value, torch.Tensor) or value.dim() > 1)


def tensor_problem(value: Any) -> str | None:
    """
    Why a value's layout cannot be followed; None where it can, or where it is no tensor.

    Args:
        value: The value of a node.
    """
    if not isinstance(value, torch.Tensor):
        return None
    if value.layout is not torch.strided:
        return f"{str(value.layout).removeprefix('torch.')} tensor"
    if value.is_complex():
        return "complex tensor"
    if value.is_quantized:
        return "quantised tensor"
    return "symbolic sizes" if any(isinstance(size_of(size), str) for size in value.shape) else None
