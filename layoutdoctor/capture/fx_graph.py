"""Turns FX graphs into records: nodes, calls, the model as Python text, and the parts that are not understood."""

from __future__ import annotations

import linecache
import operator
import os
import re
import sysconfig
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

from layoutdoctor.diagnosis import Buffer, FxNode, Layout, Size, SourceLocation, TracedModel, TracedTensor
from layoutdoctor.diagnosis.layout import strided_layout
from layoutdoctor.examination.traced_text import needs_torch_alone
from layoutdoctor.recording.decision import FxCall, FxTensor
from layoutdoctor.recording.torch_trace import KNOWN_NAMESPACES
from layoutdoctor.words import described

# Each folder ends with a separator, because torchvision's folder also begins with "torch" and is a user's package.
_NOT_THE_USERS = (*(f"{folder}{os.sep}" for folder in (Path(torch.__file__).parent, Path(__file__).parents[1])), "<")
_STANDARD_LIBRARY = f"{sysconfig.get_path('stdlib')}{os.sep}"
_CALLED_BY_TORCH = re.compile(r"-packages/(?:filelock|fsspec|jinja2|mpmath|sympy|triton)/")
_FRAME = re.compile(r'^\s*File "(?P<file>[^"]+)", line (?P<line>\d+)', re.MULTILINE)
_SUBSCRIPT = re.compile(r"\[['\"]?([^'\"\]]+)['\"]?\]")
_GETATTR = re.compile(r"getattr\((.*), ['\"]([^'\"]+)['\"]\)(.*)$")


def size_of(value: Any) -> Size:
    """Converts a size or stride for a record: a ``SymInt`` becomes the text of its expression."""
    if type(value) is int:
        return value
    text = str(getattr(getattr(value, "node", None), "expr", value))
    return int(text) if text.lstrip("-").isdigit() else text


def layout_of(value: Any) -> Layout | None:
    """Returns the layout of a real or fake tensor; None if the value is no strided tensor."""
    if not isinstance(value, torch.Tensor) or value.layout is not torch.strided:
        return None
    try:
        return strided_layout([size_of(size) for size in value.shape], [size_of(step) for step in value.stride()])
    except (RuntimeError, TypeError, ValueError):
        return None  # a subclass without strides (nested tensors): not recorded


def first_tensor(value: Any) -> torch.Tensor | None:
    """Returns the first tensor in a node's value, also from nested tuples and lists; None if it holds no tensor."""
    if isinstance(value, torch.Tensor):
        return value
    if isinstance(value, (tuple, list)):
        return next((found for found in map(first_tensor, value) if found is not None), None)
    return None


def is_user_file(path: str) -> bool:
    """Whether a file is the user's: no file of Python, torch, its dependencies or layoutdoctor, and not generated."""
    is_pythons = path.startswith(_STANDARD_LIBRARY) and f"-packages{os.sep}" not in path  # site-packages is inside
    is_torchs = path.startswith(_NOT_THE_USERS) or _CALLED_BY_TORCH.search(path) is not None
    return not (is_pythons or is_torchs or "/torchinductor_" in path)


def location_in_stack(stack: str | None) -> SourceLocation | None:
    """Returns the innermost line of user code in a printed stack, in which the innermost frame comes last."""
    frames = reversed(_FRAME.findall(stack or ""))
    return next((source_location(file, int(line)) for file, line in frames if is_user_file(file)), None)


def source_location(file: str, line: int) -> SourceLocation:
    """Makes a location and reads the text of its line."""
    return SourceLocation(file=file, line=line, code=linecache.getline(file, line).strip() or None)


def clean_module_path(path: str) -> str | None:
    """Turns dynamo's ``L['model']._modules['body'][0]`` into the module path ``body.0``; None for the model itself."""
    while (access := _GETATTR.match(path)) is not None:
        path = f"{access[1]}.{access[2]}{access[3]}"
    text = re.sub(r"^(L\[['\"][^'\"]+['\"]\]|G\[['\"][^'\"]+['\"]\]|L__self__)", "", path)
    text = _SUBSCRIPT.sub(r".\1", text).replace("._modules", "").replace(".slice(None, None, None)", "")
    parts = [part for part in text.split(".") if part and part != "__dict__" and "(" not in part]
    return ".".join(parts) or None


_NO_NAMES: Mapping[str, Sequence[str]] = {}


def names_of_modules(model: torch.nn.Module) -> Mapping[str, Sequence[str]]:
    """Returns the names of each module of a model, by the module's ``id`` as text; a shared module has several."""
    found: dict[str, list[str]] = {}
    for name, module in model.named_modules(remove_duplicate=False):
        found.setdefault(str(id(module)), []).append(name)
    return found


