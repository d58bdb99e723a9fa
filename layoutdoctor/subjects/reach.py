"""
The parts of any Python value, and a walk over all that it is made of.

A function is made of the variables that it closes over, its defaults and the globals that its code reads. Attributes of
classes and of Python modules are not looked at.
"""

from __future__ import annotations

import dis
import functools
import gc
import sys
import types
from functools import cache
from typing import TYPE_CHECKING, Any

import torch
from torch import fx, nn

if TYPE_CHECKING:
    from collections.abc import Iterator

_LEAVES = (
    *(bool, int, float, complex, str, bytes, type(None), torch.dtype, torch.device, torch.Size, torch.Tensor),
    *(types.ModuleType, types.CodeType, types.FrameType, types.TracebackType, types.GeneratorType),
    *(type, property, fx.Graph, fx.Node, torch.Generator),
)
_LIBRARIES = frozenset({"torch", "numpy", "layoutdoctor", *sys.stdlib_module_names} - {"__main__"})


def reached(value: Any, path: str = "", *, enters_modules: bool = True) -> Iterator[tuple[str, Any]]:
    """A value and all that it is made of, each once with the way to it, such as ``model.blocks[0]``."""
    seen: dict[int, Any] = {}  # keeps what it has met, so that no identity is used again
    waiting = [(path, value)]
    while waiting:
        place, met = waiting.pop()
        if id(met) in seen:
            continue
        seen[id(met)] = met
        yield place, met
        if not isinstance(met, _LEAVES) and (enters_modules or not isinstance(met, nn.Module)):
            waiting.extend(reversed(list(_parts_of(met, place))))


def outermost_modules(model: Any) -> list[nn.Module]:
    """The modules that a callable uses, without those inside of others; the callable itself if it is a module."""
    return [part for _, part in reached(model, enters_modules=False) if isinstance(part, nn.Module)]


def _parts_of(value: Any, path: str) -> Iterator[tuple[str, Any]]:
    if isinstance(value, functools.partial):
        yield from ((f"{path}.{name}", getattr(value, name)) for name in ("func", "args", "keywords"))
    elif isinstance(value, types.MethodType):
        yield from ((path, value.__self__), (path, value.__func__))
    elif isinstance(value, types.FunctionType):
        yield from _parts_of_function(value)
    elif isinstance(value, dict):
        for key, part in list(value.items()):
            yield f"{path}[{repr(key) if isinstance(key, (str, int)) else '...'}]", part
    elif isinstance(value, (tuple, list, set, frozenset)):
        yield from ((f"{path}[{number}]", part) for number, part in enumerate(list(value)))
    elif not hasattr(value, "__dict__"):
        yield from ((path, part) for part in gc.get_referents(value))  # such as a deque, or an object with slots
    for name, attribute in list(getattr(value, "__dict__", {}).items()):
        if isinstance(value, nn.Module) and name in ("_modules", "_parameters", "_buffers"):
            yield from ((f"{path}.{key}", part) for key, part in list(attribute.items()))
        else:
            yield f"{path}.{name}", attribute


def _parts_of_function(function: types.FunctionType) -> Iterator[tuple[str, Any]]:
    own_name = function.__qualname__.rpartition("<locals>.")[2]
    for name, cell in zip(function.__code__.co_freevars, function.__closure__ or (), strict=True):
        if cell != types.CellType():  # a variable that has no value yet
            yield f"variable {name} of {own_name}", cell.cell_contents
    if str(function.__module__).partition(".")[0] not in _LIBRARIES:  # whose globals hold nothing of the user's
        for name in sorted(_global_names(function.__code__) & function.__globals__.keys()):
            yield f"global {name} of {own_name}", function.__globals__[name]
    yield f"a default of {own_name}", function.__defaults__
    yield f"a default of {own_name}", function.__kwdefaults__


@cache
def _global_names(code: types.CodeType) -> frozenset[str]:
    """Names of the globals that code, and the code within it, reads."""
    names = {str(step.argval) for step in dis.get_instructions(code) if step.opname in ("LOAD_GLOBAL", "LOAD_NAME")}
    inner = [constant for constant in code.co_consts if isinstance(constant, types.CodeType)]
    return frozenset(names).union(*map(_global_names, inner))
