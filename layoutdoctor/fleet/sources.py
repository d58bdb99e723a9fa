"""
Finds and opens the files of a scan: files, folders, patterns, archives, and URLs of fsspec.

Only folders are opened to find the files, so that ten thousand files are listed in seconds. A path that cannot be
listed becomes a source with the reason as its ``failure``: no file is dropped silently.

Source:
    fsspec's documentation for URLs; ranks in names: the file names of the traces in public profiler repositories.
"""

from __future__ import annotations

import contextlib
import fnmatch
import glob
import os
import re
import tarfile
import zipfile
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from itertools import takewhile
from pathlib import Path, PurePosixPath
from typing import IO, TYPE_CHECKING, Any, NoReturn

import fsspec
import msgspec

from layoutdoctor.diagnosis.saved import DEFAULT_MOST_BYTES
from layoutdoctor.errors import TraceError, UsageError, text_of
from layoutdoctor.files.scratch import private_directory
from layoutdoctor.files.writing import opened, printable
from layoutdoctor.privacy.paths import FOLDER_OF_HOMES
from layoutdoctor.units import format_bytes
from layoutdoctor.words import listing

if TYPE_CHECKING:
    Opened = Callable[[], contextlib.AbstractContextManager[IO[bytes]]]

TRACE_PATTERNS = ("*.json", "*.json.gz", "*.sqlite", "dedicated_log_torch_trace_*.log*")
"""Names to take in folders and archives if no pattern is given; a file that the user names is always examined."""

_RARER_PATTERNS = ("*.csv", "*.log", "*.txt", "*.nsys-rep", "*.qdrep")
"""Names to take if no trace is found: any text may have such a name, and a report may be beside its export."""

_ARCHIVES = (".zip", ".tar", ".tar.gz", ".tgz", ".tar.bz2", ".tbz2", ".tar.xz", ".txz")
_RANK_IN_NAME = re.compile(r"(?i)(?:^|[^a-z])rank[_.-]?(\d{1,9})(?!\d)|^r(\d{1,9})(?=\.)")
_RANK_OF_FOLDER = re.compile(r"(?i)(?:.*[^a-z])?rank[_.-]?(\d{1,9})|r(\d{1,9})|(\d{1,9})")
LARGEST_RANK = 1 << 31
_URL = re.compile(r"(?i)[a-z][a-z0-9+.-]+(?:::[a-z][a-z0-9+.-]+)*://")
_COPY_BYTES = 1 << 20


class Source(msgspec.Struct, frozen=True, kw_only=True):
    """
    The path of a recorded run or of an archive of runs. A source is small, so that it can be sent to a worker.

    Attributes:
        path: An absolute local path, or a URL.
        name: Name of the source in reports, unique in the scan.
        patterns: Patterns of the names to take in an archive.
        rarer: Patterns of the names to take if no name in the archive matches ``patterns``.
        max_bytes: Largest number of unpacked bytes to read of a trace.
        is_named: Whether the user named this path; an archive without traces is reported only then.
        failure: Reason why the source cannot be examined; None if no reason is known.
        fingerprint: Text that changes when the file changes; None if not known, or in a scan without ``resume``.
    """

    path: str
    name: str = ""
    patterns: tuple[str, ...] = TRACE_PATTERNS
    rarer: tuple[str, ...] = ()
    max_bytes: int = DEFAULT_MOST_BYTES
    is_named: bool = False
    failure: str | None = None
    fingerprint: str | None = None


