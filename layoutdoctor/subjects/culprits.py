"""
Which part of an object cannot be pickled: the way to it, in words.

Faces transport; imports torch's modules only, to know their parts by name.
"""

from __future__ import annotations

import contextlib
import types
from collections.abc import Mapping
from functools import partial
from typing import TYPE_CHECKING, Any

from torch import nn

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator


def find_culprit(
    parts: Iterable[tuple[str, Any]], error: Exception, refusal: Callable[[Any], Exception | None]
) -> tuple[str, object, Exception]:
    """
    The innermost part that cannot be pickled by itself.

    Args:
        parts: What the whole is made of, each with the way to it.
        error: What pickling the whole raised.
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
    """What a function that travels by value takes along."""
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
