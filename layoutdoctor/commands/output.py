"""
Writes the results of a command to files, which are checked before anything runs, and to standard output.

Every record that leaves the process passes ``for_others``, which scrubs or redacts it.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import sys
import tempfile
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING

from layoutdoctor.commands.streams import OutputError, logger, print_text, say, terminal_width
from layoutdoctor.diagnosis import Diagnosis
from layoutdoctor.diagnosis.saved import DEFAULT_MOST_BYTES
from layoutdoctor.errors import UsageError
from layoutdoctor.files.writing import RECORDING_SUFFIX, file_name_of, mode_of_file, write_file
from layoutdoctor.reports import FORMATS, INSTEAD_OF_JUNIT, format_of_suffix, renderer_of
from layoutdoctor.units import format_bytes

if TYPE_CHECKING:
    from layoutdoctor.privacy.scrubbing import AnyRecord
    from layoutdoctor.recording.recording import Recording
    from layoutdoctor.reports.sections.rows import Table
    from layoutdoctor.reports.text import LineRole

    InputFile = str | Path | None
    Annotate = Callable[[Diagnosis, Path], None]

ANNOTATED = "annotated trace"
_TABLE_WIDTH = 120
_STYLES: Mapping[LineRole, str] = {
    "title": "dim",
    "claim": "bold",
    "code": "cyan",
    "head": "dim",
    "recommended": "bold green",
    "failed": "red",
    "to do": "green",
    "more": "dim",
}
_HIGHLIGHTS: tuple[tuple[LineRole, str, str], ...] = (
    ("claim", r"^[\d.]+x faster .*", "green"),
    ("finding", r"^LD\d+ error ", "bold red"),
    ("finding", r"^LD\d+ warning ", "yellow"),
    ("finding", r"^LD\d+ note ", "cyan"),
)
"""Highlighted parts of lines: kind of line, pattern, style."""


@dataclass(frozen=True, slots=True)
class OutputFile:
    """
    An output file for a report.

    Attributes:
        details: Second file of a Markdown report, for the details; None for other formats.
    """

    path: Path
    report_format: str
    details: Path | None = None

    def write(self, text: str) -> None:
        """Writes the text as the whole content of the file."""
        write_file(self.path, text)


def add_output_options(parser: argparse.ArgumentParser, formats: Collection[str] = FORMATS) -> None:
    """Adds the options of every command with a report."""
    endings = {".md": "markdown", ".html": "html", ".json": "json", ".txt": "text", ".sarif": "sarif"}
    endings[".py (reproducer)"] = "reproducer"
    parser.add_argument(
        "--format",
        type=_known_format,
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
    parser.add_argument("--force", action="store_true", help="replace output files, traces and recordings that exist")
    parser.add_argument(
        "--redact",
        action="store_true",
        help="replace the names of modules, classes, files and operators of your own by pseudonyms, and leave out "
        "sentences, source lines and logs, in every report; no report has user or host names, paths or secrets",
    )


def _known_format(text: str) -> str:
    """Returns a format from the command line; refuses ``junit`` with advice. argparse refuses other unknown formats."""
    if text == "junit":
        raise argparse.ArgumentTypeError(f"cannot print 'junit': {INSTEAD_OF_JUNIT}")
    return text


def add_limit_option(parser: argparse.ArgumentParser) -> None:
    """Adds the size limit of commands that read traces."""
    parser.add_argument(
        "--max-bytes",
        metavar="BYTES",
        type=whole_number,
        default=DEFAULT_MOST_BYTES,
        help=f"read at most this much of a file, after unpacking (default: {format_bytes(DEFAULT_MOST_BYTES)})",
    )


def whole_number(text: str) -> int:
    """Reads a whole number, 1 or more, from the command line."""
    if not (text.isascii() and text.isdecimal() and int(text)):
        raise argparse.ArgumentTypeError(f"cannot use {text!r}: expected a whole number from 1 on")
    return int(text)


def read_weights(text: str) -> list[float]:
    """Reads numbers separated by commas from the command line."""
    try:
        return [float(part) for part in text.split(",")]
    except ValueError:
        raise argparse.ArgumentTypeError(
            f"cannot use {text!r} as weights: expected numbers separated by commas, such as 10,1"
        ) from None


def prepare_outputs(
    paths: Sequence[str],
    *,
    force: bool,
    read: Sequence[InputFile] = (),
    further: Mapping[str, str] = MappingProxyType({}),
    redact: bool = False,
) -> tuple[OutputFile, ...]:
    """
    Checks that all output files can be written; changes no file yet.

    Args:
        read: Files that the command reads, which are never replaced; None for an option that was not given.
        further: Formats of raw data, by the end of the file's name. Raw data keep the names of modules and files.
        redact: Whether names of modules and files are replaced in reports; then raw data are refused.

    Raises:
        UsageError: A file cannot be written, is read by the command, is needed twice, or has an unknown suffix.
    """
    outputs: list[OutputFile] = []
    for name in paths:
        raw = next((kind for end, kind in further.items() if name.lower().endswith(end)), "")
        if redact and raw:
            raise UsageError(
                f"cannot write {name!r} with --redact: this {raw} holds every name as it was recorded; leave out "
                "--redact, or this output"
            )
        output = OutputFile(writable(Path(name), read, force=force), raw or format_of_suffix(name))
        if output.report_format == "markdown":
            details = output.path.with_name(f"{output.path.stem}.details.md")
            output = replace(output, details=writable(details, read, force=force))
        outputs.append(output)
    taken: set[Path] = set()
    for path in (path for output in outputs for path in (output.path, output.details) if path is not None):
        if path.absolute() in taken:
            raise UsageError(
                f"cannot write {str(path)!r} twice: two outputs need this file (NAME.md also writes NAME.details.md); "
                "name another file"
            )
        taken.add(path.absolute())
    return tuple(outputs)


def writable(path: Path, read: Iterable[InputFile], *, force: bool) -> Path:
    """Returns the path, or raises ``UsageError`` if the file is in ``read`` or cannot be written. Changes no file."""
    for source in read:
        with contextlib.suppress(OSError, ValueError):  # no such file exists, or can exist
            if source is not None and path.samefile(source):
                raise UsageError(
                    f"cannot write {str(path)!r}: it is {str(source)!r}, which this command reads; name another file"
                )
    try:
        mode_of_file(path)
        if os.path.lexists(path) and not force:
            raise UsageError(f"cannot write {str(path)!r}: it exists already; pass --force to replace it")
        if not path.parent.is_dir():
            raise UsageError(f"cannot write {str(path)!r}: there is no directory {str(path.parent)!r}; make it first")
        with tempfile.TemporaryFile(dir=path.parent):
            return path
    except (OSError, ValueError) as error:  # ValueError: a NUL in the path
        reason = getattr(error, "strerror", None) or error
        raise UsageError(f"cannot write {str(path)!r}: {reason}; name another file") from error


def files_of_target(target: str) -> list[Path]:
    """Lists the files from which a target is loaded, as its name suggests; some of them may not exist."""
    found = path_of_target(target)
    parts = target.partition(":")[0].split(".") if ":" in target and ".py:" not in target else []
    modules = [Path(*parts[:end]) for end in range(1, len(parts) + 1)]
    return [found, *(file for one in modules for file in (one / "__init__.py", Path(f"{one}.py")))]


def path_of_target(target: str) -> Path:
    """Returns the file in a target's name: ``model.py`` of ``model.py:NAME``; without ``.py:``, the whole name."""
    return Path(target.partition(".py:")[0] + ".py" if ".py:" in target else target)


