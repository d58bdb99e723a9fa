"""
torch.export's reader with the parts disarmed that would run code from the file it reads.

Faces subjects' ``exported``, which has looked at the file before; this holds whatever was overlooked, also where the
file changes in between. Imports errors only.

Source:
    torch/_export/serde/serialize.py (``deserialize_torch_artifact`` falls back to ``weights_only=False``,
    ``_parse_sym_expr`` calls ``sympy.sympify``, ``deserialize_operator`` walks from ``torch`` along any path) and
    torch/export/pt2_archive/_package.py (``pickle.loads``, ``_pickle_load_obj``), torch 2.13. A name that another
    torch lacks is one that it cannot call.
"""

from __future__ import annotations

import contextlib
import functools
import importlib
import logging
import types
from typing import TYPE_CHECKING, Any, NoReturn

import torch

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

_SERIALIZE = "torch._export.serde.serialize"
_PACKAGE = "torch.export.pt2_archive._package"


class UnpicklingRefusedError(RuntimeError):
    """Something in the file asked to be unpickled, or called something that is no operator."""


@contextlib.contextmanager
def data_only(check_program: Callable[[bytes], None], check_expression: Callable[[str], None]) -> Iterator[None]:
    """
    A block in which ``torch.export.load`` reads data and nothing else; not for several threads at once.

    Args:
        check_program: Called with the JSON of each program right before it is used; raises where it is refused.
        check_expression: Called with each text that SymPy is to evaluate; raises where it is refused.
    """
    import sympy

    serialize, package = _module(_SERIALIZE), _module(_PACKAGE)
    deserializer = getattr(serialize, "GraphModuleDeserializer", None)
    pickle_without_loads = types.SimpleNamespace(loads=_refuse, load=_refuse, Unpickler=_refuse)
    with contextlib.ExitStack() as stack:
        for owner, name, make in (
            (torch, "load", _weights_only),
            (sympy, "sympify", functools.partial(_checked_text, check_expression)),
            (serialize, "_bytes_to_dataclass", functools.partial(_checked_program, check_program)),
            (deserializer, "deserialize_operator", _operators_only),
            (package, "pickle", lambda _: pickle_without_loads),
            (package, "_load_aoti", lambda _: _refuse),
            (torch._C, "_pickle_load_obj", lambda _: _refuse),
        ):
            _replace(stack, owner, name, make)
        stack.enter_context(_without_users_classes())
        stack.enter_context(_without_warnings())
        yield


def _module(name: str) -> Any:
    try:
        return importlib.import_module(name)
    except ImportError:
        return None


def _replace(stack: contextlib.ExitStack, owner: Any, name: str, make: Callable[[Any], Any]) -> None:
    original = getattr(owner, name, None)
    if original is not None:
        setattr(owner, name, make(original))
        stack.callback(setattr, owner, name, original)


def _refuse(*_: Any, **__: Any) -> NoReturn:
    raise UnpicklingRefusedError("a part of the file asked to be unpickled or loaded as compiled code")


def _weights_only(load: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(load)
    def load_weights_only(file: Any, map_location: Any = None, *_: Any, **__: Any) -> Any:
        return load(file, map_location=map_location, weights_only=True)

    return load_weights_only


def _checked_text(check: Callable[[str], None], sympify: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(sympify)
    def sympify_checked(value: Any, *args: Any, **kwargs: Any) -> Any:
        if isinstance(value, (str, bytes)):
            check(value if isinstance(value, str) else value.decode("utf-8", "replace"))
        return sympify(value, *args, **kwargs)

    return sympify_checked


def _checked_program(check: Callable[[bytes], None], read: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(read)
    def read_checked(wanted: Any, data: bytes) -> Any:
        if getattr(wanted, "__name__", "") == "ExportedProgram":
            check(data)
        return read(wanted, data)

    return read_checked


def _operators_only(find: Callable[..., Any]) -> Callable[..., Any]:
    import operator

    home = _module("torch._functorch.predispatch")
    wrappers = {value for value in vars(home).values() if isinstance(value, types.FunctionType)} if home else set()

    @functools.wraps(find)
    def find_operator(self: Any, target: str) -> Any:
        found = find(self, target)
        kinds = (str, torch._ops.OpOverload, torch._ops.OpOverloadPacket, torch._ops.HigherOrderOperator)
        is_symbolic = target.startswith(("_operator.", "math.", "torch.sym_", "torch._sym_")) and "__" not in target
        is_harmless = found is not operator.attrgetter and found is not operator.methodcaller
        if not (isinstance(found, kinds) or (is_symbolic and is_harmless) or found in wrappers):
            raise UnpicklingRefusedError(f"a node calls {target[:200]!r}, which is no operator")
        return found

    return find_operator


@contextlib.contextmanager
def _without_users_classes() -> Iterator[None]:
    """Classes that somebody allowed in this process are not allowed in a file of somebody else's."""
    allowed = torch.serialization.get_safe_globals()
    torch.serialization.clear_safe_globals()
    try:
        yield
    finally:
        torch.serialization.add_safe_globals(allowed)


@contextlib.contextmanager
def _without_warnings() -> Iterator[None]:
    """Torch logs tracebacks of what it tries first with a file of an older version."""
    logger = logging.getLogger("torch.export")
    level = logger.level
    logger.setLevel(logging.ERROR)
    try:
        yield
    finally:
        logger.setLevel(level)
