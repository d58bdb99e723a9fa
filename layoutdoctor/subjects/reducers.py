"""
How pickle takes apart what it cannot take apart by itself: parametrized modules, graph modules, operators and the like.

And which part of an object it cannot take apart at all, with the way to it in words.
"""

from __future__ import annotations

import contextlib
import functools
import importlib
import inspect
import io
import pickle
import sys
import types
from collections.abc import Mapping
from functools import partial
from typing import TYPE_CHECKING, Any

import cloudpickle
import torch
from torch import fx, nn
from torch.nn.utils import parametrize

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

Reduced = tuple[Any, ...]

_STANDARD_STREAMS = ("stdin", "stdout", "stderr")


def reduce(value: Any) -> Reduced | None:
    """
    What pickle needs to build an object again, in the form ``__reduce__`` returns it; None to leave it to cloudpickle.

    Raises:
        PicklingError: It is an open file, which cloudpickle would read to its end and take for text, or code that calls
            an operator which only this process knows.
    """
    if isinstance(value, types.CodeType):
        _check_operators(value)
        return None
    if isinstance(value, torch._ops._OpNamespace):
        return getattr, (torch.ops, value.name)
    if isinstance(value, fx.GraphModule):
        return _reduce_graph_module(value)
    if isinstance(value, nn.Module) and type(value).__name__ == "GuardsFn":
        return _reduce_guards(value)
    if isinstance(value, nn.Module) and parametrize.is_parametrized(value):
        return _reduce_parametrized(value)
    if isinstance(value, (torch._ops.OpOverload, torch._ops.OpOverloadPacket)):
        name, _, overload = str(value).partition(".")[2].partition(".")
        return _operator, (str(value).partition(".")[0], name, overload)
    if isinstance(value, functools._lru_cache_wrapper) and not _is_found_by_name(value):
        return _with_cache, (value.__wrapped__, value.cache_parameters())
    if type(value) is not types.ModuleType and isinstance(value, types.ModuleType) and is_importable(value):
        return importlib.import_module, (value.__name__,)  # torch's settings are modules of a class of their own
    if isinstance(value, io.TextIOWrapper) and all(value is not getattr(sys, name) for name in _STANDARD_STREAMS):
        raise pickle.PicklingError("it is an open file")
    return None


def _check_operators(code: types.CodeType) -> None:
    """
    Refuses code that travels by value and calls an operator that Python code registered: nobody registers it there.

    Source:
        ``torch.library._defs``, such as ``{"mylib::double"}``, torch 2.7 to 2.15.
    """
    used = set(code.co_names)
    if "ops" not in used:
        return
    for operator in getattr(torch.library, "_defs", ()):
        namespace, _, name = str(operator).partition("::")
        if {namespace, name.partition(".")[0]} <= used:
            raise pickle.PicklingError(f"it calls the operator {operator}, which is registered in this process only")


def _is_found_by_name(value: Any) -> bool:
    module = sys.modules.get(value.__module__)
    found: Any = module if module is not None and is_importable(module) else None
    for name in value.__qualname__.split("."):
        found = getattr(found, name, None)
    return found is value


def _with_cache(function: Callable[..., Any], parameters: dict[str, Any]) -> Callable[..., Any]:
    return functools.lru_cache(**parameters)(function)


def _operator(namespace: str, name: str, overload: str) -> Any:
    """``torch.ops.aten.relu.default``; raises where this process has no operator of that name."""
    packet = getattr(getattr(torch.ops, namespace), name)
    return getattr(packet, overload) if overload else packet


def _reduce_parametrized(module: nn.Module) -> Reduced:
    """
    A module with parametrizations, such as weight_norm: its class is made for it alone and refuses to be pickled.

    Source:
        ``_inject_new_class``, ``_inject_property``, torch/nn/utils/parametrize.py, torch 2.7 to 2.13.
    """
    plain = parametrize.type_before_parametrizations(module)
    return plain.__new__, (plain,), vars(module), None, None, _set_parametrized


def _set_parametrized(module: nn.Module, state: dict[str, Any]) -> None:
    module.__dict__.update(state)
    parametrize._inject_new_class(module)
    for name in module.parametrizations:
        parametrize._inject_property(module, name)


