"""A subject on its way to another process of the same interpreter: written to a private directory and rebuilt."""

from __future__ import annotations

import contextlib
import linecache
import os
import pickle
import shutil
import stat
import types
import warnings
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import cloudpickle
import torch
from torch import nn

from layoutdoctor.errors import SubjectError, first_line
from layoutdoctor.state.randomness import preserved_random_state
from layoutdoctor.state.switches import apply_settings, current_settings
from layoutdoctor.subjects.reducers import ValueModules, find_culprit, reduce
from layoutdoctor.subjects.subject import LoadedSubject
from layoutdoctor.units import format_bytes

if TYPE_CHECKING:
    from collections.abc import Iterator
    from io import BufferedWriter

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
    objects_path, storages_path = directory / OBJECTS_FILE, directory / STORAGES_FILE
    settings_path = directory / SETTINGS_FILE
    try:
        with _quietly(), ValueModules() as modules:
            storages = _Storages()
            with _created(objects_path) as file:
                _dump(subject, file, storages, modules)
            _check_room(subject.name, storages.total_bytes, directory)
            with _created(storages_path) as file:
                storages.write(file)
            with _created(settings_path) as file:
                _dump_settings(subject.name, file, modules)
    except BaseException as error:
        for path in (objects_path, storages_path, settings_path):
            path.unlink(missing_ok=True)
        if isinstance(error, OSError):
            raise SubjectError(
                f"cannot hand {subject.name} to another process: {error.strerror or error}; "
                "set TMPDIR to a folder with room, or call without isolate"
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
            f"cannot set up another process like this one: {first_line(error)}; call without isolate"
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
        with _quietly(), preserved_random_state(), (directory / OBJECTS_FILE).open("rb") as file:
            unpickler = _Unpickler(file, directory / STORAGES_FILE)
            subject = unpickler.load()
            linecache.cache.update(unpickler.load())
            torch._utils._validate_loaded_sparse_tensors()  # or they are kept until somebody calls it
    except Exception as error:  # the user's classes run here
        raise SubjectError(
            f"cannot rebuild the model in another process: {first_line(error)}; "
            "import what defines it from a module, or call without isolate"
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
            f"{format_bytes(room)} are free in {directory}; set TMPDIR to a folder with room, or call without isolate"
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
            "(register_module_forward_hook and the like); remove them, or call without isolate"
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
        self._storages = storages
        self._modules = modules
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


def _dump(subject: LoadedSubject, file: Any, storages: _Storages, modules: ValueModules) -> None:
    try:
        pickler = _Pickler(file, storages, modules)
        pickler.dump(subject)
        pickler.dump(pickler.code_without_file())
    except OSError:
        raise
    except Exception as error:
        parts = (
            ("model", subject.model),
            ("its positional inputs", subject.args),
            ("its keyword inputs", subject.kwargs),
        )
        place, culprit, why = find_culprit(parts, error, lambda part: _refusal(part, modules))
        kind = culprit.__name__ if isinstance(culprit, type) else type(culprit).__name__
        raise SubjectError(
            f"cannot hand {subject.name} to another process: {place} ({kind}) cannot be pickled: {first_line(why)}; "
            "make it when it is first needed, leave it out in __getstate__, or call without isolate"
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
            f"{first_line(error)}; reset it, or call without isolate"
        ) from error


def _refusal(value: Any, modules: ValueModules) -> Exception | None:
    try:
        _Pickler(_Nowhere(), _Storages(), modules).dump(value)
    except Exception as error:
        return error
    return None


class _Nowhere:
    """A file that keeps nothing."""

    def write(self, data: Any) -> int:
        """Takes what is written."""
        return len(data)
