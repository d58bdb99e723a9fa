"""
Which files a scan is of: files, folders, patterns, archives, and anything that fsspec has a URL for.

Nothing is opened but folders and archives, so that ten thousand files are listed in seconds. What cannot be listed is a
source all the same, with the reason: no file is dropped in silence.

Source:
    fsspec's documentation for URLs; ranks in names: the file names of the traces in public profiler repositories.
"""

from __future__ import annotations

import contextlib
import fnmatch
import glob
import os
import re
import stat
import tarfile
import tempfile
import zipfile
from itertools import takewhile
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Any, BinaryIO, cast

import msgspec

from layoutdoctor.errors import TraceError, UsageError, first_line, text_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

# What is looked for in folders and archives where no pattern is given; a file that is named is always examined.
TRACE_PATTERNS = ("*.json", "*.json.gz", "*.sqlite")
_ARCHIVES = (".zip", ".tar", ".tar.gz", ".tgz", ".tar.bz2", ".tar.xz")
_RANK_IN_NAME = re.compile(r"(?i)(?:^|[^a-z])rank[_.-]?(\d{1,9})(?!\d)|^r(\d{1,9})(?=\.)")
_RANK_OF_FOLDER = re.compile(r"(?i)(?:.*[^a-z])?rank[_.-]?(\d{1,9})|r(\d{1,9})|(\d{1,9})")
_URL = re.compile(r"(?i)[a-z][a-z0-9+.-]+(?:::[a-z][a-z0-9+.-]+)*://")
_COPY_BYTES = 1 << 20


class Source(msgspec.Struct, frozen=True, kw_only=True):
    """
    One recorded run, by where it is; small, so that it travels to a worker.

    Attributes:
        path: A local path, absolute, or a URL.
        member: Its name in the archive at ``path``; None where ``path`` is the file itself.
        name: What reports call it; no other source of the scan has the name.
        rank: As its name or a pattern of the user's says.
        folder_rank: As the folder it lies in says, which counts where neither name nor content do.
        failure: Why it cannot be examined; None where nothing is known against it.
    """

    path: str
    member: str | None = None
    name: str = ""
    rank: int | None = None
    folder_rank: int | None = None
    failure: str | None = None


def find_sources(
    paths: Sequence[str | os.PathLike[str]], *, pattern: str | None = None, rank_regex: str | None = None
) -> tuple[Source, ...]:
    """
    The recorded runs that paths lead to, each once.

    Args:
        paths: Files, folders, archives, patterns with ``*``, ``?`` or ``[``, and URLs of all of these.
        pattern: Of the names to take in folders and archives; by default what recorded runs are called.
        rank_regex: Finds the rank in a source's whole name, as its first group.

    Raises:
        UsageError: There is none, the regular expression is none, or a URL needs a package that is not installed.
    """
    to_rank = _rank_reader(rank_regex)
    patterns = TRACE_PATTERNS if pattern is None else (pattern,)
    found: dict[tuple[str, str | None], Source] = {}
    for path in (os.fspath(path) for path in paths):
        before = len(found)
        for source in _of_url(path, patterns) if _URL.match(path) else _of_path(path, patterns):
            found.setdefault((source.path, source.member), source)
        if len(found) == before and not found:
            raise UsageError(f"cannot scan {path!r}: there is nothing in it that is called {' or '.join(patterns)}")
    return _named(list(found.values()), to_rank)


def _rank_reader(rank_regex: str | None) -> Callable[[str], int | None] | None:
    if rank_regex is None:
        return None
    try:
        pattern = re.compile(rank_regex)
    except re.error as error:
        raise UsageError(f"cannot read --rank-regex {rank_regex!r}: {error}") from error
    if not pattern.groups:
        raise UsageError(
            f"cannot read --rank-regex {rank_regex!r}: expected a group around the rank, as in 'rank(\\d+)'"
        )

    def read(name: str) -> int | None:
        match = pattern.search(name)
        return int(match[1]) if match and match[1] is not None and match[1].isdecimal() else None

    return read


