"""
What a model can reach: the parts of any value as pickle sees them, and a walk over all of them.

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
    Everything that can be reached from a value, each part once, the value first.

    Attributes:
        values: By identity, which is not used again while this lives.
    """

    def __init__(self, value: Any) -> None:
        self.values: dict[int, Any] = {}
        self._parts: dict[int, list[int]] = {}
        waiting = [value] if self._meet(value) else []
        while waiting:
            owner = waiting.pop()
            for part in _walked_parts(owner):
                if self._meet(part):
                    waiting.append(part)
                if id(part) in self.values:
                    self._parts[id(owner)].append(id(part))

    def _meet(self, value: Any) -> bool:
        if isinstance(value, _LEAVES) or id(value) in self.values:
            return False
        if isinstance(value, types.BuiltinMethodType) and isinstance(value.__self__, _LEAVES):
            return False
        self.values[id(value)], self._parts[id(value)] = value, []
        return True

    def tensors(self) -> list[torch.Tensor]:
        """Every tensor, each once."""
        return [value for value in self.values.values() if isinstance(value, torch.Tensor)]

    def outermost_modules(self) -> list[nn.Module]:
        """Modules that are reached by another way than through a module, in the order in which they are met."""
        found: dict[int, nn.Module] = {}
        seen: set[int] = set()
        waiting = [next(iter(self.values))] if self.values else []
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


def _walked_parts(value: Any) -> Iterator[Any]:
    """The parts of a value that are worth a look; a library's function may close over the user's, and no more."""
    is_of_a_library = isinstance(value, types.FunctionType) and _is_of_a_library(value)
    for name, part in parts_of(value, ""):
        if not (is_of_a_library and name.startswith("global ")):
            yield part
