"""Hands a subject to another process of the same interpreter, through files in a private directory."""

from __future__ import annotations

import contextlib
import functools
import importlib
import io
import linecache
import operator
import pickle
import shutil
import sys
import types
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import cloudpickle
import torch
from torch import fx, nn
from torch.nn.utils import parametrize

from layoutdoctor.errors import TransportError, first_line
from layoutdoctor.state.switches import apply_settings, current_settings, hooks_on_all_modules
from layoutdoctor.subjects.copies import reached
from layoutdoctor.units import format_bytes

if TYPE_CHECKING:
    from layoutdoctor.subjects.subject import LoadedSubject

Reduced = tuple[Any, ...]

OBJECTS_FILE = "subject.pickle"
STORAGES_FILE = "storages.pt"
_ELSEWHERE = "set TMPDIR to a folder with room, or diagnose the model as a file"


def save_subject(subject: LoadedSubject, directory: Path) -> None:
    """
    Writes a subject and torch's settings to files, from which ``load_subject`` rebuilds them.

    Values, strides, shared storage, dtype, device, ``requires_grad``, train and eval modes and hooks of modules are
    kept; gradients and hooks on tensors are lost. Classes and functions that the other process cannot import are
    pickled by value, all others by name. Pickling runs code of the user, such as ``__getstate__`` of the model.

    Args:
        directory: An empty directory that no other user may enter (mode 0700).

    Raises:
        TransportError: An object cannot be pickled, the disk has no room, or hooks on all modules are registered.
    """
    name = subject.name
    if hooks_on_all_modules():
        raise TransportError(
            f"cannot hand {name} to another process: hooks on all modules are registered in this one "
            "(register_module_forward_hook and the like); remove the hooks, or diagnose the model as a file"
        )
    try:
        with _quietly(), (directory / OBJECTS_FILE).open("xb") as file, contextlib.ExitStack() as by_value:
            pickler = _Pickler(file, by_value)
            _dump(name, current_settings(), "setting", pickler)
            _dump(name, subject, "subject", pickler)
            pickler.dump(pickler.code_without_file())
        storages = pickler.storages
        size, room = sum(one.nbytes() for one in storages.values()), shutil.disk_usage(directory).free
        if size > room:
            raise TransportError(
                f"cannot hand {name} to another process: its tensors take {format_bytes(size)} on disk, "
                f"{format_bytes(room)} are free in {directory}; {_ELSEWHERE}"
            )
        # Tensors of bytes that share the memory of the storages.
        flat = {key: torch.empty(0, dtype=torch.uint8, device=one.device).set_(one) for key, one in storages.items()}
        torch.save(flat, directory / STORAGES_FILE)
    except (OSError, RuntimeError) as error:
        raise TransportError(f"cannot hand {name} to another process: {first_line(error)}; {_ELSEWHERE}") from error


def load_subject(directory: Path) -> LoadedSubject:
    """
    Rebuilds the subject that ``save_subject`` wrote, and applies the saved settings of torch to this process.

    The tensors are mapped from the file, which may then be deleted. Unpickling runs any code that the file contains.
    This file is safe: the parent process wrote it a moment ago from the user's live objects, into a directory that no
    other user may enter. A saved diagnosis, trace or model file is never loaded by this function.

    Raises:
        TransportError: A setting cannot be made here, or an object cannot be built.
    """
    try:
        with _quietly(), (directory / OBJECTS_FILE).open("rb") as file:
            unpickler = _Unpickler(file, torch.load(directory / STORAGES_FILE, mmap=True, weights_only=True))
            apply_settings(unpickler.load())
            subject: LoadedSubject = unpickler.load()
            linecache.cache.update(unpickler.load())
    except Exception as error:  # the user's classes run here
        raise TransportError(
            f"cannot rebuild the model in another process: {first_line(error)}; "
            "import the model's class from a module, or diagnose the model as a file"
        ) from error
    return subject


