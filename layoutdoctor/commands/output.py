"""Where reports go: files that are proved writable before anything is measured, and standard output."""

from __future__ import annotations

import contextlib
import ctypes
import os
import re
import sys
from dataclasses import dataclass, replace
from functools import cache
from itertools import count
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING

from layoutdoctor import privacy
from layoutdoctor.commands.streams import silence
from layoutdoctor.commands.terminal import render_terminal, terminal_width, wants_colour
from layoutdoctor.errors import LayoutDoctorError, UsageError
from layoutdoctor.reports import RENDERERS, format_of_suffix, renderer_of
from layoutdoctor.reports.text import DEFAULT_WIDTH, render_text
from layoutdoctor.writing import check_directory, replacing, target_of

if TYPE_CHECKING:
    import argparse
    from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
    from typing import TypeVar

    import msgspec

    from layoutdoctor.records import Diagnosis

    AnyRecord = TypeVar("AnyRecord", bound=msgspec.Struct)
    InputFile = str | Path | None


_COMMAND = re.compile(r"^([^\S\n]*)::", re.MULTILINE)


class OutputError(LayoutDoctorError):
    """A report could not be written after all (exit status 3)."""


@dataclass(frozen=True, slots=True)
class OutputFile:
    """
    A file that a report is to be written to.

    Attributes:
        path: Where: what the user named, and where that was a link what it led to.
        report_format: What to write.
        is_redacted: Whether names of modules and files become pseudonyms in it.
        details: Where to write what does not fit into a Markdown report; None for the other formats.
    """

    path: Path
    report_format: str
    is_redacted: bool = False
    details: Path | None = None


def add_output_options(parser: argparse.ArgumentParser, formats: Collection[str] = RENDERERS) -> None:
    """The options that every command with a report has."""
    endings = {".md": "markdown", ".html": "html", ".json": "json", ".txt": "text", ".sarif": "sarif"}
    endings |= {".xml (JUnit)": "junit", ".py (reproducer)": "reproducer"}
    parser.add_argument(
        "--format",
        choices=tuple(sorted(formats)),
        default="text",
        help="format of the report on standard output (default: text)",
    )
    parser.add_argument(
        "--output",
        metavar="FILE",
        action="append",
        default=[],
        help="write a report to a file as well, in the format of its suffix: "
        f"{', '.join(end for end, name in endings.items() if name in formats)}; may be repeated",
    )
    parser.add_argument("--force", action="store_true", help="replace output files that exist")
    parser.add_argument(
        "--redact",
        action="store_true",
        help="replace the names of modules, classes, files and operators of your own by pseudonyms, in every report; "
        "user and host names, absolute paths and secrets never stand in one",
    )


def prepare_outputs(
    paths: Sequence[str],
    *,
    force: bool,
    read: Sequence[InputFile] = (),
    further: Mapping[str, str] = MappingProxyType({}),
    redact: bool = False,
) -> tuple[OutputFile, ...]:
    """
    The files to write, each proved to be writable; none is changed yet.

    Args:
        paths: What the user gave with ``--output``.
        force: Whether an existing file may be replaced.
        read: What the command reads; none of it is ever replaced. None stands for what was not given.
        further: Formats that no report has, by the end of the file's name: raw data, in which no name is replaced.
        redact: Whether reports are to be redacted.

    Raises:
        UsageError: A file is read by the command, its suffix names no format, it exists already, it is named twice, it
            cannot be written, or it would hold raw data though reports are to be redacted.
    """
    outputs: dict[Path, OutputFile] = {}
    for name in paths:
        refuse_what_is_read(name, read)
        other = next((kind for end, kind in further.items() if name.lower().endswith(end)), None)
        if redact and other is not None:
            raise UsageError(
                f"cannot write {name!r} with --redact: this {other} holds every name as it was recorded; leave out "
                "--redact, or this output"
            )
        report_format = other or format_of_suffix(name)
        path = _writable(name, force=force)
        if path.resolve() in outputs:
            raise UsageError(f"cannot write {name!r} twice: it is given with --output more than once")
        outputs[path.resolve()] = OutputFile(path, report_format, is_redacted=redact)
    return _with_details(outputs, read, force=force)


def refuse_what_is_read(name: str | Path, read: Iterable[InputFile]) -> None:
    """
    Refuses to write over a file that the command reads, under whatever name.

    Args:
        name: Where to write.
        read: As for ``prepare_outputs``.
    """
    source = _read_as(name, read)
    if source is not None:
        raise UsageError(
            f"cannot write {str(name)!r}: it is {str(source)!r}, which this command reads; name another file"
        )