def _reduce_graph_module(module: fx.GraphModule) -> Reduced:
    """
    A graph module, as torch.fx or torch.export made it, node by node; torch's own way traces it again instead.

    Source:
        ``GraphModule.__reduce__``, torch/fx/graph_module.py; an exported program's module holds methods bound to
        itself, which sends that way round in circles. ``_codegen`` says how inputs are unpacked; torch 2.7 to 2.13.
    """
    nodes = [
        (
            node.op,
            node.target,
            fx.node.map_arg(node.args, lambda other: _NodeName(other.name)),
            fx.node.map_arg(node.kwargs, lambda other: _NodeName(other.name)),
            node.name,
            node.type,
            {"stack_trace": node.meta["stack_trace"]} if node.meta.get("stack_trace") else {},
        )
        for node in module.graph.nodes
    ]
    attributes = {name: value for name, value in vars(module).items() if name != "_graph"}
    return _empty_graph_module, (), (nodes, module.graph._codegen, attributes), None, None, _set_graph_module


def _reduce_guards(module: nn.Module) -> Reduced | None:
    """
    What an exported program checks its inputs with: a function within a setting of dynamo's, which is no data.

    Source:
        ``GuardsFn``, ``_convert_guards_code_to_fn``, torch/export/_unlift.py, torch 2.13; not in torch 2.7.
    """
    forward = vars(module).get("forward")
    if not isinstance(forward, types.FunctionType) or "func" not in forward.__code__.co_freevars:
        return None
    check = inspect.getclosurevars(forward).nonlocals["func"]
    attributes = {name: value for name, value in vars(module).items() if name != "forward"}
    return type(module).__new__, (type(module),), (attributes, check), None, None, _set_guards


def _set_guards(module: nn.Module, state: Reduced) -> None:
    attributes, check = state
    module.__dict__.update(attributes)
    module.forward = torch._dynamo.dont_skip_tracing(check)


class _NodeName(str):
    """Stands for a node among another node's arguments, where a plain string is an argument of its own."""

    __slots__ = ()


def _empty_graph_module() -> fx.GraphModule:
    return fx.GraphModule(nn.Module(), fx.Graph())


def _set_graph_module(module: fx.GraphModule, state: Reduced) -> None:
    nodes, codegen, attributes = state
    module.__dict__.update(attributes)
    graph = fx.Graph()
    made: dict[str, fx.Node] = {}

    def resolve(argument: Any) -> Any:
        return made[argument] if isinstance(argument, _NodeName) else argument

    for op, target, args, kwargs, name, annotation, meta in nodes:
        args, kwargs = fx.node.map_aggregate(args, resolve), fx.node.map_aggregate(kwargs, resolve)
        made[name] = graph.create_node(op, target, args, kwargs, name, annotation)
        made[name].meta.update(meta)
    graph._codegen = codegen
    module.graph = graph


class ValueModules:
    """
    Modules that another process cannot import, whose classes and functions have to travel by value.

    Such are a module that a notebook or layoutdoctor made, one loaded from a file by its path, and one whose folder is
    on ``sys.path`` no more. cloudpickle knows ``__main__`` only; it is told of each as it is met, and told to forget it
    at the end of the block.
    """

    def __init__(self) -> None:
        self._met: set[str] = set()
        self._registered: list[types.ModuleType] = []

    def __enter__(self) -> ValueModules:
        """Begins a block in which ``meet`` may be called."""
        return self

    def __exit__(self, *_: object) -> None:
        """Takes back what was registered."""
        for module in self._registered:
            cloudpickle.unregister_pickle_by_value(module)

    def meet(self, value: Any) -> None:
        """Registers the module that a class or function comes from, or that the value is, where it must be."""
        if isinstance(value, (type, types.FunctionType)):
            name = getattr(value, "__module__", None)
        elif isinstance(value, types.ModuleType):
            name = value.__name__
        else:
            return
        if not isinstance(name, str) or name in self._met:
            return
        self._met.add(name)
        module = sys.modules.get(name)
        known = (*cloudpickle.list_registry_pickle_by_value(), "__main__")
        if isinstance(module, types.ModuleType) and name not in known and not is_importable(module):
            cloudpickle.register_pickle_by_value(module)
            self._registered.append(module)


