"""
What a model can reach: the parts of any value as pickle sees them, a walk over all of them, and what no copy covers.

A function reaches what it closes over, its defaults and the globals that its code reads; a bound method its object.
What only a class reaches (its own attributes, the globals of its methods), or the attribute of a Python module, stays
where it is in a copy.
"""

from __future__ import annotations

import contextlib
import dis
import functools
import gc
import sys
import types
import weakref
from collections.abc import Mapping
from functools import cache
from typing import TYPE_CHECKING, Any

import torch
from torch import fx, nn

if TYPE_CHECKING:
    from collections.abc import Iterator

UNCHANGEABLE = (bool, int, float, complex, str, bytes, type(None), torch.dtype, torch.device, torch.Size)

_LEAVES = (
    *UNCHANGEABLE,
    *(types.ModuleType, types.CodeType, types.FrameType, types.TracebackType, types.GeneratorType, types.CoroutineType),
    *(type, property, fx.Graph, fx.Node, torch.Generator),
)
_LIBRARIES = frozenset({"torch", "numpy", "layoutdoctor", *sys.stdlib_module_names} - {"__main__"})


def parts_of(value: Any, path: str) -> Iterator[tuple[str, Any]]:
    """What a value is made of, each part with the way to it; attributes are read, never computed."""
    if isinstance(value, (types.FunctionType, types.MethodType, functools.partial)):
        yield from _parts_of_callable(value, path)
        return
    if isinstance(value, types.BuiltinMethodType):
        yield path, value.__self__  # such as the ``append`` of a list
        return
    if isinstance(value, weakref.ref):
        yield f"{path}()", value()
        return
    if isinstance(value, torch.jit.ScriptModule):  # its tables are no attributes
        yield from ((f"{path}.{name}", part) for name, part in [*value.named_parameters(), *value.named_buffers()])
    attributes = _attributes_of(value)
    if isinstance(value, Mapping):
        with contextlib.suppress(Exception):  # what a mapping of the user's own may raise
            for key, part in list(value.items()):
                yield f"{path}[{repr(key) if isinstance(key, (str, int)) else '...'}]", part
    elif isinstance(value, (tuple, list, set, frozenset)):
        yield from ((f"{path}[{number}]", part) for number, part in enumerate(list(value)))
    elif not attributes and not isinstance(value, torch.Tensor):
        yield from ((path, part) for part in gc.get_referents(value))  # written in C, such as a deque
    for name, attribute in attributes.items():
        if isinstance(value, nn.Module) and name in ("_modules", "_parameters", "_buffers"):
            yield from ((f"{path}.{key}", part) for key, part in list(attribute.items()))
        elif name != "_compiled_call_impl":  # what model.compile() made; no copy has it
            yield f"{path}.{name}", attribute


def _parts_of_callable(
    value: types.FunctionType | types.MethodType | functools.partial[Any], path: str
) -> Iterator[tuple[str, Any]]:
    if isinstance(value, functools.partial):
        yield from ((f"{path}.{name}", getattr(value, name)) for name in ("func", "args", "keywords"))
    elif isinstance(value, types.MethodType):
        yield from ((path, value.__self__), (path, value.__func__))
    else:
        own_name = value.__qualname__.rpartition("<locals>.")[2]
        cells = zip(value.__code__.co_freevars, value.__closure__ or (), strict=True)
        for name, cell in cells:
            if is_filled(cell):
                yield f"variable {name} of {own_name}", cell.cell_contents
        for name in sorted(global_names(value.__code__) & value.__globals__.keys()):
            yield f"global {name} of {own_name}", value.__globals__[name]
        yield f"a default of {own_name}", value.__defaults__
        yield f"a default of {own_name}", value.__kwdefaults__
    yield from ((f"{path}.{name}", part) for name, part in vars(value).items())


def _attributes_of(value: Any) -> dict[str, Any]:
    """An object's own attributes, those in slots too; nothing of its class is called for them."""
    try:
        found = dict(object.__getattribute__(value, "__dict__"))
    except (AttributeError, TypeError):
        found = {}
    for kind in type(value).__mro__:
        for name in kind.__dict__.get("__slots__", ()) if kind.__module__ not in _LIBRARIES else ():
            slot = kind.__dict__.get(name)
            if isinstance(slot, types.MemberDescriptorType):
                with contextlib.suppress(AttributeError):  # an empty one
                    found[name] = slot.__get__(value)
    return found


def is_filled(cell: types.CellType) -> bool:
    """Whether a variable that a function closes over has a value."""
    try:
        _ = cell.cell_contents
    except ValueError:
        return False
    return True


@cache
def global_names(code: types.CodeType) -> frozenset[str]:
    """Names of the globals that code, and the code within it, reads."""
    names = {str(step.argval) for step in dis.get_instructions(code) if step.opname in ("LOAD_GLOBAL", "LOAD_NAME")}
    inner = [constant for constant in code.co_consts if isinstance(constant, types.CodeType)]
    return frozenset(names).union(*map(global_names, inner))


def _is_of_a_library(thing: Any) -> bool:
    """Whether a function or class is torch's or Python's own: its globals hold nothing of the user's."""
    return str(getattr(thing, "__module__", "")).partition(".")[0] in _LIBRARIES