def prepare_directory(name: str, what: str) -> Path:
    """Makes a directory, checks that files can be made in it, and returns its absolute path."""
    try:
        Path(name).mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=name):
            return Path(name).absolute()  # the model may change the current folder
    except (OSError, ValueError, RecursionError) as error:  # a NUL in the path, or a thousand nested folders
        reason = getattr(error, "strerror", None) or error
        raise UsageError(f"cannot save {what} in {name!r}: {reason}; name another directory") from error


def prepare_raw(arguments: argparse.Namespace, what: str, suffix: str) -> Path | None:
    """Prepares the directory of ``--save-recordings`` or ``--save-traces``; None if the option was not given."""
    name = getattr(arguments, f"save_{what}")
    if name is None:
        return None
    if arguments.redact:
        raise UsageError(
            f"cannot save {what} in {name!r} with --redact: they hold the names of modules and files; leave out "
            f"--redact, or --save-{what}"
        )
    directory = prepare_directory(name, what)
    there = min(directory.glob(f"*{suffix}"), default=None)
    if there is not None and not arguments.force:
        raise UsageError(
            f"cannot save {what} in {str(directory)!r}: {there.name!r} is there already; pass --force to replace it, "
            "or name another directory"
        )
    return directory


def save_recordings(recordings: Iterable[Recording], directory: Path) -> None:
    """Writes recordings, one file for each configuration. A file that cannot be written is named on standard error."""
    from layoutdoctor.recording.saved import save_recording

    for recording in recordings:
        path = directory / f"{file_name_of(recording.name)}{RECORDING_SUFFIX}"
        try:
            save_recording(for_others(recording), path)
        except OSError as error:
            say(f"warning: cannot write {str(path)!r}: {error.strerror or error}")


