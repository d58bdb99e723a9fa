"""
A subject on its way to another process of the same interpreter: written to a private directory and rebuilt.

Below: how pickle takes apart what it cannot take apart by itself, and which part of an object it cannot take at all.
"""

from __future__ import annotations

import contextlib
import functools
import importlib
import inspect
import io
import linecache
import os
import pickle
import shutil
import stat
import sys
import types
import warnings
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import cloudpickle
import torch
from torch import fx, nn
from torch.nn.utils import parametrize

from layoutdoctor.errors import SubjectError, first_line
from layoutdoctor.state.switches import apply_settings, current_settings
from layoutdoctor.subjects.reach import parts_of
from layoutdoctor.subjects.subject import LoadedSubject
from layoutdoctor.units import format_bytes

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator
    from io import BufferedWriter

Reduced = tuple[Any, ...]

OBJECTS_FILE = "subject.pickle"
SETTINGS_FILE = "settings.pickle"
STORAGES_FILE = "storages.bin"

_ALIGNMENT_BYTES = 64  # as torch aligns what it allocates on a CPU
_CHUNK_BYTES = 64 * 2**20  # what of a GPU's storage is held in memory at a time


def save_subject(subject: LoadedSubject, directory: Path) -> None:
    """
    Writes a subject so that ``load_subject`` can rebuild it in another process of this interpreter.

    Values, strides, shared storage, dtype, device, ``requires_grad``, train and eval modes and hooks of the modules
    stay; gradients and hooks on tensors do not travel, as with every copy of ours. Weights go from where they are to
    the disk, a chunk at a time. Classes and functions that the other process cannot import travel by value, all others
    by their name. What torch is set to goes with them, for ``take_over_settings``. Pickling calls what the model's
    classes define for it, such as ``__getstate__``: code of the user's.

    Args:
        directory: An empty one of ours that nobody else may enter (mode 0700).

    Raises:
        SubjectError: Something in it cannot be pickled, the disk has no room, or it depends on this process's state;
            nothing is left behind.
    """
    _check_private(directory, stat.S_ISDIR)
    _check_no_global_hooks(subject.name)
    paths = [directory / name for name in (OBJECTS_FILE, STORAGES_FILE, SETTINGS_FILE)]
    try:
        with _quietly(), ValueModules() as modules:
            storages = _Storages()
            with _created(paths[0]) as file:
                _dump(subject, file, storages, modules)
            _check_room(subject.name, storages.total_bytes, directory)
            with _created(paths[1]) as file:
                storages.write(file)
            with _created(paths[2]) as file:
                _dump_settings(subject.name, file, modules)
    except BaseException as error:
        for path in paths:
            path.unlink(missing_ok=True)
        if isinstance(error, OSError):
            raise SubjectError(
                f"cannot hand {subject.name} to another process: {error.strerror or error}; "
                "set TMPDIR to a folder with room, or diagnose it as a file"
            ) from error
        raise


def take_over_settings(directory: Path) -> None:
    """
    Sets this process, which is to run the subject, as the one was that saved it: threads, dtypes, compilers' settings.

    Raises:
        SubjectError: It is not private to this user, or a setting cannot be made here.
    """
    _check_private(directory, stat.S_ISDIR)
    _check_private(directory / SETTINGS_FILE, stat.S_ISREG)
    try:
        with _quietly(), (directory / SETTINGS_FILE).open("rb") as file:
            apply_settings(pickle.load(file))
    except Exception as error:  # a setting may hold an object of the user's
        raise SubjectError(
            f"cannot set up another process like this one: {first_line(error)}; diagnose it as a file"
        ) from error