def node_module(node: Any, names: Mapping[str, Sequence[str]]) -> str | None:
    """
    Returns the name of the nn.Module that an FX node comes from; None for the model itself, and if not recorded.

    A node of a backward graph has the module of its forward node. After a graph break, dynamo's path may begin at an
    inner module. The name returned is always the module's name in the whole model.

    Args:
        names: Names of each module in the model, by the module's ``id`` as text.

    Source:
        ``record_nn_module_stack`` (torch/_dynamo/variables/nn_module.py): the keys are ``id`` and ``id@call``.
    """
    stack = node.meta.get("nn_module_stack") or node.meta.get("fwd_nn_module_stack")
    if not stack:
        return None
    key, (path, *_) = list(stack.items())[-1]
    name, known = clean_module_path(str(path)), names.get(str(key).partition("@")[0], [])
    return name if not known or name in known else known[0] or None


def node_location(node: Any) -> SourceLocation | None:
    """Returns the line of user code that an FX node comes from; None if its stack has none."""
    return location_in_stack(node.meta.get("stack_trace"))


def target_name(node: str, target: str, extern_targets: Mapping[str, str]) -> str:
    """
    Returns the name of an FX node's operator.

    Freezing replaces a convolution and the operations after it by the lowering function of a pattern, whose text names
    no operator. The external call that the scheduler made of the node gives the name instead.

    Args:
        node: Name of the node.
        target: Text of the node's target.
        extern_targets: Operator of each external call, by the name of the FX node that it computes.
    """
    return extern_targets.get(node, target) if target.startswith(("functools.partial(", "<function ")) else target


def fx_nodes(graph_module: Any, names: Mapping[str, Sequence[str]] = _NO_NAMES) -> tuple[FxNode, ...]:
    """
    Returns the nodes of an FX graph, in order.

    Args:
        graph_module: A graph after AOTAutograd, whose nodes have ``meta["val"]``.
        names: Names of each module in the model, by the module's ``id`` as text.
    """
    return tuple(_fx_node(node, names) for node in graph_module.graph.nodes)


def _fx_node(node: Any, names: Mapping[str, Sequence[str]]) -> FxNode:
    tensor = first_tensor(node.meta.get("val"))
    return FxNode(
        name=node.name,
        op="call_function" if node.op in ("call_method", "call_module") else node.op,
        target=str(node.target),
        inputs=tuple(_input_names(node)),
        layout=layout_of(tensor),
        dtype=dtype_name(tensor),
        location=node_location(node),
        module=node_module(node, names),
        result_index=_result_index(node),
        called=called_name(node),
        is_called_directly=_is_called_directly(node),
    )


_NUMBERED = re.compile(r"_\d+$")


def called_name(node: Any) -> str | None:
    """
    Returns the name of the function that the user's code called to get this node (``conv2d``); None if not recorded.

    Source:
        ``meta["source_fn_stack"]``, outermost entry first. An entry is a pair: the name of a node, and a function, a
        module's class or the name of a method; torch 2.7 to 2.15.
    """
    stack = node.meta.get("source_fn_stack") or node.meta.get("fwd_source_fn_stack")
    if not stack:
        return None
    name, function = stack[-1]
    if isinstance(function, str):
        return function
    own = getattr(function, "__name__", None)
    if not own or isinstance(function, type):
        return _NUMBERED.sub("", str(name))
    return str(own).partition(".")[0]  # an exported model calls operators with an overload: ``conv2d.default``


def _is_called_directly(node: Any) -> bool | None:
    """Whether the innermost line of the recorded stack is user code; None if the node has no stack."""
    frames = _FRAME.findall(node.meta.get("stack_trace") or "")
    return is_user_file(frames[-1][0]) if frames else None


def _result_index(node: Any) -> int | None:
    if node.op == "call_function" and node.target is operator.getitem and isinstance(node.args[1], int):
        return int(node.args[1])
    return None


def _input_names(node: Any) -> Iterable[str]:
    names: list[str] = []
    torch.fx.node.map_arg((node.args, node.kwargs), lambda argument: names.append(argument.name))
    return names


def dtype_name(tensor: torch.Tensor | None) -> str | None:
    """Returns torch's name of a tensor's dtype, such as ``float32``; None without a tensor."""
    return None if tensor is None else str(tensor.dtype).removeprefix("torch.")


def output_names(graph_module: Any) -> tuple[str, ...]:
    """Returns the names of the nodes that an FX graph outputs, in order."""
    return tuple(_input_names(graph_module.graph.output_node()))