def is_importable(module: types.ModuleType) -> bool:
    """Whether a process with the same ``sys.path`` finds this module under its name, and in the same file."""
    name, own = module.__name__, getattr(module, "__spec__", None)
    parent, _, _ = name.rpartition(".")
    if name.partition(".")[0] in sys.stdlib_module_names:
        return True
    if parent and not is_importable(sys.modules.get(parent, types.ModuleType("_missing"))):
        return False
    if own is None:
        return bool(parent)  # such as torch.ops: made by its package, which can be imported
    path = getattr(sys.modules[parent], "__path__", None) if parent else None
    for finder in sys.meta_path:
        try:
            found = finder.find_spec(name, path)
        except Exception:  # a finder of the user's own; another one may know
            continue
        if found is not None:
            return bool(found.origin == own.origin)
    return bool(parent) and own.origin is None


def find_culprit(
    parts: Iterable[tuple[str, Any]], error: Exception, refusal: Callable[[Any], Exception | None]
) -> tuple[str, object, Exception]:
    """
    The innermost part that cannot be pickled by itself.

    Args:
        parts: What the whole is made of, each with the way to it.
        refusal: What pickling a part raises; None where it does not.

    Returns:
        The way to the part, the part, and what it raised.
    """
    place, value, why = "it", object(), error
    seen: set[int] = set()
    while True:
        for name, part in parts:
            if id(part) in seen:
                continue
            seen.add(id(part))
            refused = refusal(part)
            if refused is not None:
                place, value, why = name, part, refused
                break
        else:
            return place, value, why
        parts = _parts(value, place)


def _parts(value: Any, place: str) -> Iterator[tuple[str, Any]]:
    """What an object is made of as pickle sees it, each with the way to it."""
    if isinstance(value, nn.Module):
        for name, attribute in vars(value).items():
            if name in ("_modules", "_parameters", "_buffers"):
                yield from ((f"{place}.{key}", part) for key, part in attribute.items())
            else:
                yield f"{place}.{name}", attribute
    elif isinstance(value, Mapping):
        yield from ((f"{place}[{key!r}]", part) for key, part in value.items())
    elif isinstance(value, (tuple, list, set, frozenset)):
        yield from ((f"{place}[{number}]", part) for number, part in enumerate(value))
    elif isinstance(value, partial):
        yield from ((f"{place}.{name}", getattr(value, name)) for name in ("func", "args", "keywords"))
    elif isinstance(value, types.MethodType):
        yield from ((place, value.__self__), (place, value.__func__))
    elif isinstance(value, types.FunctionType):
        yield from _parts_of_function(value, place)
    elif hasattr(value, "__dict__"):
        # Functions last: a class's methods know the class, and with it whatever else it holds.
        parts = sorted(vars(value).items(), key=lambda item: isinstance(item[1], types.FunctionType))
        yield from ((f"{place}.{name}", part) for name, part in parts)
    if not isinstance(value, (type, types.FunctionType, types.ModuleType)):
        yield f"class {type(value).__name__}", type(value)


def _parts_of_function(function: types.FunctionType, place: str) -> Iterator[tuple[str, Any]]:
    cells = zip(function.__code__.co_freevars, function.__closure__ or (), strict=True)
    names = {name for code in _codes(function.__code__) for name in code.co_names}
    for name, cell in cells:
        with contextlib.suppress(ValueError):  # an empty cell
            yield f"variable {name} of {function.__qualname__}", cell.cell_contents
    for name in sorted(names & function.__globals__.keys()):
        yield f"global {name} of {function.__qualname__}", function.__globals__[name]
    yield f"a default of {function.__qualname__}", (function.__defaults__, function.__kwdefaults__)
    yield from ((f"{place}.{name}", part) for name, part in vars(function).items())


def _codes(code: types.CodeType) -> Iterator[types.CodeType]:
    yield code
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            yield from _codes(constant)