def load_subject(directory: Path) -> LoadedSubject:
    """
    Rebuilds the subject that ``save_subject`` wrote; its tensors are mapped from the file, which may then be deleted.

    Unpickling runs whatever the file says. That is fine here and nowhere else: the file is what our own parent wrote a
    moment ago from the user's live objects, into a directory that belongs to this user and that no other may enter,
    both of which is looked at before a byte is read. A saved diagnosis, trace or model file never comes this way.

    Raises:
        SubjectError: The directory or a file is not private to this user, or an object cannot be built here.
    """
    _check_private(directory, stat.S_ISDIR)
    for name in (OBJECTS_FILE, STORAGES_FILE):
        _check_private(directory / name, stat.S_ISREG)
    try:
        with _quietly(), (directory / OBJECTS_FILE).open("rb") as file:
            unpickler = _Unpickler(file, directory / STORAGES_FILE)
            subject = unpickler.load()
            linecache.cache.update(unpickler.load())
            torch._utils._validate_loaded_sparse_tensors()  # or they are kept until somebody calls it
    except Exception as error:  # the user's classes run here
        raise SubjectError(
            f"cannot rebuild the model in another process: {first_line(error)}; "
            "import what defines it from a module, or diagnose it as a file"
        ) from error
    if not isinstance(subject, LoadedSubject):
        raise SubjectError(f"cannot rebuild the model in another process: {directory} holds {type(subject).__name__}")
    return replace(subject, is_ours=True)


def _check_private(path: Path, is_kind: Any) -> None:
    try:
        status = path.lstat()
    except OSError as error:
        raise SubjectError(f"cannot use {path} to hand over a model: {error.strerror or error}") from error
    if not is_kind(status.st_mode) or status.st_uid != os.geteuid() or status.st_mode & 0o077:
        raise SubjectError(
            f"cannot use {path} to hand over a model: expected a directory and files of this user that no other may "
            f"read or write, got {stat.filemode(status.st_mode)}, owner {status.st_uid}"
        )


def _check_room(name: str, needed_bytes: int, directory: Path) -> None:
    room = shutil.disk_usage(directory).free
    if needed_bytes > room:
        raise SubjectError(
            f"cannot hand {name} to another process: its tensors take {format_bytes(needed_bytes)} on disk, "
            f"{format_bytes(room)} are free in {directory}; set TMPDIR to a folder with room, or diagnose it as a file"
        )


def _check_no_global_hooks(name: str) -> None:
    """
    Refuses where every module's call runs hooks that belong to this process.

    Source:
        ``_global_forward_hooks`` and the like, torch/nn/modules/module.py, torch 2.7 to 2.13.
    """
    kinds = ("forward_hooks", "forward_pre_hooks", "backward_hooks", "backward_pre_hooks")
    if any(getattr(nn.modules.module, f"_global_{kind}", None) for kind in kinds):
        raise SubjectError(
            f"cannot hand {name} to another process: hooks on all modules are registered in this one "
            "(register_module_forward_hook and the like); remove them, or diagnose it as a file"
        )