def _read_as(name: str | Path, read: Iterable[InputFile]) -> InputFile:
    """The name under which the command reads a file, by links of either kind as well; None where it does not."""
    for source in read:
        with contextlib.suppress(OSError, ValueError):  # there is no such file, or can be none
            if source is not None and Path(name).samefile(source):
                return source
    return None


def _with_details(
    outputs: Mapping[Path, OutputFile], read: Sequence[InputFile], *, force: bool
) -> tuple[OutputFile, ...]:
    """
    The same with a path beside each Markdown report for what will not fit into it, ``report.details.md``.

    It is chosen now, so that all saves of one run agree. Whether it will be needed is not known yet, so a file in its
    way is no reason to refuse: without ``--force`` the next free name is taken, ``report.details-2.md``.
    """
    taken = set(outputs)
    found = []
    for output in outputs.values():
        if output.report_format == "markdown":
            ends = ("" if number == 1 else f"-{number}" for number in count(1))
            paths = (output.path.with_name(f"{output.path.stem}.details{end}.md") for end in ends)
            free = (path for path in paths if _is_free(path, force=force) and _read_as(path, read) is None)
            details = next(path for path in free if path.resolve() not in taken)
            taken.add(details.resolve())
            found.append(replace(output, details=details))
        else:
            found.append(output)
    return tuple(found)


def _is_free(path: Path, *, force: bool) -> bool:
    return not os.path.lexists(path) or (force and path.is_file() and not path.is_symlink())


def _writable(name: str, *, force: bool) -> Path:
    """
    The file that a name stands for, through links, proved to be writable.

    It is fixed here, so that a link that is put in its place later on is replaced and not followed.
    """
    try:
        return _checked(Path(name), force=force)
    except (OSError, ValueError, RuntimeError) as error:  # ValueError: a NUL; RuntimeError: links in a circle
        reason = getattr(error, "strerror", None) or error
        raise UsageError(f"cannot write {name!r}: {reason}; name another file") from error


def _checked(path: Path, *, force: bool) -> Path:
    if path.is_dir():
        raise UsageError(f"cannot write {str(path)!r}: it is a directory; name a file in it")
    if not path.parent.is_dir():
        raise UsageError(f"cannot write {str(path)!r}: there is no directory {str(path.parent)!r}; make it first")
    with contextlib.suppress(FileNotFoundError):
        path.lstat()  # a name that is too long, or that no system allows, is found out now
    if os.path.lexists(path) and not force:
        what = "it exists already" if path.exists() else "it is a link to a file that is not there"
        raise UsageError(f"cannot write {str(path)!r}: {what}; pass --force to replace it")
    target = target_of(path)
    if target.exists() and not target.is_file():
        return target  # a pipe or a device: opening it now could block, or swallow what it is for
    if target.exists():
        os.close(os.open(target, os.O_WRONLY | os.O_APPEND | getattr(os, "O_NONBLOCK", 0)))
    elif not target.parent.is_dir():
        raise UsageError(f"cannot write {str(path)!r}: it is a link into a directory that is not there; remove it")
    check_directory(target.parent)
    return target


def refuse_raw_traces(directory: str | None, *, redact: bool) -> None:
    """Refuses to keep the profiler's traces beside redacted reports."""
    if directory is not None and redact:
        raise UsageError(
            f"cannot save traces in {directory!r} with --redact: the profiler writes paths and the names of modules "
            "and files into them; leave out --redact, or --save-traces"
        )


def for_others(record: AnyRecord, *, redact_names: bool = False) -> AnyRecord:
    """A record as it may be written: scrubbed, and redacted where that was asked for."""
    return privacy.redact(record) if redact_names else privacy.scrub(record)


def save_reports(diagnosis: Diagnosis, outputs: Sequence[OutputFile]) -> None:
    """
    Writes the report to every file; a reader sees the old file or the new one, never half of one.

    Raises:
        OutputError: A file could not be written; the others were.
    """
    cleaned = cache(lambda is_redacted: for_others(diagnosis, redact_names=is_redacted))
    write_outputs(outputs, lambda output: _texts(cleaned(output.is_redacted), output))


