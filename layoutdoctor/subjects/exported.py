"""
An exported program (``.pt2``) is loaded as data: what would run code in it is refused before torch reads it.

``torch.export.load`` unpickles, evaluates expressions and writes Python code from names, so that a file can be made
that does anything. Here the file is looked at first, part by part; then torch reads it with the same parts disarmed.
Faces ``load``; imports capture's ``data_only`` and the checks beside it.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, BinaryIO

import torch
from torch.utils import _pytree as pytree

from layoutdoctor.archives import DamagedFileError, ForbiddenPartError, open_archive
from layoutdoctor.capture.data_only import UnpicklingRefusedError, data_only
from layoutdoctor.errors import SubjectError, UsageError, first_line
from layoutdoctor.subjects.exported_expressions import check_expression
from layoutdoctor.subjects.exported_pickles import check_saved_tensors, is_plain
from layoutdoctor.subjects.exported_program import check_program, check_tensor_list

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from layoutdoctor.archives import Archive

_MOST_PROGRAM_BYTES = 512 << 20
_MOST_MARK_BYTES = 4096
_TENSOR_BYTES_PER_BYTE = 64
_TENSOR_BYTES_ANYWAY = 1 << 30

_MARKS = re.compile(
    r"archive_format|archive_version|version|byteorder|\.data/(version|serialization_id)|\.format_version"
    r"|\.storage_alignment"
)
_PROGRAMS = re.compile(r"models/[^/]+\.json|serialized_exported_program\.json")
_TENSOR_LISTS = re.compile(r"data/(weights|constants)/[^/]+_config\.json")
_TENSORS = re.compile(r"data/(weights/weight_\d+|constants/tensor_\d+)")
_SAVED = re.compile(
    r"data/(weights|constants|sample_inputs)/[^/]+\.pt"
    r"|serialized_(state_dict|constants|example_inputs)\.(pt|json)"
)
_NOT_READ = re.compile(r"(extra|extra_files)/.+")
_FORBIDDEN = (
    (re.compile(r"data/aotinductor/.*|.*\.(so|cubin|o|dll|dylib|ptx|hsaco)"), "compiled code (AOTInductor)"),
    (re.compile(r"data/constants/custom_obj_.*"), "an object of a class of its own (a ScriptObject)"),
    (re.compile(r"data/constants/opaque_obj_.*"), "an object of a class of its own (an opaque value)"),
)
_EXPECTED = "expected what torch.export.save wrote"
_PICKLE_STARTS = (b"\x80\x02", b"\x80\x03", b"\x80\x04", b"\x80\x05")


@dataclass(frozen=True)
class ExportedProgramFile:
    """
    What a ``.pt2`` file holds.

    Attributes:
        program: The program.
        args: Positional arguments it was exported with.
        kwargs: Keyword arguments it was exported with.
    """

    program: torch.export.ExportedProgram
    args: tuple[Any, ...]
    kwargs: dict[str, Any]


def load_exported(path: Path) -> ExportedProgramFile:
    """
    Loads an exported program without running anything that stands in its file, but for operators of torch.

    Args:
        path: The file; a link to one will do.

    Raises:
        UsageError: There is no such file.
        SubjectError: It is something else, damaged, of an unknown version, or would run code.
    """
    try:
        if path.is_dir() or (path.exists() and not path.is_file()):
            raise UsageError(f"cannot load {str(path)!r}: it is no file, {_EXPECTED}")
        with path.open("rb") as stream:
            _check_file(stream, path.stat().st_size)
            stream.seek(0)
            program = _load(stream)
        args, kwargs = program.example_inputs or ((), {})
        _check_container_keys((args, kwargs))
    except (OSError, ValueError) as error:
        raise _explained(path, error) from error
    return ExportedProgramFile(program, tuple(args), dict(kwargs))


def _explained(path: Path, error: OSError | ValueError) -> UsageError | SubjectError:
    if isinstance(error, FileNotFoundError):
        return UsageError(f"cannot load {str(path)!r}: there is no such file")
    if isinstance(error, ForbiddenPartError):
        return SubjectError(
            f"cannot load {path.name}: it holds {error}; a .pt2 file is read as data and must not run code: export the "
            "model again without that, or name a model.py whose get_model() calls torch.export.load, which then runs "
            "as your code"
        )
    if isinstance(error, DamagedFileError):
        return SubjectError(f"cannot load {path.name}: {error}; {_EXPECTED}")
    return UsageError(f"cannot load {str(path)!r}: {getattr(error, 'strerror', None) or error}; give a readable file")


def _check_file(stream: BinaryIO, byte_count: int) -> None:
    start = stream.read(4)
    if not start:
        raise DamagedFileError("it is empty")
    if start.startswith(_PICKLE_STARTS):
        raise ForbiddenPartError("a pickle")
    if not start.startswith(b"PK"):
        raise DamagedFileError("it is no zip archive")
    archive = open_archive(stream, byte_count)
    _check_kind(archive)
    archive.check_sums()
    for name in archive.names:
        _check_part(archive, name)
    _check_tensors(archive, byte_count)


def _check_kind(archive: Archive) -> None:
    names = archive.names
    if any(name.startswith("code/") for name in names) and "constants.pkl" in names:
        raise ForbiddenPartError("TorchScript, which is code")
    if "data.pkl" in names:
        raise ForbiddenPartError("what torch.save wrote, which is a pickle")
    if not any(_PROGRAMS.fullmatch(name) for name in names):
        raise DamagedFileError("it is a zip archive without an exported program")


def _check_part(archive: Archive, name: str) -> None:
    for pattern, what in _FORBIDDEN:
        if pattern.fullmatch(name):
            raise ForbiddenPartError(f"{what} in its part {name!r}")
    if _PROGRAMS.fullmatch(name):
        check_program(archive.read(name, _MOST_PROGRAM_BYTES))
    elif _SAVED.fullmatch(name):
        check_saved_tensors(archive.read(name, archive.size(name)), name)
    elif _MARKS.fullmatch(name):
        archive.read(name, _MOST_MARK_BYTES)
    elif not (_TENSOR_LISTS.fullmatch(name) or _TENSORS.fullmatch(name) or _NOT_READ.fullmatch(name)):
        raise ForbiddenPartError(f"a part {name[:200]!r}, of which nothing is known here")


def _check_tensors(archive: Archive, byte_count: int) -> None:
    """Tensors that were pickled are looked at as such; none may take far more memory than the file has bytes."""
    names = frozenset(archive.names)
    element_count = 0
    for list_name in filter(_TENSOR_LISTS.fullmatch, archive.names):
        folder = list_name.rpartition("/")[0]
        for tensor in check_tensor_list(archive.read(list_name, _MOST_PROGRAM_BYTES), list_name).values():
            part = f"{folder}/{tensor['path_name']}"
            if part not in names or not (_TENSORS.fullmatch(part) or _SAVED.fullmatch(part)):
                raise DamagedFileError(f"its part {part[:200]!r} is missing")
            if tensor.get("use_pickle"):
                check_saved_tensors(archive.read(part, archive.size(part)), part)
            element_count += _element_count(tensor)
    if element_count > _TENSOR_BYTES_PER_BYTE * byte_count + _TENSOR_BYTES_ANYWAY:
        raise ForbiddenPartError(f"{byte_count} bytes for tensors of {element_count} elements")


def _element_count(tensor: dict[str, Any]) -> int:
    meta = tensor.get("tensor_meta")
    sizes = meta.get("sizes") if isinstance(meta, dict) else None
    count = 1
    for size in sizes if isinstance(sizes, list) else ():
        number = size.get("as_int") if isinstance(size, dict) else None
        count *= number if isinstance(number, int) and number >= 0 else 1
    return count


def _load(stream: BinaryIO) -> torch.export.ExportedProgram:
    try:
        with data_only(check_program, check_expression):
            return torch.export.load(stream)
    except Exception as error:  # whatever torch raises on a file that it cannot read
        for cause in _causes(error):
            if isinstance(cause, ForbiddenPartError):
                raise cause from error
            if isinstance(cause, UnpicklingRefusedError):
                raise ForbiddenPartError(str(cause)) from error
        raise DamagedFileError(first_line(error)) from error


def _causes(error: BaseException) -> Iterator[BaseException]:
    seen: list[BaseException] = []
    current: BaseException | None = error
    while current is not None and current not in seen:
        seen.append(current)
        yield current
        current = current.__cause__ or current.__context__


def _check_container_keys(inputs: Any) -> None:
    """Keys of dictionaries end up in the code that torch writes to check inputs."""
    for path, _ in pytree.tree_flatten_with_path(inputs)[0]:
        for step in path:
            key = getattr(step, "key", 0)
            if not (isinstance(key, int) or (isinstance(key, str) and is_plain(key))):
                raise ForbiddenPartError(f"example inputs under the key {str(key)[:200]!r}")
