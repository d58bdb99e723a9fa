"""FX graphs as records: nodes with layouts, lines and module paths, calls, their text, and what cannot be followed."""

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

# With the separator: torchvision is a user's package.
_NOT_THE_USERS = (*(f"{folder}{os.sep}" for folder in (Path(torch.__file__).parent, Path(__file__).parents[1])), "<")
_STANDARD_LIBRARY = f"{sysconfig.get_path('stdlib')}{os.sep}"
_FRAME = re.compile(r'^\s*File "(?P<file>[^"]+)", line (?P<line>\d+)', re.MULTILINE)
_SUBSCRIPT = re.compile(r"\[['\"]?([^'\"\]]+)['\"]?\]")


def size_of(value: Any) -> Size:
    """A size or stride as a record holds it; a ``SymInt`` becomes its expression."""
    if type(value) is int:
        return value
    text = str(getattr(getattr(value, "node", None), "expr", value))
    return int(text) if text.lstrip("-").isdigit() else text


def layout_of(value: Any) -> Layout | None:
    """Layout of a tensor, real or fake; None for what is no strided tensor."""
    if not isinstance(value, torch.Tensor) or value.layout is not torch.strided:
        return None
    try:
        return strided_layout([size_of(size) for size in value.shape], [size_of(step) for step in value.stride()])
    except (RuntimeError, TypeError, ValueError):
        return None  # a subclass without strides (nested tensors): not recorded


def first_tensor(value: Any) -> torch.Tensor | None:
    """The first tensor in a node's value."""
    if isinstance(value, torch.Tensor):
        return value
    if isinstance(value, (tuple, list)):
        return next((found for found in map(first_tensor, value) if found is not None), None)
    return None


def is_user_file(path: str) -> bool:
    """Whether a source file is neither torch's, nor Python's, nor ours, nor generated."""
    is_pythons = path.startswith(_STANDARD_LIBRARY) and f"-packages{os.sep}" not in path  # site-packages lie in there
    return not (is_pythons or path.startswith(_NOT_THE_USERS) or "/torchinductor_" in path)


def location_in_stack(stack: str | None) -> SourceLocation | None:
    """The innermost line of the user's code in a printed stack, whose innermost frame is last."""
    frames = reversed(_FRAME.findall(stack or ""))
    return next((source_location(file, int(line)) for file, line in frames if is_user_file(file)), None)


def source_location(file: str, line: int) -> SourceLocation:
    """A location with the text of its line."""
    return SourceLocation(file=file, line=line, code=linecache.getline(file, line).strip() or None)


def clean_module_path(path: str) -> str | None:
    """A module's path without dynamo's access expressions: ``L['model']._modules['body'][0]`` is ``body.0``."""
    text = re.sub(r"^(L\[['\"][^'\"]+['\"]\]|G\[['\"][^'\"]+['\"]\]|L__self__)", "", path)
    text = _SUBSCRIPT.sub(r".\1", text).replace("._modules", "").replace(".slice(None, None, None)", "")
    parts = [part for part in text.split(".") if part and part != "__dict__" and "(" not in part]
    return ".".join(parts) or None


_NO_NAMES: Mapping[str, Sequence[str]] = {}


def names_of_modules(model: torch.nn.Module | None) -> Mapping[str, Sequence[str]]:
    """The names of each module of a model by its ``id`` as text; a module in several places has several."""
    found: dict[str, list[str]] = {}
    for name, module in model.named_modules(remove_duplicate=False) if model is not None else ():
        found.setdefault(str(id(module)), []).append(name)
    return found


def node_module(node: Any, names: Mapping[str, Sequence[str]]) -> str | None:
    """
    Name of the nn.Module an FX node comes from, of the forward node for one of a backward graph.

    Behind a graph break, dynamo's path begins at the module whose forward it traces: then the module's name in the
    model counts.

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
    """The user's line an FX node comes from."""
    return location_in_stack(node.meta.get("stack_trace"))


def target_name(node: str, target: str, extern_targets: Mapping[str, str]) -> str:
    """
    The operator of an FX node.

    Freezing replaces a convolution and what follows it by a pattern's own lowering function, whose text says nothing;
    the external call that the scheduler made of it does.

    Args:
        node: The node's name.
        extern_targets: Operators of external calls, by the node they come from.
    """
    return extern_targets.get(node, target) if target.startswith(("functools.partial(", "<function ")) else target


def fx_nodes(graph_module: Any, names: Mapping[str, Sequence[str]] = _NO_NAMES) -> tuple[FxNode, ...]:
    """
    The nodes of an FX graph, in order.

    Args:
        graph_module: After AOTAutograd, so that nodes carry ``meta["val"]``.
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
    The function that the user's code called to get this node: ``conv2d``, ``contiguous``, ``channel_shuffle``.

    Source:
        ``meta["source_fn_stack"]``: outermost first; each entry is a node's name with a function, a module's class or
        a method's name; torch 2.7 to 2.15.
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
    """Whether the innermost line of the recorded stack is the user's; None where there is no stack."""
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
    """Torch's name of a dtype without the module: ``float32``; None without a tensor."""
    return None if tensor is None else str(tensor.dtype).removeprefix("torch.")


def output_names(graph_module: Any) -> tuple[str, ...]:
    """Names of the nodes an FX graph returns, in order."""
    return tuple(_input_names(graph_module.graph.output_node()))


def not_understood_in(graph_module: Any, buffers: Sequence[Buffer]) -> tuple[str, ...]:
    """Every kind of thing in a graph that is counted as not understood, one line each with how often and where."""
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
        yield "change of an input in place"  # whose strides can differ
    elif "as_strided" in str(target) and "as_strided" in (called_name(node) or ""):
        # Inductor's own passes insert as_strided as well, to fix the strides of what a library call returns.
        yield "aliasing view (as_strided)"


def operator_problem(target: Any) -> str | None:
    """Why nothing is known about an operator; None for torch's own ones on plain tensors."""
    if "quantize" in str(target):  # or a pattern of Inductor's whose text names the operations that it replaces
        return "quantised operation"
    namespace = getattr(target, "namespace", None)
    is_custom = namespace is not None and namespace not in KNOWN_NAMESPACES
    return f"custom operation ({target})" if is_custom else None


def tensor_problem(value: Any) -> str | None:
    """Why a value's layout cannot be followed; None where it can, or where it is no tensor."""
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
    The calls of an FX graph.

    Args:
        extern_targets: Operators of external calls, by the node they come from.
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


# ------------------------------------------ the model as a text that torch alone can run
_WEIGHT_NAME = re.compile(r"_(parameters|buffers)_")
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