class Reach:
    """
    Everything that can be reached from a value, each part once and after what it holds itself.

    Attributes:
        values: By identity, which is not used again while this lives.
        paths: The way to each.
    """

    def __init__(self, value: Any, path: str = "") -> None:
        self.values: dict[int, Any] = {}
        self.paths: dict[int, str] = {}
        self._parts: dict[int, list[int]] = {}
        self._order: list[int] = []
        self._walk(value, path)

    def _walk(self, value: Any, path: str) -> None:
        if not self._meet(value, path):
            return
        stack = [(id(value), _walked_parts(value, path))]
        while stack:
            owner, parts = stack[-1]
            for name, part in parts:
                is_new = self._meet(part, name)
                if id(part) in self.values:
                    self._parts[owner].append(id(part))
                if is_new:
                    stack.append((id(part), _walked_parts(part, name)))
                    break
            else:
                self._order.append(owner)
                stack.pop()

    def _meet(self, value: Any, path: str) -> bool:
        if isinstance(value, _LEAVES) or id(value) in self.values:
            return False
        if isinstance(value, types.BuiltinMethodType) and isinstance(value.__self__, _LEAVES):
            return False
        self.values[id(value)], self.paths[id(value)], self._parts[id(value)] = value, path, []
        return True

    def __iter__(self) -> Iterator[tuple[str, Any]]:
        for key in self._order:
            yield self.paths[key], self.values[key]

    def of_kind(self, kind: type | tuple[type, ...]) -> list[tuple[str, Any]]:
        """What is of a kind, with the way to each."""
        return [(path, value) for path, value in self if isinstance(value, kind)]

    def outermost_modules(self) -> list[nn.Module]:
        """Modules that are reached by another way than through a module, in the order in which they are met."""
        found: dict[int, nn.Module] = {}
        seen: set[int] = set()
        waiting = [self._order[-1]] if self._order else []
        while waiting:
            key = waiting.pop()
            if key in seen:
                continue
            seen.add(key)
            if isinstance(self.values[key], nn.Module):
                found[key] = self.values[key]
            else:
                waiting.extend(reversed(self._parts[key]))
        return list(found.values())

    def carriers(self) -> frozenset[int]:
        """Identities of what reaches a tensor or a module, and of those themselves."""
        holders: dict[int, list[int]] = {}
        for owner, parts in self._parts.items():
            for part in parts:
                holders.setdefault(part, []).append(owner)
        found: set[int] = set()
        waiting = [key for key, value in self.values.items() if isinstance(value, (torch.Tensor, nn.Module))]
        while waiting:
            key = waiting.pop()
            if key not in found:
                found.add(key)
                waiting.extend(holders.get(key, ()))
        return frozenset(found)

    def outside(self) -> Iterator[tuple[str, Any]]:
        """Tensors and modules that only a class, or the attribute of a Python module, reaches, each once."""
        beyond = Reach(None)
        for path, value in _roots_outside(self):
            beyond._walk(value, path)
        yield from beyond.of_kind((torch.Tensor, nn.Module))


def _walked_parts(value: Any, path: str) -> Iterator[tuple[str, Any]]:
    """The parts of a value that are worth a look; a library's function may close over the user's, and no more."""
    parts = parts_of(value, path)
    if isinstance(value, types.FunctionType) and _is_of_a_library(value):
        parts = ((name, part) for name, part in parts if not name.startswith("global "))
    return parts


def _roots_outside(reach: Reach) -> Iterator[tuple[str, Any]]:
    functions = [value for _, value in reach.of_kind(types.FunctionType)]
    classes: dict[type, None] = {}
    for _, value in reach:
        if not isinstance(value, (types.FunctionType, dict, list, tuple)):
            classes.update(dict.fromkeys(type(value).__mro__))
    for kind in classes:
        if _is_of_a_library(kind):
            continue
        for name, attribute in list(vars(kind).items()):
            attribute = getattr(attribute, "__func__", attribute)  # static and class methods
            attribute = attribute.fget if isinstance(attribute, property) else attribute
            if isinstance(attribute, types.FunctionType):
                functions.append(attribute)
                yield f"{kind.__name__}.{name}", attribute
            elif isinstance(attribute, (torch.Tensor, nn.Module, dict, list, tuple)):
                yield f"{kind.__name__}.{name}", attribute
    for function in functions:
        if not _is_of_a_library(function):
            yield from _read_from_modules(function)


def _read_from_modules(function: types.FunctionType) -> Iterator[tuple[str, Any]]:
    """Tensors and modules of PyTorch that a function finds as attributes of a Python module."""
    names = _names_within(function.__code__)
    for name in global_names(function.__code__) & function.__globals__.keys():
        module = function.__globals__[name]
        if isinstance(module, types.ModuleType) and module.__name__.partition(".")[0] not in _LIBRARIES:
            for key in names & vars(module).keys():
                part = vars(module)[key]
                if isinstance(part, (torch.Tensor, nn.Module, dict, list, tuple)):
                    yield f"{module.__name__}.{key}", part


def _names_within(code: types.CodeType) -> set[str]:
    inner = [constant for constant in code.co_consts if isinstance(constant, types.CodeType)]
    return set(code.co_names).union(*map(_names_within, inner))
