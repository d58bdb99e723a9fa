"""Reads and checks the user's own arguments of ``torch.compile``, and applies them to configurations."""

from __future__ import annotations

import ast
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import msgspec

from layoutdoctor.diagnosis.compile_options import EXPECTED, refused_option
from layoutdoctor.errors import UsageError

if TYPE_CHECKING:
    from layoutdoctor.diagnosis.subject import Configuration

COMPILE_ARGUMENTS = ("mode", "dynamic", "fullgraph")
"""Arguments of ``torch.compile`` that may be given, in addition to ``options``."""


def read_compile_arguments(text: str) -> dict[str, Any]:
    """
    Reads the text between the brackets of a call of ``torch.compile``: ``'mode="reduce-overhead", dynamic=True'``.

    Raises:
        UsageError: The text is no list of keyword arguments with constants, or ``check_compile_arguments`` raises.
    """
    try:
        given = {one.arg: ast.literal_eval(one.value) for one in _keywords(text)}
    except (SyntaxError, ValueError, MemoryError, RecursionError) as error:
        raise UsageError(
            f"cannot compile with {text!r}: expected keyword arguments of torch.compile with constants, "
            """such as 'mode="reduce-overhead", dynamic=True'"""
        ) from error
    return check_compile_arguments({name: value for name, value in given.items() if name is not None})


def _keywords(text: str) -> list[ast.keyword]:
    """Parses keyword arguments; raises ValueError if there are no arguments, or other kinds of arguments."""
    call = ast.parse(f"torch.compile({text})", mode="eval").body
    if not isinstance(call, ast.Call) or call.args or not call.keywords or None in [one.arg for one in call.keywords]:
        raise ValueError(text)
    return call.keywords


def check_compile_arguments(given: Mapping[str, Any]) -> dict[str, Any]:
    """
    Checks the arguments, and returns them without ``backend="inductor"`` and None. Torch itself checks the values.

    Raises:
        UsageError: ``given`` is no mapping, an argument or option is not supported, or a value is no constant.
    """
    if not isinstance(given, Mapping):
        raise UsageError(f"cannot compile with {given!r}: expected arguments of torch.compile by name")
    kept = {name: value for name, value in given.items() if (name, value) != ("backend", "inductor")}
    wrong = [name for name in kept if name not in (*COMPILE_ARGUMENTS, "options")]
    if wrong:
        raise UsageError(
            f"cannot compile with {wrong[0]}={kept[wrong[0]]!r}: expected {', '.join(COMPILE_ARGUMENTS)} or options of "
            "the backend inductor, whose layouts are diagnosed"
        )
    options = {} if kept.get("options") is None else kept["options"]
    if not isinstance(options, Mapping):
        raise UsageError(f"cannot compile with options={options!r}: expected options by name, such as max_autotune")
    for name, value in {**kept, **options}.items():
        if name != "options" and not is_constant(value):
            raise UsageError(f"cannot compile with {name}={value!r}: expected a number, a string, True, False or None")
    if refused := refused_option(options):
        raise UsageError(f"cannot compile with options={refused!r}: expected {EXPECTED}")
    return {name: value for name, value in kept.items() if value is not None}


def is_constant(value: object) -> bool:
    """Whether a value can be stored in a record as an option."""
    return value is None or isinstance(value, (bool, int, float, str))


def compiled_with(configuration: Configuration, given: Mapping[str, Any]) -> Configuration:
    """
    Applies the user's arguments of torch.compile to a configuration. An eager configuration stays as it is.

    The user's mode, dynamic and fullgraph replace those of the configuration. The configuration keeps its own options,
    its choice about freezing and, if it has made one, its choice about layout optimization.

    Args:
        given: The arguments as ``check_compile_arguments`` returns them.
    """
    if configuration.backend != "inductor":
        return configuration
    decides = configuration.layout_optimization != "default"
    own = ("freezing", *(("layout_optimization", "force_layout_optimization") if decides else ()))
    options = {name: value for name, value in given.get("options", {}).items() if name not in own}
    arguments = {name: value for name, value in given.items() if name != "options"}
    return msgspec.structs.replace(
        configuration,
        compile_arguments={**configuration.compile_arguments, **arguments},
        inductor_options={**options, **configuration.inductor_options},
    )