@contextlib.contextmanager
def _quietly() -> Iterator[None]:
    """A block that hides warnings: torch's warnings of hooks on tensors and of layouts in beta help no user here."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


class _Pickler(cloudpickle.Pickler):
    """
    A pickler of cloudpickle that leaves out the memory of tensors, and pickles some objects that torch itself cannot.

    Attributes:
        storages: The storages of all pickled tensors, by address.
        last: The object that was reduced last; if pickling fails, the object that cannot be pickled.

    Args:
        by_value: Exit stack. When it closes, the user's modules are no longer registered for pickling by value.
    """

    def __init__(self, file: Any, by_value: contextlib.ExitStack) -> None:
        super().__init__(file, protocol=pickle.HIGHEST_PROTOCOL)
        self.storages: dict[int, torch.UntypedStorage] = {}
        self.last: object = None
        self._by_value = by_value
        self._modules_met = {"__main__"}
        self._to_detach: set[int] = set()
        self._code_files: set[str] = set()

    def code_without_file(self) -> dict[str, tuple[int, None, list[str], str]]:
        """Returns the lines of pickled code that is in no file, such as a notebook's cell, for ``linecache.cache``."""
        lines = {name: linecache.getlines(name) for name in self._code_files if not Path(name).exists()}
        return {name: (sum(map(len, found)), None, found, name) for name, found in lines.items() if found}

    def persistent_id(self, value: Any) -> Any:
        """
        Returns the key and dtype that represent a storage in the stream; None for other objects.

        Source:
            ``Tensor.__reduce_ex__`` returns a ``TypedStorage`` with an ``_untyped_storage``; used in the same way by
            torch/serialization.py, torch 2.7 to 2.13.
        """
        if isinstance(value, torch.TypedStorage):
            storage, dtype = value._untyped_storage, value.dtype
        elif isinstance(value, torch.UntypedStorage):
            storage, dtype = value, torch.uint8
        else:
            return None
        self.storages.setdefault(storage._cdata, storage)
        return storage._cdata, dtype

    def reducer_override(self, value: Any) -> Any:
        """Reduces an object by ``reduce`` of this file, else by cloudpickle."""
        self.last = value
        self._meet_module_of(value)
        if isinstance(value, types.CodeType):
            self._code_files.add(value.co_filename)
        if isinstance(value, nn.Module):
            # An attribute that is a result of autograd, as in weight_norm, becomes a constant in the other process.
            kept = (*vars(value).values(), *value._buffers.values())
            self._to_detach.update(id(t) for t in kept if isinstance(t, torch.Tensor) and not t.is_leaf)
        elif id(value) in self._to_detach and isinstance(value, torch.Tensor):
            return value.detach().__reduce_ex__(pickle.HIGHEST_PROTOCOL)
        ours = reduce(value)
        return super().reducer_override(value) if ours is None else ours

    def _meet_module_of(self, value: Any) -> None:
        """
        Registers a module that another process cannot import, so that its classes and functions are pickled by value.

        Examples are a module made by a notebook or by layoutdoctor, a module loaded from the path of a file, and a
        module whose folder is no longer on ``sys.path``. By itself, cloudpickle pickles only ``__main__`` by value.
        """
        if not isinstance(value, (type, types.FunctionType, types.ModuleType)):
            return
        name = value.__name__ if isinstance(value, types.ModuleType) else value.__module__
        module = sys.modules.get(str(name))
        if name in self._modules_met or not isinstance(module, types.ModuleType):
            return
        self._modules_met.add(name)
        if name not in cloudpickle.list_registry_pickle_by_value() and not is_importable(module):
            cloudpickle.register_pickle_by_value(module)
            self._by_value.callback(cloudpickle.unregister_pickle_by_value, module)


