"""
Where the answer of a command goes: files that are proved writable before anything runs, and standard output.

Every record that leaves the process passes ``for_others``.
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
"""What stands out in a line of each kind."""


@dataclass(frozen=True, slots=True)
class OutputFile:
    """
    A file that a report is to be written to.

    Attributes:
        details: The file beside a Markdown report for the rest; None for the other formats.
    """

    path: Path
    report_format: str
    details: Path | None = None

    def write(self, text: str) -> None:
        """Replaces the file."""
        write_file(self.path, text)


def add_output_options(parser: argparse.ArgumentParser, formats: Collection[str] = FORMATS) -> None:
    """The options that every command with a report has."""
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
        "sentences, source lines and logs, in every report; user and host names, paths and secrets are in none",
    )


def _known_format(text: str) -> str:
    """A format as given on the command line, which is checked against the command's own afterwards."""
    if text == "junit":
        raise argparse.ArgumentTypeError(f"cannot print 'junit': {INSTEAD_OF_JUNIT}")
    return text


def add_limit_option(parser: argparse.ArgumentParser) -> None:
    """The option of commands that read traces."""
    parser.add_argument(
        "--max-bytes",
        metavar="BYTES",
        type=whole_number,
        default=DEFAULT_MOST_BYTES,
        help=f"read at most this much of a file, after unpacking (default: {format_bytes(DEFAULT_MOST_BYTES)})",
    )


def whole_number(text: str) -> int:
    """A whole number from 1 on, as given on the command line."""
    if not (text.isascii() and text.isdecimal() and int(text)):
        raise argparse.ArgumentTypeError(f"cannot use {text!r}: expected a whole number from 1 on")
    return int(text)


def read_weights(text: str) -> list[float]:
    """Numbers separated by commas, as given on the command line."""
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
    The files to write, each proved to be writable; none is changed yet.

    Args:
        read: The files that the command reads, which are never replaced. None is an option that was not given.
        further: Formats that no report has, by the end of the file's name: raw data, in which no name is replaced.
    """
    outputs: list[OutputFile] = []
    for name in paths:
        raw = next((kind for end, kind in further.items() if name.lower().endswith(end)), None)
        if redact and raw is not None:
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
            raise UsageError(f"cannot write {str(path)!r} twice: it is given with --output more than once")
        taken.add(path.absolute())
    return tuple(outputs)


def writable(path: Path, read: Iterable[InputFile], *, force: bool) -> Path:
    """A path that can be written, without changing anything there, and that the command does not read."""
    for source in read:
        with contextlib.suppress(OSError, ValueError):  # there is no such file, or can be none
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
    """The files that a target is loaded from, as far as its name says; some may not be there."""
    found = path_of_target(target)
    parts = target.partition(":")[0].split(".") if ":" in target and ".py:" not in target else []
    modules = [Path(*parts[:end]) for end in range(1, len(parts) + 1)]
    return [found, *(file for one in modules for file in (one / "__init__.py", Path(f"{one}.py")))]


def path_of_target(target: str) -> Path:
    """The file that a target names, if it names one."""
    return Path(target.partition(".py:")[0] + ".py" if ".py:" in target else target)


def prepare_directory(name: str, what: str) -> Path:
    """Makes a directory and proves that files can be made in it."""
    try:
        Path(name).mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=name):
            return Path(name).absolute()  # the model may change the current folder
    except (OSError, ValueError, RecursionError) as error:  # a NUL in the path, a folder in a thousand others
        reason = getattr(error, "strerror", None) or error
        raise UsageError(f"cannot save {what} in {name!r}: {reason}; name another directory") from error


def prepare_raw(arguments: argparse.Namespace, what: str, suffix: str) -> Path | None:
    """The directory of ``--save-recordings`` or ``--save-traces``; None if the option was not given."""
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
    """Writes recordings, one file for each configuration; one that cannot be written is named on standard error."""
    from layoutdoctor.recording.saved import save_recording

    for recording in recordings:
        path = directory / f"{file_name_of(recording.name)}{RECORDING_SUFFIX}"
        try:
            save_recording(for_others(recording), path)
        except OSError as error:
            say(f"warning: cannot write {str(path)!r}: {error.strerror or error}")


def for_others(record: AnyRecord, *, redact_names: bool = False) -> AnyRecord:
    """A record, or several, as they may leave this process: scrubbed, and redacted if that was asked for."""
    from layoutdoctor import privacy

    return privacy.redact(record) if redact_names else privacy.scrub(record)


def save_reports(shown: Diagnosis, outputs: Sequence[OutputFile], annotate: Annotate | None = None) -> tuple[Path, ...]:
    """
    Writes the report to every file, those beside a Markdown report among them, and returns their paths.

    Args:
        shown: From ``for_others``.
        annotate: Writes an annotated trace.

    Raises:
        OutputError: A file could not be written; the others were.
    """
    written: list[Path] = []

    def write(output: OutputFile) -> None:
        if output.report_format == ANNOTATED and annotate is not None:
            annotate(shown, output.path)
        elif output.details is None:
            output.write(renderer_of(output.report_format)(shown))
        else:
            from layoutdoctor.reports.markdown import markdown_parts  # late: the other formats need none of it

            report, details = markdown_parts(shown, output.details.name)
            if details is not None:
                write_file(output.details, details)
                written.append(output.details)
            output.write(report)
        written.append(output.path)

    write_outputs(outputs, write)
    return tuple(written)


def write_outputs(outputs: Sequence[OutputFile], write: Callable[[OutputFile], None]) -> None:
    """Writes every output; one that cannot be written does not cost the others."""
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
    """Writes a comparison or a policy, which is from ``for_others``, to its files, and prints it all the same."""
    try:
        write_outputs(outputs, lambda output: output.write(render(shown, output.report_format, None)))
        say_what_was_written([output.path for output in outputs])
    finally:
        print_text(render(shown, report_format, terminal_width()))


def print_table(table: Table, report_format: str) -> None:
    """One table to standard output, as text or Markdown."""
    if report_format == "markdown":
        from layoutdoctor.reports.markdown import table_of  # late: text needs none of it

        print_text(table_of(table) + "\n")
        return
    from layoutdoctor.reports.text import plain_table

    print_text(plain_table(table, terminal_width() or _TABLE_WIDTH) + "\n")


def say_what_was_written(paths: Sequence[Path]) -> None:
    """Each file with its size."""
    for path in paths:
        with contextlib.suppress(OSError):  # gone already
            logger.info("wrote %s (%s)", path, format_bytes(path.stat().st_size))


def print_report(shown: Diagnosis, report_format: str) -> None:
    """The report to standard output; on a terminal set for its width, and coloured."""
    if report_format == "text" and (sys.stdout.isatty() or os.environ.get("FORCE_COLOR")):
        print_text(render_terminal(shown, terminal_width()))
    else:
        print_text(renderer_of(report_format)(shown))


def render_terminal(diagnosis: Diagnosis, width: int | None) -> str:
    """
    The report for standard output, with colours if rich finds that it takes them (``NO_COLOR``, ``FORCE_COLOR``).

    Args:
        width: Characters per line, None for 100; lines to paste are never broken.
    """
    from rich.console import Console  # late: saved records and files need no rich
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