@contextlib.contextmanager
def _quietly() -> Iterator[None]:
    """No warnings meanwhile: torch's own, on hooks of tensors and on layouts in beta, tell the user nothing here."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


@contextlib.contextmanager
def _created(path: Path) -> Iterator[BufferedWriter]:
    """A new file that only this user may read; never one that is there already."""
    with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
        yield file


class _Storages:
    """The memory behind tensors, each region once, in the order in which it is to be written."""

    def __init__(self) -> None:
        self.total_bytes = 0
        self._offsets: dict[tuple[str, int, int], int] = {}
        self._storages: list[tuple[int, torch.UntypedStorage]] = []  # kept, so that no address is used again

    def place(self, storage: torch.UntypedStorage) -> tuple[int, int, str]:
        """Where in the file a storage goes: offset and size in bytes, and its device."""
        size, device = storage.nbytes(), str(storage.device)
        if size == 0:
            return 0, 0, device
        key = (device, storage.data_ptr(), size)
        if key not in self._offsets:
            self._offsets[key] = self.total_bytes
            self._storages.append((self.total_bytes, storage))
            self.total_bytes += -(-size // _ALIGNMENT_BYTES) * _ALIGNMENT_BYTES
        return self._offsets[key], size, device

    def write(self, file: BufferedWriter) -> None:
        """Writes every storage to its place, a chunk at a time, and gives the file its full size."""
        for offset, storage in self._storages:
            flat = torch.empty(0, dtype=torch.uint8, device=storage.device).set_(storage)
            for start in range(0, flat.numel(), _CHUNK_BYTES):
                file.seek(offset + start)
                file.write(memoryview(flat[start : start + _CHUNK_BYTES].cpu().numpy()))
        file.truncate(self.total_bytes)


class _Pickler(cloudpickle.Pickler):
    """cloudpickle with tensors' memory kept out of the stream, and with what torch makes hard made possible."""

    def __init__(self, file: Any, storages: _Storages, modules: ValueModules) -> None:
        super().__init__(file, protocol=pickle.HIGHEST_PROTOCOL)
        self._storages, self._modules = storages, modules
        self._to_detach: set[int] = set()
        self._code_files: set[str] = set()

    def code_without_file(self) -> dict[str, tuple[int, None, list[str], str]]:
        """Lines of the code met that is in no file, such as a notebook's cell, as ``linecache`` keeps them."""
        lines = {name: linecache.getlines(name) for name in self._code_files if not Path(name).exists()}
        return {name: (sum(map(len, found)), None, found, name) for name, found in lines.items() if found}

    def persistent_id(self, value: Any) -> Any:
        """
        Stands for a storage in the stream; None for everything else.

        Source:
            ``TypedStorage`` and its ``_untyped_storage`` are what ``Tensor.__reduce_ex__`` hands out, as in
            torch/serialization.py, torch 2.7 to 2.13.
        """
        if isinstance(value, torch.TypedStorage):
            return (*self._storages.place(value._untyped_storage), value.dtype)
        if isinstance(value, torch.UntypedStorage):
            return (*self._storages.place(value), torch.uint8)
        return None

    def reducer_override(self, value: Any) -> Any:
        """How to take an object apart: ours first, then cloudpickle's."""
        self._modules.meet(value)
        if isinstance(value, types.CodeType):
            self._code_files.add(value.co_filename)
        if isinstance(value, nn.Module):
            # As copy_module has it: a result of autograd kept as an attribute is a constant in the copy.
            kept = (*vars(value).values(), *value._buffers.values())
            self._to_detach.update(id(t) for t in kept if isinstance(t, torch.Tensor) and not t.is_leaf)
        elif id(value) in self._to_detach and isinstance(value, torch.Tensor):
            return value.detach().__reduce_ex__(pickle.HIGHEST_PROTOCOL)
        ours = reduce(value)
        return super().reducer_override(value) if ours is None else ours


class _Unpickler(pickle.Unpickler):
    """Rebuilds objects around storages that are mapped from a file, each change a private one."""

    def __init__(self, file: Any, storages_path: Path) -> None:
        super().__init__(file)
        size = storages_path.stat().st_size
        self._mapped = torch.UntypedStorage.from_file(str(storages_path), False, size) if size else None
        self._storages: dict[tuple[int, int, str], torch.UntypedStorage] = {}

    def find_class(self, module: str, name: str) -> Any:
        """What pickle asks for by name; functions that travel by value are made here."""
        if (module, name) == ("cloudpickle.cloudpickle", "_make_function"):
            return _make_function
        return super().find_class(module, name)

    def persistent_load(self, place: Any) -> torch.TypedStorage:
        """The storage that an identification stands for, on the device where it was."""
        *where, dtype = place
        key = (int(where[0]), int(where[1]), str(where[2]))
        if key not in self._storages:
            self._storages[key] = self._storage(*key)
        return torch.TypedStorage(wrap_storage=self._storages[key], dtype=dtype, _internal=True)

    def _storage(self, offset: int, size: int, device: str) -> torch.UntypedStorage:
        if self._mapped is None or size == 0:
            return torch.UntypedStorage(0, device=device)
        storage = self._mapped[offset : offset + size]
        if device == "cpu":
            return storage
        flat = torch.empty(0, dtype=torch.uint8, device="cpu").set_(storage)
        return torch.empty(size, dtype=torch.uint8, device=device).copy_(flat).untyped_storage()


def _make_function(code: types.CodeType, scope: dict[str, Any], *rest: Any) -> types.FunctionType:
    """
    A function that travelled by value, whose globals travelled with it.

    They are in no module, so they have no name: dynamo would look them up in the module of that name, such as
    ``__main__``, which is another one here.

    Source:
        ``cloudpickle.cloudpickle._make_function``; ``InstructionTranslatorBase.get_globals_source_and_value``,
        torch/_dynamo/symbolic_convert.py, torch 2.7 to 2.13.
    """
    scope.pop("__name__", None)
    scope["__builtins__"] = __builtins__
    return types.FunctionType(code, scope, *rest)