def find_sources(
    paths: Sequence[str | os.PathLike[str]], *, pattern: str | None = None, max_bytes: int = DEFAULT_MOST_BYTES
) -> tuple[Source, ...]:
    """
    Finds the recorded runs and archives that paths lead to, each once, in the order of their names.

    Args:
        paths: Files, folders, archives, patterns with ``*``, ``?`` or ``[``, and URLs of all of these.
        pattern: Pattern of the names to take in folders and archives. None takes ``TRACE_PATTERNS`` or, in a path
            without such files, the usual names of tables, logs and reports.

    Raises:
        UsageError: No path leads to a recorded run or an archive.
    """
    patterns, rarer = (TRACE_PATTERNS, _RARER_PATTERNS) if pattern is None else ((pattern,), ())
    nothing = f"found no file that matches {' or '.join((*patterns, *rarer))}"
    found: dict[str, Source] = {}
    for path in [os.fspath(path) for path in paths]:
        own = [*_sources_of(path, patterns)] or [*_sources_of(path, rarer)]
        for source in own or [Source(path=path, failure=nothing)]:
            found.setdefault(source.path, source)
    if found and all(source.failure == nothing for source in found.values()):
        raise UsageError(f"cannot scan {listing(map(repr, found))}: {nothing}")
    whole = [source.path.split("/")[:-1] for source in found.values() if source.failure is None]
    shared = takewhile(lambda parts: len(set(parts)) == 1, zip(*whole, strict=False))
    common = "".join(f"{parts[0]}/" for parts in shared)
    common = "" if FOLDER_OF_HOMES.fullmatch(common[:-1]) else common  # otherwise names would begin with a user's name
    named = [
        msgspec.structs.replace(
            source,
            name=str(printable(source.path.removeprefix(common))),
            patterns=patterns,
            rarer=rarer if source.is_named else (),  # an archive of texts that nobody named is probably no record
            max_bytes=max_bytes,
        )
        for source in found.values()
    ]
    return tuple(sorted(named, key=lambda source: source.name))


def _sources_of(path: str, patterns: Sequence[str]) -> Iterator[Source]:
    try:
        files, inner = _file_system(path)
        if not files.exists(inner) and glob.has_magic(inner):
            entries = sorted(files.glob(inner))
            if not entries:
                yield Source(path=path, failure="no file has such a name; check the path")
        else:
            entries = [inner]
        for entry in entries:
            if files.isdir(entry):
                yield from _in_folder(files, entry, patterns)
            else:
                yield Source(path=_whole_path(files, entry), is_named=True)
    except Exception as error:  # each file system has exceptions of its own
        yield Source(path=path, failure=f"it cannot be listed: {said_by(error)}")


def _in_folder(files: Any, folder: str, patterns: Sequence[str]) -> Iterator[Source]:
    try:
        entries = sorted(files.ls(folder, detail=True), key=lambda entry: str(entry["name"]))
    except OSError as error:
        yield Source(path=_whole_path(files, folder), failure=f"the folder cannot be listed: {said_by(error)}")
        return
    for entry in entries:
        name = str(entry["name"])
        if entry["type"] == "directory":
            yield from _in_folder(files, name, patterns)
        elif _is_asked(name, patterns) or is_archive(name):
            yield Source(path=_whole_path(files, name))


def _is_asked(path: str, patterns: Sequence[str]) -> bool:
    return any(fnmatch.fnmatch(PurePosixPath(path).name, pattern) for pattern in patterns)


def is_archive(path: str) -> bool:
    """Whether a path ends like the name of an archive that can be read here."""
    return path.lower().endswith(_ARCHIVES)


def _file_system(path: str) -> tuple[Any, str]:
    if _URL.match(path):
        found: tuple[Any, str] = fsspec.core.url_to_fs(path)
        return found
    return fsspec.filesystem("file"), os.path.abspath(path)  # noqa: PTH100 - a link keeps its name


def _whole_path(files: Any, path: str) -> str:
    return path if "file" in files.protocol else str(files.unstrip_protocol(path))


def said_by(error: Exception) -> str:
    """Returns the reason that an exception of any file system or archive gives."""
    return getattr(error, "strerror", None) or text_of(error).partition("\n")[0].rstrip(":") or type(error).__name__


def fingerprint_of(source: Source) -> str | None:
    """Returns a source's name, size and time of its last change as one text; None if the time is not known."""
    try:
        files, inner = _file_system(source.path)
        entry = files.info(inner)
        size, *changed = (entry.get(key) for key in ("size", "mtime", "LastModified", "ETag"))
    except Exception:  # each file system has exceptions of its own
        return None
    facts = (source.name, size, *changed)
    return " ".join(str(fact) for fact in facts if fact is not None) if any(changed) else None