def write_outputs(outputs: Sequence[OutputFile], texts_of: Callable[[OutputFile], Iterable[tuple[Path, str]]]) -> None:
    """
    Writes every output; one that cannot be written does not cost the others.

    Args:
        outputs: What ``prepare_outputs`` returned.
        texts_of: The files that belong to an output, with what is to stand in them.

    Raises:
        OutputError: A file could not be written; the others were.
    """
    failures = []
    for output in outputs:
        try:
            for path, text in texts_of(output):
                replace_file(path, text.encode("utf-8", "backslashreplace"))
        except OSError as error:
            failures.append(f"cannot write {str(output.path)!r}: {error.strerror or error}")
    if failures:
        raise OutputError("; ".join(failures))


def _texts(diagnosis: Diagnosis, output: OutputFile) -> Iterator[tuple[Path, str]]:
    """The report, and before it the file that it names for what did not fit, where there is such."""
    if output.details is None:
        yield output.path, renderer_of(output.report_format)(diagnosis)
        return
    from layoutdoctor.reports.markdown.report import markdown_parts  # late: most runs write none

    report, details = markdown_parts(diagnosis, output.details.name)
    if details is not None:
        yield output.details, details
    yield output.path, report


def replace_file(path: Path, data: bytes) -> None:
    """
    Writes a file; a reader sees the old one or the new one, never half of one.

    Args:
        path: Where to; a link is replaced, ``prepare_outputs`` has followed those that the user meant.
        data: What to write.

    Raises:
        OSError: It could not be written.
    """
    with replacing(path, follow=False) as stream:
        stream.write(data)


def print_report(diagnosis: Diagnosis, report_format: str, *, redact: bool = False) -> None:
    """The report to standard output; on a terminal laid out for its width, and coloured unless NO_COLOR is set."""
    diagnosis = for_others(diagnosis, redact_names=redact)
    if report_format != "text":
        print_text(renderer_of(report_format)(diagnosis))
        return
    is_coloured = wants_colour(sys.stdout)
    width = terminal_width()
    if width is None and not is_coloured:
        print_text(render_text(diagnosis))
    else:
        print_text(render_terminal(diagnosis, width or DEFAULT_WIDTH, is_coloured=is_coloured))


def print_text(text: str) -> None:
    """
    Text to standard output, as far as its encoding can show it; a reader that went away is no error.

    Raises:
        OutputError: It could not be written, as where the disk is full.
    """
    encoding = sys.stdout.encoding or "utf-8"
    text = without_workflow_commands(text) if os.environ.get("GITHUB_ACTIONS") else text
    try:
        sys.stdout.write(text.encode(encoding, "replace").decode(encoding))
        sys.stdout.flush()
    except BrokenPipeError:
        silence(sys.stdout)
    except OSError as error:
        silence(sys.stdout)
        raise OutputError(
            f"cannot write the report to standard output: {error.strerror or error}; name a file with --output"
        ) from error


def without_workflow_commands(text: str) -> str:
    """
    A report as a CI service may show it: no line of it is taken for a command of the service.

    In JSON nothing changes but how it is written.

    Source:
        GitHub's runner takes a line that begins with ``::name`` for a command, and an old form of it,
        ``##[name]``, anywhere (actions/runner, ActionCommand.cs).
    """
    text = _COMMAND.sub(r"\1: :", text)
    return text.replace("##[", "\\u0023#[" if text.startswith("{") else "# #[")


def open_standard_streams() -> None:
    """
    Opens the standard streams that this process was started without (``>&-``), on nothing.

    Otherwise the next file to be opened takes the number of a standard stream, and gets what is written to that.
    """
    for number in range(3):
        try:
            os.fstat(number)
        except OSError:
            null = os.open(os.devnull, os.O_RDWR)  # takes the lowest free number, which is this one
            if null != number:
                os.dup2(null, number)
                os.close(null)
    if sys.stdout is None:
        sys.stdout = open(1, "w", encoding="utf-8", closefd=False)  # noqa: SIM115
    if sys.stderr is None:
        sys.stderr = open(2, "w", encoding="utf-8", errors="backslashreplace", closefd=False)  # noqa: SIM115


@contextlib.contextmanager
def stdout_to_stderr() -> Iterator[None]:
    """
    Meanwhile whatever is written to standard output goes to standard error.

    Also what C code and child processes write there: standard output is the report's.
    """
    with contextlib.redirect_stdout(sys.stderr):
        flush_c_streams()
        saved = os.dup(1)
        try:
            os.dup2(2, 1)
            yield
        finally:
            flush_c_streams()
            os.dup2(saved, 1)
            os.close(saved)


def flush_c_streams() -> None:
    """Writes out what C code has printed and its library still holds back."""
    with contextlib.suppress(Exception):  # a C library without it has nothing to flush
        ctypes.CDLL(None).fflush(None)