def for_others(record: AnyRecord, *, redact_names: bool = False) -> AnyRecord:
    """Scrubs one or several records so that they may leave this process; redacts them if ``redact_names`` is True."""
    from layoutdoctor import privacy

    return privacy.redact(record) if redact_names else privacy.scrub(record)


def save_reports(shown: Diagnosis, outputs: Sequence[OutputFile], annotate: Annotate | None = None) -> tuple[Path, ...]:
    """
    Writes the report to every output file, and returns the paths, including the details of Markdown reports.

    Args:
        shown: The diagnosis as ``for_others`` returned it.
        annotate: Function that writes an annotated trace.

    Raises:
        OutputError: A file could not be written; the other files were written.
        UsageError, TraceError: The source of an annotated trace is no Chrome trace, or cannot be read.
    """
    written: list[Path] = []

    def write(output: OutputFile) -> None:
        if output.report_format == ANNOTATED and annotate is not None:
            annotate(shown, output.path)
        elif output.details is None:
            output.write(renderer_of(output.report_format)(shown))
        else:
            from layoutdoctor.reports.markdown import markdown_parts  # imported only for Markdown

            report, details = markdown_parts(shown, output.details.name)
            if details is not None:
                write_file(output.details, details)
                written.append(output.details)
            output.write(report)
        written.append(output.path)

    write_outputs(outputs, write)
    return tuple(written)


def write_outputs(outputs: Sequence[OutputFile], write: Callable[[OutputFile], None]) -> None:
    """Writes every output, and raises ``OutputError`` at the end if some could not be written."""
    failures = []
    for output in outputs:
        try:
            write(output)
        except OSError as error:
            failures.append(f"cannot write {str(output.path)!r}: {error.strerror or error}")
    if failures:
        raise OutputError("; ".join(failures))


def publish(
    shown: AnyRecord,
    outputs: Sequence[OutputFile],
    report_format: str,
    render: Callable[[AnyRecord, str, int | None], str],
) -> None:
    """
    Writes the report of a comparison or a policy to files, and prints it even if a file could not be written.

    Args:
        shown: The record as ``for_others`` returned it.
    """
    try:
        write_outputs(outputs, lambda output: output.write(render(shown, output.report_format, None)))
        say_what_was_written([output.path for output in outputs])
    finally:
        print_text(render(shown, report_format, terminal_width()))


def print_table(table: Table, report_format: str) -> None:
    """Prints one table as text or Markdown."""
    if report_format == "markdown":
        from layoutdoctor.reports.markdown import table_of  # imported only for Markdown

        print_text(table_of(table) + "\n")
        return
    from layoutdoctor.reports.text import plain_table

    print_text(plain_table(table, terminal_width() or _TABLE_WIDTH) + "\n")


def say_what_was_written(paths: Sequence[Path]) -> None:
    """Logs the name and size of each written file."""
    for path in paths:
        with contextlib.suppress(OSError):  # the file was removed meanwhile
            logger.info("wrote %s (%s)", path, format_bytes(path.stat().st_size))


def print_report(shown: Diagnosis, report_format: str) -> None:
    """Prints the report; text is as wide as the terminal, and has colours on a terminal or with ``FORCE_COLOR``."""
    if report_format == "text" and (sys.stdout.isatty() or os.environ.get("FORCE_COLOR")):
        print_text(render_terminal(shown, terminal_width()))
    else:
        print_text(renderer_of(report_format)(shown))


def render_terminal(diagnosis: Diagnosis, width: int | None) -> str:
    """
    Renders the report, with colours if rich decides for them (``NO_COLOR``, ``FORCE_COLOR``).

    Args:
        width: Characters per line; None for 100. Lines of code to paste are never broken.
    """
    from rich.console import Console  # imported only for a terminal
    from rich.text import Text

    from layoutdoctor.reports.sections.view import build_view
    from layoutdoctor.reports.text import LABEL_WIDTH, text_lines

    console = Console(file=sys.stdout, highlight=False, markup=False, emoji=False)
    with console.capture() as captured:
        for role, line in text_lines(build_view(diagnosis), width):
            text = Text(line, _STYLES.get(role, ""))
            for wanted, pattern, style in _HIGHLIGHTS:
                if role == wanted:
                    text.highlight_regex(pattern, style)
            if role == "note":
                text.stylize("bold", 0, LABEL_WIDTH)
            console.print(text, soft_wrap=True)
    return captured.get()