def _dump(subject: LoadedSubject, file: Any, storages: _Storages, modules: ValueModules) -> None:
    try:
        pickler = _Pickler(file, storages, modules)
        pickler.dump(subject)
        pickler.dump(pickler.code_without_file())
    except OSError:
        raise
    except Exception as error:
        inputs = (("its positional inputs", subject.args), ("its keyword inputs", subject.kwargs))
        parts = (("model", subject.model), *inputs)
        place, culprit, why = _find_culprit(parts, error, modules)
        kind = culprit.__name__ if isinstance(culprit, type) else type(culprit).__name__
        raise SubjectError(
            f"cannot hand {subject.name} to another process: {place} ({kind}) cannot be pickled: {first_line(why)}; "
            "make it when it is first needed, leave it out in __getstate__, or diagnose it as a file"
        ) from error


def _dump_settings(name: str, file: Any, modules: ValueModules) -> None:
    settings = current_settings()
    try:
        _Pickler(file, _Storages(), modules).dump(settings)
    except OSError:
        raise
    except Exception as error:
        found = (
            f"{module}.{key}"
            for module, values in settings["compilers"].items()
            for key, value in values.items()
            if _refusal(value, modules) is not None
        )
        raise SubjectError(
            f"cannot hand {name} to another process: the setting {next(found, 'of torch')} cannot be pickled: "
            f"{first_line(error)}; reset it, or diagnose it as a file"
        ) from error


def _refusal(value: Any, modules: ValueModules) -> Exception | None:
    try:
        _Pickler(io.BytesIO(), _Storages(), modules).dump(value)
    except Exception as error:
        return error
    return None


def reduce(value: Any) -> Reduced | None:
    """
    What pickle needs to build an object again, in the form ``__reduce__`` returns it; None to leave it to cloudpickle.

    Raises:
        PicklingError: It is an open file, which cloudpickle would read to its end and take for text, or code that calls
            an operator which only this process knows.
    """
    if isinstance(value, types.CodeType):
        _check_operators(value)
        return _code_of_file, (value.co_filename, *cloudpickle.Pickler.dispatch_table[types.CodeType](value))
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
    if isinstance(value, io.TextIOWrapper) and value not in (sys.stdin, sys.stdout, sys.stderr):
        raise pickle.PicklingError("it is an open file")
    return None


def _code_of_file(file: str, make: Callable[..., types.CodeType], parts: tuple[Any, ...]) -> types.CodeType:
    """Code that travelled by value, in the file of its lines; cloudpickle 3.1.3 calls each file ``<dynamic-code>``."""
    return make(*parts).replace(co_filename=file)


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


class ValueModules(contextlib.ExitStack):
    """
    Modules that another process cannot import, whose classes and functions have to travel by value.

    Such are a module that a notebook or layoutdoctor made, one loaded from a file by its path, and one whose folder is
    on ``sys.path`` no more. cloudpickle knows ``__main__`` only; it is told of each as it is met, and told to forget it
    at the end of the block.
    """

    def __init__(self) -> None:
        super().__init__()
        self._met: set[str] = set()

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
            self.callback(cloudpickle.unregister_pickle_by_value, module)


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


def _find_culprit(
    parts: Iterable[tuple[str, Any]], error: Exception, modules: ValueModules
) -> tuple[str, object, Exception]:
    """Of parts with the way to each, the innermost that cannot be pickled by itself, and what it raises."""
    place, value, why = "it", object(), error
    seen: set[int] = set()
    while True:
        for name, part in parts:
            if id(part) in seen:
                continue
            seen.add(id(part))
            refused = _refusal(part, modules)
            if refused is not None:
                place, value, why = name, part, refused
                break
        else:
            return place, value, why
        parts = _parts(value, place)


def _parts(value: Any, place: str) -> Iterator[tuple[str, Any]]:
    """What an object is made of as pickle sees it, each with the way to it."""
    # Functions last: a class's methods know the class, and with it whatever else it holds.
    parts = vars(value).items() if isinstance(value, type) else ()
    named = [(f"{place}.{name}", part) for name, part in parts] or list(parts_of(value, place))
    yield from sorted(named, key=lambda item: isinstance(item[1], types.FunctionType))
    if not isinstance(value, (type, types.FunctionType, types.ModuleType)):
        yield f"class {type(value).__name__}", type(value)