# ---------------------------------------------------------------------------------------------- where they are
def _of_path(path: str, patterns: Sequence[str]) -> Iterator[Source]:
    try:
        mode = os.stat(path).st_mode  # noqa: PTH116 - a path of any kind, patterns among them
    except (OSError, ValueError) as error:
        matches = sorted(glob.glob(path, recursive=True)) if glob.has_magic(path) else []  # noqa: PTH207
        for match in matches:
            yield from _of_path(match, patterns)
        if not matches:
            why = "no file has such a name" if glob.has_magic(path) else getattr(error, "strerror", None) or str(error)
            yield Source(path=path, name=path, failure=f"{why}; check the path")
        return
    whole = os.path.abspath(path)  # noqa: PTH100 - a link keeps its name
    if stat.S_ISDIR(mode):
        yield from _of_folder(whole, patterns)
    elif path.lower().endswith(_ARCHIVES):
        yield from _of_archive(whole, patterns)
    else:
        yield Source(path=whole)


def _of_folder(folder: str, patterns: Sequence[str]) -> Iterator[Source]:
    problems: list[OSError] = []
    for root, folders, files in os.walk(folder, onerror=problems.append):
        folders.sort()
        for file in sorted(files):
            path = f"{root.rstrip('/')}/{file}"
            if _is_asked(file, patterns):
                yield Source(path=path)
            elif file.lower().endswith(_ARCHIVES):
                yield from _of_archive(path, patterns)
    for problem in problems:
        yield Source(path=str(problem.filename), failure=f"the folder cannot be listed: {problem.strerror or problem}")


def _of_archive(path: str, patterns: Sequence[str]) -> Iterator[Source]:
    try:
        with opened(path) as stream:
            if path.lower().endswith(".zip"):
                with zipfile.ZipFile(stream) as archive:
                    names = [entry.filename for entry in archive.infolist() if not entry.is_dir()]
            else:
                with tarfile.open(fileobj=stream) as unpacked:
                    names = [entry.name for entry in unpacked if entry.isfile()]
    except (OSError, EOFError, zipfile.BadZipFile, tarfile.TarError, TraceError) as error:
        yield Source(path=path, failure=f"the archive cannot be read: {text_of(error) or first_line(error)}")
        return
    for name in sorted(set(names)):
        if _is_asked(PurePosixPath(name).name, patterns):
            yield Source(path=path, member=name)


def _is_asked(name: str, patterns: Sequence[str]) -> bool:
    return any(fnmatch.fnmatch(name, pattern) for pattern in patterns)


def _of_url(url: str, patterns: Sequence[str]) -> Iterator[Source]:
    files, path = file_system(url)
    try:
        if glob.has_magic(path):
            matches = sorted(files.glob(path))
        elif files.isdir(path):
            matches = [entry for entry in sorted(files.find(path)) if _is_taken(entry, patterns)]
        else:
            matches = [path]
        urls = [files.unstrip_protocol(match) for match in matches]
    except Exception as error:  # each file system has exceptions of its own
        yield Source(path=url, failure=f"it cannot be listed: {first_line(error)}")
        return
    for one in urls:
        if one.lower().endswith(_ARCHIVES):
            yield from _of_archive(one, patterns)
        else:
            yield Source(path=one)


def _is_taken(path: str, patterns: Sequence[str]) -> bool:
    name = PurePosixPath(path).name
    return _is_asked(name, patterns) or name.lower().endswith(_ARCHIVES)


def file_system(url: str) -> tuple[Any, str]:
    """
    Fsspec's file system of a URL, and the path in it.

    Raises:
        UsageError: A package that it needs is not installed, or it knows no such protocol.
    """
    try:
        import fsspec
    except ImportError as error:
        raise UsageError(f"cannot open {url!r}: URLs need fsspec; pip install 'layoutdoctor[fleet]'") from error
    try:
        found: tuple[Any, str] = fsspec.core.url_to_fs(url)
    except ImportError as error:
        raise UsageError(f"cannot open {url!r}: {first_line(error).partition(': ')[2]}") from error
    except ValueError as error:
        raise UsageError(
            f"cannot open {url!r}: {first_line(error).partition(': ')[2]}; expected a path or a URL"
        ) from error
    except Exception as error:  # no permission, no network: each file system has exceptions of its own
        raise TraceError(f"cannot open {url!r}: {first_line(error)}") from error
    return found