class _Unpickler(pickle.Unpickler):
    """Rebuilds objects on storages that are mapped from a file; changes of a storage stay in this process."""

    def __init__(self, file: Any, flat: dict[int, torch.Tensor]) -> None:
        super().__init__(file)
        self._flat = flat

    def find_class(self, module: str, name: str) -> Any:
        """Finds an object by name; functions that were pickled by value are made by ``_make_function`` of this file."""
        if (module, name) == ("cloudpickle.cloudpickle", "_make_function"):
            return _make_function
        return super().find_class(module, name)

    def persistent_load(self, place: Any) -> torch.TypedStorage:
        """Returns the storage for the key and dtype that ``persistent_id`` returned."""
        key, dtype = place
        return torch.TypedStorage(wrap_storage=self._flat[key].untyped_storage(), dtype=dtype, _internal=True)


def _make_function(code: types.CodeType, scope: dict[str, Any], *rest: Any) -> types.FunctionType:
    """
    Makes a function that was pickled by value, together with its globals.

    The globals belong to no module, so ``__name__`` is removed from them. Otherwise, dynamo would search the globals in
    the module of that name. In this process, ``__main__``, for example, is a different module.

    Source:
        ``cloudpickle.cloudpickle._make_function``; ``InstructionTranslatorBase.get_globals_source_and_value``,
        torch/_dynamo/symbolic_convert.py, torch 2.7 to 2.13.
    """
    scope.pop("__name__", None)
    scope["__builtins__"] = __builtins__
    return types.FunctionType(code, scope, *rest)


def _dump(name: str, value: Any, what: str, pickler: _Pickler) -> None:
    try:
        pickler.dump(value)
    except OSError:
        raise
    except Exception as error:
        place = _place_of(pickler.last, value) or f"something that the {what} uses"
        kind = pickler.last.__name__ if isinstance(pickler.last, type) else type(pickler.last).__name__
        raise TransportError(
            f"cannot hand {name} to another process: {place} ({kind}) cannot be pickled: {first_line(error)}; "
            "make it at its first use, leave it out in __getstate__, or diagnose the model as a file"
        ) from error


def _place_of(culprit: object, holder: Any) -> str | None:
    """Finds the path to an object that cannot be pickled, such as ``model.blocks[1].lock``; None if not found."""
    if isinstance(holder, dict):
        compilers = holder["compilers"].items()
        roots = [(f"the setting {name}.{key}", value) for name, held in compilers for key, value in held.items()]
        return next((path for path, root in roots for _, met in reached(root) if met is culprit), None)
    inputs = (("its positional inputs", holder.args), ("its keyword inputs", holder.kwargs))
    roots = [("model", holder.model), *inputs]
    return next((place for path, root in roots for place, met in reached(root, path) if met is culprit), None)


def reduce(value: Any) -> Reduced | None:
    """
    Returns the ``__reduce__`` tuple of an object that cloudpickle would handle wrongly; None for all other objects.

    Raises:
        PicklingError: The object is an open file, which cloudpickle would read to its end and pickle as text.
    """
    if isinstance(value, types.CodeType):
        return _code_of_file, (value.co_filename, *cloudpickle.Pickler.dispatch_table[types.CodeType](value))
    if isinstance(value, (torch._ops._OpNamespace, torch._ops.OpOverload, torch._ops.OpOverloadPacket)):
        path = value.name if isinstance(value, torch._ops._OpNamespace) else str(value)
        return operator.attrgetter(path), (torch.ops,)
    if isinstance(value, types.FunctionType) and (place := _place_in_module(value)) is not None:
        return getattr, place  # the object itself, because dynamo knows it
    if isinstance(value, fx.GraphModule):
        return _reduce_graph_module(value)
    if isinstance(value, nn.Module) and type(value).__name__ == "GuardsFn":
        return NoGuards, ()
    if isinstance(value, nn.Module) and parametrize.is_parametrized(value):
        return _reduce_parametrized(value)
    if isinstance(value, functools._lru_cache_wrapper) and not _is_found_by_name(value):
        return _with_cache, (value.__wrapped__, value.cache_parameters())
    if type(value) is not types.ModuleType and isinstance(value, types.ModuleType) and is_importable(value):
        return importlib.import_module, (value.__name__,)  # torch's config modules have a class of their own
    if isinstance(value, io.TextIOWrapper) and value not in (sys.stdin, sys.stdout, sys.stderr):
        raise pickle.PicklingError("it is an open file")
    return None