def not_understood_in(graph_module: Any, buffers: Sequence[Buffer]) -> tuple[str, ...]:
    """Lists the reasons why parts of a graph are not understood, one line each, with the names of nodes and buffers."""
    found: dict[str, list[str]] = {}
    for node in graph_module.graph.nodes:
        for what in _problems(node):
            found.setdefault(what, []).append(node.name)
    for buffer in buffers:
        if buffer.problem is not None:
            found.setdefault(buffer.problem, []).append(buffer.name)
    return described(found)


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
        is_sub_graph = any(argument.op == "get_attr" for argument in node.all_input_nodes)
        yield f"sub-graph ({target.name()})" if is_sub_graph else f"custom kernel ({target.name()})"
        return
    foreign = operator_problem(target)
    if foreign is not None:
        yield foreign
    elif str(target) == "aten.copy_.default" and node.args[0].op == "placeholder" and node.meta["val"].dim() > 1:
        yield "change of an input in place"  # the strides of both tensors can differ
    elif "as_strided" in str(target) and "as_strided" in (called_name(node) or ""):
        # Inductor's own passes insert as_strided as well, to fix the strides of the result of a library call.
        yield "aliasing view (as_strided)"


def operator_problem(target: Any) -> str | None:
    """Returns the reason why an operator is not understood (quantised or custom); None for torch's other operators."""
    if "quantize" in str(target):  # also in the text of an Inductor pattern for quantised operations
        return "quantised operation"
    namespace = getattr(target, "namespace", None)
    is_custom = namespace is not None and namespace not in KNOWN_NAMESPACES
    return f"custom operation ({target})" if is_custom else None


def tensor_problem(value: Any) -> str | None:
    """Returns the reason why a tensor's layout cannot be followed; None if there is no such reason."""
    if not isinstance(value, torch.Tensor):
        return None
    if value.layout is not torch.strided:
        return f"{str(value.layout).removeprefix('torch.')} tensor"
    if value.is_complex():
        return "complex tensor"
    if value.is_quantized:
        return "quantised tensor"
    return "symbolic sizes" if any(isinstance(size_of(size), str) for size in value.shape) else None


def calls_of(
    graph_module: Any, extern_targets: Mapping[str, str], names: Mapping[str, Sequence[str]] = _NO_NAMES
) -> Iterator[FxCall]:
    """
    Yields the calls of an FX graph, in order.

    Args:
        extern_targets: Operator of each external call, by the name of the FX node that it computes.
        names: Names of each module in the model, by the module's ``id`` as text.
    """
    for node in graph_module.graph.nodes:
        if node.op == "call_function":
            yield FxCall(
                name=node.name,
                target=target_name(node.name, str(node.target), extern_targets),
                args=tuple(_tensor(part.meta.get("val")) if hasattr(part, "meta") else part for part in node.args),
                result=_tensor(node.meta.get("val")),
                is_aten=str(node.target).startswith("aten."),
                location=node_location(node),
                module=node_module(node, names),
            )


def _tensor(value: object) -> FxTensor | None:
    tensor = first_tensor(value)
    return None if tensor is None else FxTensor(layout_of(tensor), tensor.device.type)


# ------------------------------------------ text of the model that runs with torch alone
_WEIGHT_NAME = re.compile(r"_(parameters|buffers)_")
"""Part of dynamo's names for parameters and buffers, such as ``l_self_modules_conv_parameters_weight_``."""


def traced_model(graph_module: Any) -> TracedModel | None:
    """
    Writes a graph as Python code without the user's names.

    Weights are named ``w0``, ``w1`` and so on, inputs ``x0``, ``x1``; torch.fx names the other values.

    Args:
        graph_module: A graph as dynamo hands it to a backend, with parameters and buffers among its inputs.

    Returns:
        The code with its weights and inputs. None if the code needs more than torch (sub-graphs, constants, custom
        operations), or if an input is no plain tensor of known sizes.
    """
    old = list(graph_module.graph.nodes)
    inputs = [node for node in old if node.op == "placeholder"]
    weights = [node for node in inputs if _WEIGHT_NAME.search(node.name)]
    inputs = [node for node in inputs if node not in weights]
    tensors = [_plain_tensor(node.meta.get("example_value")) for node in (*weights, *inputs)]
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
        if node.target is torch._C._log_api_usage_once:  # it counts uses of torch and computes nothing
            continue
        args, kwargs = torch.fx.node.map_aggregate((node.args, node.kwargs), renamed)
        new[node] = graph.create_node(node.op, node.target, args, kwargs)
    text = graph.python_code("self").src.strip()
    if not needs_torch_alone(text):
        return None
    return TracedModel(text=text, weights=known[: len(weights)], inputs=known[len(weights) :])


def _plain_tensor(value: Any) -> TracedTensor | None:
    """Describes a tensor for a script; None if it is sparse, quantised, of symbolic sizes, or overlaps itself."""
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