# ---------------------------------------------------------------------------------------------- ranks
def rank_reader(rank_regex: str | None) -> Callable[[str, int | None], int | None]:
    """
    Makes a function that finds the rank of a file in its name, else in the trace, else in the names of its folders.

    Args:
        rank_regex: Regular expression whose first group is the rank; it is searched in a source's name with folders.
            None looks for words such as ``rank3``, in the file's name and in the folders' names.

    Raises:
        UsageError: ``rank_regex`` is no regular expression with a group.
    """
    try:
        pattern = None if rank_regex is None else re.compile(rank_regex)
    except re.error as error:
        raise UsageError(f"cannot read the regular expression of the rank, {rank_regex!r}: {error}") from error
    if pattern is not None and not pattern.groups:
        raise UsageError(
            f"cannot read the rank with {rank_regex!r}: expected a group around the rank, as in 'rank(\\d+)'"
        )

    def read(name: str, recorded: int | None) -> int | None:
        *folders, file = re.split(r"[/!]", name)
        found = [_RANK_IN_NAME.search(file), *map(_RANK_OF_FOLDER.fullmatch, reversed(folders))]
        own, *of_folders = map(_number, found if pattern is None else [pattern.search(name)])
        return next((rank for rank in (own, recorded, *of_folders) if rank is not None), None)

    return read


def _number(match: re.Match[str] | None) -> int | None:
    text = next((group for group in match.groups() if group is not None), "") if match else ""
    return int(text) if text.isdecimal() and int(text) < LARGEST_RANK else None


# ---------------------------------------------------------------------------------------------- the bytes of sources
def local_files(source: Source) -> Iterator[tuple[str, Callable[[], Path]]]:
    """
    Makes the recorded runs of a source available as local files, one file for each trace of an archive.

    Yields:
        A name and a function for each file. The function returns the path of the file, or of a copy that is deleted
        when the next file is copied; it raises the errors of the file system or the archive.
    """
    if _URL.match(source.path) is None and not is_archive(source.path):
        yield source.name, lambda: Path(source.path)
        return
    with private_directory() as folder:
        place = Path(folder)
        if not is_archive(source.path):
            yield source.name, partial(_copied, partial(_opened, source.path), source.path, place, source)
            return
        members = _members_of_zip if source.path.lower().endswith(".zip") else _members_of_tar
        for patterns in filter(None, (source.patterns, source.rarer)):
            is_found = False
            with _opened(source.path) as stream:
                for member, opened in members(stream):
                    is_asked = _is_asked(member, patterns)
                    if is_asked or is_archive(member):
                        is_found = True
                        copied = partial(_copied, opened, member, place, source)
                        yield str(printable(f"{source.name}!{member}")), copied if is_asked else _refuse_inner
            if is_found:
                return


@contextlib.contextmanager
def _opened(path: str) -> Iterator[IO[bytes]]:
    files, inner = _file_system(path)
    with opened(path) if "file" in files.protocol else files.open(inner, "rb") as stream:
        yield stream


def _members_of_zip(stream: IO[bytes]) -> Iterator[tuple[str, Opened]]:
    with zipfile.ZipFile(stream) as archive:
        for entry in archive.infolist():
            if not entry.is_dir():
                yield entry.filename, partial(archive.open, entry)


def _members_of_tar(stream: IO[bytes]) -> Iterator[tuple[str, Opened]]:
    """Yields the members in the order of the archive, so that a packed archive is unpacked only once."""
    with tarfile.open(fileobj=stream, tarinfo=_TarMember) as archive:
        for entry in archive:
            if entry.isfile():
                yield entry.name, partial(archive.extractfile, entry)  # type: ignore[misc]  # a file has content
        if archive.fileobj is not None:
            archive.fileobj.read(_COPY_BYTES)  # reads to the end, where packed data have their check sum


class _TarMember(tarfile.TarInfo):
    """A member that raises an error if it is damaged; ``tarfile`` takes a damaged member for the archive's end."""

    @classmethod
    def fromtarfile(cls, archive: tarfile.TarFile) -> Any:
        try:
            return super().fromtarfile(archive)
        except tarfile.HeaderError as error:
            if type(error).__name__ in ("EOFHeaderError", "EmptyHeaderError"):  # the end of the archive
                raise
            raise tarfile.ReadError(f"the part after its first {format_bytes(archive.offset)} is damaged") from error


def _refuse_inner() -> NoReturn:
    raise TraceError("it is an archive within an archive; unpack the outer one")


def _copied(opened: Opened, name: str, folder: Path, source: Source) -> Path:
    copy, count = folder / (PurePosixPath(name).name or "trace")[-100:], 0
    for old in folder.iterdir():
        old.unlink()
    with opened() as stream, copy.open("wb") as target:
        while piece := stream.read(_COPY_BYTES):
            count += len(piece)
            if count > source.max_bytes:
                raise TraceError(f"it has more than {format_bytes(source.max_bytes)}, which is the limit")
            target.write(piece)
    return copy