def _code_of_file(file: str, make: Callable[..., types.CodeType], parts: tuple[Any, ...]) -> types.CodeType:
    """Makes a pickled code object with its own file name; cloudpickle 3.1.3 would write ``<dynamic-code>`` instead."""
    return make(*parts).replace(co_filename=file)


def _is_found_by_name(value: Any) -> bool:
    module = sys.modules.get(value.__module__)
    return "<locals>" not in value.__qualname__ and module is not None and is_importable(module)


def _place_in_module(function: types.FunctionType) -> tuple[types.ModuleType, str] | None:
    """Finds the module and name of a function that another function made (``functional.max_pool2d``); else None."""
    module = sys.modules.get(function.__module__)
    if "<locals>" not in function.__qualname__ or module is None or not is_importable(module):
        return None
    return next(((module, name) for name, value in vars(module).items() if value is function), None)


def _with_cache(function: Callable[..., Any], parameters: dict[str, Any]) -> Callable[..., Any]:
    return functools.lru_cache(**parameters)(function)


def _reduce_parametrized(module: nn.Module) -> Reduced:
    """
    Reduces a module with parametrizations, such as weight_norm; the class that torch makes for it refuses pickling.

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


class NoGuards(nn.Module):
    """
    Replaces the module that checks the inputs of an exported program: only dynamo can build the checking function.

    Source:
        ``GuardsFn``, ``_convert_guards_code_to_fn``, torch/export/_unlift.py, torch 2.13; not in torch 2.7.
    """

    def forward(self, *inputs: Any) -> None:
        """Checks nothing."""


def _reduce_graph_module(module: fx.GraphModule) -> Reduced:
    """
    Reduces a graph module of torch.fx or torch.export node by node; torch's own reduction traces the module again.

    Source:
        ``GraphModule.__reduce__``, torch/fx/graph_module.py; it never ends for the module of an exported program,
        which holds methods bound to itself. ``_codegen`` defines how inputs are unpacked; torch 2.7 to 2.13.
    """

    def named(arguments: Any) -> Any:
        return fx.node.map_arg(arguments, lambda other: _NodeName(other.name))

    nodes = [
        ((node.op, node.target, named(node.args), named(node.kwargs), node.name, node.type), node.stack_trace)
        for node in module.graph.nodes
    ]
    attributes = {name: value for name, value in vars(module).items() if name != "_graph"}
    return _empty_graph_module, (), (nodes, module.graph._codegen, attributes), None, None, _set_graph_module


class _NodeName(str):
    """Represents a node in the arguments of another node; a plain ``str`` there is a string argument."""

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

    for (op, target, args, kwargs, name, annotation), stack_trace in nodes:
        args, kwargs = fx.node.map_aggregate(args, resolve), fx.node.map_aggregate(kwargs, resolve)
        made[name] = graph.create_node(op, target, args, kwargs, name, annotation)
        made[name].stack_trace = stack_trace
    graph._codegen = codegen
    module.graph = graph


def is_importable(module: types.ModuleType) -> bool:
    """Whether a process with the same ``sys.path`` finds this module by its name, in the same file."""
    name, own = module.__name__, getattr(module, "__spec__", None)
    parent = sys.modules.get(name.rpartition(".")[0])
    if name.partition(".")[0] in sys.stdlib_module_names:
        return True
    if "." in name and (parent is None or not is_importable(parent)):
        return False
    if own is None:
        return parent is not None  # such as torch.ops: made by its package, which can be imported
    for finder in sys.meta_path:
        with contextlib.suppress(Exception):  # a finder of the user may raise; another finder may know the module
            found = finder.find_spec(name, getattr(parent, "__path__", None))
            if found is not None:
                return bool(found.origin == own.origin)
    return parent is not None and own.origin is None