# ---------------------------------------------------------------------------------------------- what they are called
def _named(sources: list[Source], to_rank: Callable[[str], int | None] | None) -> tuple[Source, ...]:
    """Each with a name below the folder that all have in common, in the order of the names, and its rank."""
    common = _common_folder([source.path.split("/")[:-1] for source in sources if source.failure is None])
    named = []
    for source in sources:
        name = source.path.removeprefix(common).lstrip("/")
        if source.member is not None:
            name = f"{name}!{source.member}"
        parts = re.split(r"[/!]", name)
        rank = to_rank(name) if to_rank is not None else _group(_RANK_IN_NAME.search(parts[-1]))
        in_folders = [_group(_RANK_OF_FOLDER.fullmatch(part)) for part in reversed(parts[:-1])]
        folder = None if to_rank is not None else next((number for number in in_folders if number is not None), None)
        named.append(msgspec.structs.replace(source, name=name, rank=rank, folder_rank=folder))
    return tuple(sorted(named, key=lambda source: source.name))


def _common_folder(folders: list[list[str]]) -> str:
    shared = takewhile(lambda parts: len(set(parts)) == 1, zip(*folders, strict=False))
    return "".join(f"{parts[0]}/" for parts in shared)


def _group(match: re.Match[str] | None) -> int | None:
    return next((int(group) for group in match.groups() if group is not None), None) if match is not None else None


# ---------------------------------------------------------------------------------------------- their bytes
@contextlib.contextmanager
def opened(path: str) -> Iterator[BinaryIO]:
    """A file or URL to read from."""
    if _URL.match(path) is None:
        with Path(path).open("rb") as stream:
            yield stream
        return
    files, inner = file_system(path)
    with files.open(inner, "rb") as stream:
        yield stream


@contextlib.contextmanager
def local_file(source: Source, most_bytes: int) -> Iterator[Path]:
    """
    The source as a file on this machine: itself where it is one, a copy that is gone afterwards else.

    Args:
        most_bytes: How much of it to copy; what is larger is refused.

    Raises:
        TraceError: It cannot be read.
    """
    if source.member is None and _URL.match(source.path) is None:
        yield Path(source.path)
        return
    name = PurePosixPath(source.member or source.path).name or "trace"
    with tempfile.TemporaryDirectory(prefix="layoutdoctor-scan-", ignore_cleanup_errors=True) as folder:
        copy = Path(folder) / name[-100:]
        try:
            with opened(source.path) as stream, copy.open("wb") as target:
                _copy(source, stream, target, most_bytes)
        except (TraceError, UsageError):
            raise
        except Exception as error:  # each file system has exceptions of its own
            raise TraceError(f"cannot read {source.name!r}: {first_line(error)}") from error
        yield copy


def _copy(source: Source, stream: BinaryIO, target: BinaryIO, most_bytes: int) -> None:
    if source.member is None:
        _copy_stream(source, stream, target, most_bytes)
    elif source.path.lower().endswith(".zip"):
        with zipfile.ZipFile(stream) as archive, archive.open(source.member) as member:
            _copy_stream(source, cast("BinaryIO", member), target, most_bytes)
    else:
        with tarfile.open(fileobj=stream) as unpacked:
            found = unpacked.extractfile(source.member)
            if found is None:
                raise TraceError(f"cannot read {source.name!r}: it is no file")
            _copy_stream(source, cast("BinaryIO", found), target, most_bytes)


def _copy_stream(source: Source, stream: BinaryIO, target: BinaryIO, most_bytes: int) -> None:
    count = 0
    while piece := stream.read(_COPY_BYTES):
        count += len(piece)
        if count > most_bytes:
            raise TraceError(f"cannot read {source.name!r}: it has more than {most_bytes} bytes, which is the limit")
        target.write(piece)
