"""
Where reports go: files that are proved writable before anything is measured, and standard output.

Faces the subcommands.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import sys
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING

from layoutdoctor.commands.terminal import render_terminal, terminal_width, wants_colour
from layoutdoctor.errors import LayoutDoctorError, UsageError
from layoutdoctor.reports import RENDERERS, format_of_suffix, render
from layoutdoctor.reports.text import DEFAULT_WIDTH
from layoutdoctor.writing import replacing

if TYPE_CHECKING:
    import argparse
    from collections.abc import Iterator, Mapping, Sequence

    from layoutdoctor.records import Diagnosis


class OutputError(LayoutDoctorError):
    """A report could not be written after all (exit status 3)."""


@dataclass(frozen=True, slots=True)
class OutputFile:
    """
    A file that a report is to be written to.

    Attributes:
        path: Where, as the user named it.
        report_format: What to write.
    """

    path: Path
    report_format: str


def add_output_options(parser: argparse.ArgumentParser) -> None:
    """
    The options that every command with a report has.

    Args:
        parser: The subcommand's parser.
    """
    parser.add_argument(
        "--format",
        choices=tuple(sorted(RENDERERS)),
        default="text",
        help="format of the report on standard output (default: text)",
    )
    parser.add_argument(
        "--output",
        metavar="FILE",
        action="append",
        default=[],
        help="write a report to a file as well, in the format of its suffix: .md, .html, .json, .txt, .sarif, "
        ".xml (JUnit), .py (reproducer); may be repeated",
    )
    parser.add_argument("--force", action="store_true", help="replace output files that exist")


def prepare_outputs(
    paths: Sequence[str], *, force: bool, further: Mapping[str, str] = MappingProxyType({})
) -> tuple[OutputFile, ...]:
    """
    The files to write, each proved to be writable; none is changed yet.

    Args:
        paths: What the user gave with ``--output``.
        force: Whether an existing file may be replaced.
        further: Formats that no report has, by the end of the file's name.

    Raises:
        UsageError: A file's suffix names no format, it exists already, it is named twice, or it cannot be written.
    """
    outputs: dict[Path, OutputFile] = {}
    for name in paths:
        path = Path(name)
        other = next((kind for end, kind in further.items() if name.lower().endswith(end)), None)
        output = OutputFile(path, other or format_of_suffix(name))
        if path.resolve() in outputs:
            raise UsageError(f"cannot write {name!r} twice: it is given with --output more than once")
        _check_writable(path, force=force)
        outputs[path.resolve()] = output
    return tuple(outputs.values())


def _check_writable(path: Path, *, force: bool) -> None:
    if path.is_dir():
        raise UsageError(f"cannot write {str(path)!r}: it is a directory; name a file in it")
    if not path.parent.is_dir():
        raise UsageError(f"cannot write {str(path)!r}: there is no directory {str(path.parent)!r}; make it first")
    if path.exists() and not force:
        raise UsageError(f"cannot write {str(path)!r}: it exists already; pass --force to replace it")
    if path.exists() and not path.is_file():
        return  # a pipe or a device: opening it now could block, or swallow what it is for
    try:
        if path.exists():
            path.open("ab").close()
        check_directory(path.resolve().parent)
    except OSError as error:
        raise UsageError(f"cannot write {str(path)!r}: {error.strerror or error}; name another file") from error


def check_directory(directory: Path) -> None:
    """
    Proves that a file can be made in a directory, by making one and removing it.

    Args:
        directory: An existing directory.

    Raises:
        OSError: It cannot.
    """
    probe = directory / f".layoutdoctor-{os.getpid()}.tmp"
    probe.open("xb").close()
    probe.unlink()


def save_reports(diagnosis: Diagnosis, outputs: Sequence[OutputFile]) -> None:
    """
    Writes the report to every file; a reader sees the old file or the new one, never half of one.

    Args:
        diagnosis: Any diagnosis.
        outputs: What ``prepare_outputs`` returned.

    Raises:
        OutputError: A file could not be written; the others were.
    """
    failures = []
    for output in outputs:
        try:
            replace_file(output.path, render(diagnosis, output.report_format).encode("utf-8", "backslashreplace"))
        except OSError as error:
            failures.append(f"cannot write {str(output.path)!r}: {error.strerror or error}")
    if failures:
        raise OutputError("; ".join(failures))


def replace_file(path: Path, data: bytes) -> None:
    """
    Writes a file; a reader sees the old one or the new one, never half of one.

    Args:
        path: Where to; a link stays a link.
        data: What to write.

    Raises:
        OSError: It could not be written.
    """
    with replacing(path) as stream:
        stream.write(data)


def print_report(diagnosis: Diagnosis, report_format: str) -> None:
    """
    The report to standard output; on a terminal laid out for its width, and coloured unless NO_COLOR is set.

    Args:
        diagnosis: Any diagnosis.
        report_format: Which report.
    """
    if report_format != "text":
        print_text(render(diagnosis, report_format))
        return
    is_coloured = wants_colour(sys.stdout)
    width = terminal_width()
    if width is None and not is_coloured:
        print_text(render(diagnosis, "text"))
    else:
        print_text(render_terminal(diagnosis, width or DEFAULT_WIDTH, is_coloured=is_coloured))


def print_text(text: str) -> None:
    """
    Text to standard output, as far as its encoding can show it; a reader that went away is no error.

    Args:
        text: Anything, with its own line breaks.

    Raises:
        OutputError: It could not be written, as where the disk is full.
    """
    encoding = sys.stdout.encoding or "utf-8"
    try:
        sys.stdout.write(text.encode(encoding, "replace").decode(encoding))
        sys.stdout.flush()
    except BrokenPipeError:
        _silence_stdout()
    except OSError as error:
        _silence_stdout()
        raise OutputError(
            f"cannot write the report to standard output: {error.strerror or error}; name a file with --output"
        ) from error


def _silence_stdout() -> None:
    """Python flushes standard output once more as it ends; give it somewhere to go."""
    with contextlib.suppress(OSError, ValueError):
        null = os.open(os.devnull, os.O_WRONLY)
        os.dup2(null, sys.stdout.fileno())
        os.close(null)


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
