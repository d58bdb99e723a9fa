"""Where reports and recordings go: files that are proved writable before anything is measured, and standard output."""

from __future__ import annotations

import contextlib
import os
import sys
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING

from layoutdoctor.commands.streams import OutputError, logger, print_text, say, terminal_width, wants_colour
from layoutdoctor.diagnosis.writing import (
    TRACE_SUFFIX,
    check_directory,
    file_name_of,
    is_packed_name,
    target_of,
    write_file,
)
from layoutdoctor.errors import UsageError
from layoutdoctor.reports import RENDERERS, format_of_suffix, renderer_of

if TYPE_CHECKING:
    import argparse
    from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
    from typing import TypeVar

    import msgspec

    from layoutdoctor.diagnosis.records import Configuration, Diagnosis
    from layoutdoctor.recording.recording import Recording

    AnyRecord = TypeVar("AnyRecord", bound=msgspec.Struct)
    InputFile = str | Path | None

RECORDING_SUFFIX = ".recording"
_RAW_SUFFIXES = {"recordings": RECORDING_SUFFIX, "traces": TRACE_SUFFIX}


@dataclass(frozen=True, slots=True)
class OutputFile:
    """
    A file that a report is to be written to.

    Attributes:
        path: Where: what the user named, and where that was a link what it led to.
        report_format: What to write.
        is_redacted: Whether names of modules and files become pseudonyms in it.
        details: Where to write what does not fit into a Markdown report; None for the other formats.
        is_packed: Whether it is gzipped.
    """

    path: Path
    report_format: str
    is_redacted: bool = False
    details: Path | None = None
    is_packed: bool = False

    def write(self, text: str) -> None:
        """Writes it; a link is replaced, as those that the user meant were followed by ``prepare_outputs``."""
        write_file(self.path, text, follow=False, is_packed=self.is_packed)


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
    parser.add_argument("--force", action="store_true", help="replace output files, traces and recordings that exist")
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
    taken: set[Path] = set()

    def claim(name: str) -> Path:
        refuse_what_is_read(name, read)
        path = _writable(name, force=force)
        if path.resolve() in taken:
            raise UsageError(f"cannot write {name!r} twice: it is given with --output more than once")
        taken.add(path.resolve())
        return path

    outputs = []
    for name in paths:
        other = next((kind for end, kind in further.items() if name.lower().endswith(end)), None)
        if redact and other is not None:
            raise UsageError(
                f"cannot write {name!r} with --redact: this {other} holds every name as it was recorded; leave out "
                "--redact, or this output"
            )
        path = claim(name)
        outputs.append(OutputFile(path, other or format_of_suffix(name), redact, is_packed=is_packed_name(name)))
    return tuple(
        replace(output, details=claim(_details_name(output.path))) if output.report_format == "markdown" else output
        for output in outputs
    )


def _details_name(report: Path) -> str:
    """The file beside a Markdown report for what does not fit into it; nobody named it, so no link is followed."""
    path = report.with_name(f"{report.stem}.details.md")
    if path.is_symlink():
        raise UsageError(f"cannot write {str(path)!r}, which belongs to the report: it is a link; remove it")
    return str(path)


def files_of_target(target: str) -> list[Path]:
    """
    The files that a target is loaded from, as far as its name tells; some may not be there. Nothing of it is run.

    Args:
        target: As on the command line: a file, a file with the name of an attribute, or ``package.module:attr``.
    """
    found = [path_of_target(target)]
    parts = target.partition(":")[0].split(".") if ":" in target and ".py:" not in target else []
    for end in range(1, len(parts) + 1):
        stems = [Path(place, *parts[:end]) for place in (str(Path.cwd()), *sys.path)]
        candidates = (path for stem in stems for path in (stem / "__init__.py", stem.with_name(f"{stem.name}.py")))
        found += [path for path in candidates if path.is_file()]
    return found


def path_of_target(target: str) -> Path:
    """The file that a target names, if it names one."""
    return Path(target.partition(".py:")[0] + ".py" if ".py:" in target else target)


def refuse_what_is_read(name: str | Path, read: Iterable[InputFile]) -> None:
    """
    Refuses to write over a file that the command reads, under whatever name.

    Args:
        name: Where to write.
        read: As for ``prepare_outputs``.
    """
    for source in read:
        with contextlib.suppress(OSError, ValueError):  # there is no such file, or can be none
            if source is not None and Path(name).samefile(source):
                raise UsageError(
                    f"cannot write {str(name)!r}: it is {str(source)!r}, which this command reads; name another file"
                )


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


def prepare_directory(name: str, what: str) -> Path:
    """
    Makes a directory and proves that files can be made in it.

    Args:
        name: As given.
        what: What is to be saved in it.

    Raises:
        UsageError: That is not so.
    """
    directory = Path(name)
    try:
        directory.mkdir(parents=True, exist_ok=True)
        check_directory(directory)
    except OSError as error:
        raise UsageError(
            f"cannot save {what} in {name!r}: {error.strerror or error}; name another directory"
        ) from error
    return directory.absolute()  # the model may change the current folder


def prepare_raw(
    arguments: argparse.Namespace,
    what: str,
    configurations: Sequence[Configuration],
    read: Sequence[InputFile] = (),
) -> Path | None:
    """
    The directory that raw data of each configuration go to; None where none were asked for.

    Args:
        arguments: The parsed command line.
        what: ``recordings`` or ``traces``, as in ``--save-traces``.
        configurations: What will be recorded.
        read: What the command reads; none of it is ever replaced.

    Raises:
        UsageError: A file is there already, that of a cure (NAME+CURE) included, or is read, the directory cannot be
            used, or reports are to be redacted.
    """
    name = getattr(arguments, f"save_{what}")
    if name is None:
        return None
    if arguments.redact:
        raise UsageError(
            f"cannot save {what} in {name!r} with --redact: they hold the names of modules and files; leave out "
            f"--redact, or --save-{what}"
        )
    directory, suffix = prepare_directory(name, what), _RAW_SUFFIXES[what]
    names = [configuration.name for configuration in configurations]
    files = [directory / f"{file_name_of(name)}{suffix}" for name in names]
    for file in files:
        refuse_what_is_read(file, read)
    there = [file.name for file in files if os.path.lexists(file)]
    there += [p.name for p in sorted(directory.glob("*+*" + suffix)) if p.name.partition("+")[0] in names]
    if there and not arguments.force:
        raise UsageError(
            f"cannot save {what} in {str(directory)!r}: {there[0]!r} is there already; pass --force to replace it, or "
            "name another directory"
        )
    return directory


def save_recordings(recordings: Iterable[Recording], directory: Path, interrupted: str | None = None) -> None:
    """
    Writes recordings, one file for each configuration, without user and host names, absolute paths and secrets.

    One that cannot be written costs itself only, and is named on standard error.

    Args:
        recordings: Of one diagnosis.
        directory: From ``prepare_recordings``.
        interrupted: What stopped the diagnosis; None where it came to its end.
    """
    import msgspec

    from layoutdoctor.recording.saved import save_recording

    for recording in recordings:
        if interrupted is not None:
            head = msgspec.structs.replace(recording.head, interrupted=interrupted)
            recording = msgspec.structs.replace(recording, head=head)
        path = directory / f"{file_name_of(recording.name)}{RECORDING_SUFFIX}"
        try:
            save_recording(for_others(recording), path)
        except OSError as error:
            say(f"warning: cannot write {str(path)!r}: {error.strerror or error}")


def for_others(record: AnyRecord, *, redact_names: bool = False) -> AnyRecord:
    """A record as it may be written: scrubbed, and redacted where that was asked for."""
    from layoutdoctor import privacy

    return privacy.redact(record) if redact_names else privacy.scrub(record)


def save_reports(
    diagnosis: Diagnosis,
    outputs: Sequence[OutputFile],
    further: Mapping[str, Callable[[Diagnosis, Path], None]] = MappingProxyType({}),
) -> tuple[Path, ...]:
    """
    Writes the report to every file; a reader sees the old file or the new one, never half of one.

    Args:
        diagnosis: As it is; every report is scrubbed, and redacted where that was asked for.
        outputs: What ``prepare_outputs`` returned.
        further: What writes the formats that no report has.

    Returns:
        Every file that was written, those with what did not fit into a report among them.

    Raises:
        OutputError: A file could not be written; the others were.
    """
    cleaned = cache(lambda is_redacted: for_others(diagnosis, redact_names=is_redacted))
    written: list[Path] = []

    def write(output: OutputFile) -> None:
        if output.report_format in further:
            further[output.report_format](diagnosis, output.path)
            written.append(output.path)
            return
        if output.details is None:
            output.write(renderer_of(output.report_format)(cleaned(output.is_redacted)))
        else:
            from layoutdoctor.reports.markdown import markdown_parts  # late: the other formats need none of it

            report, details = markdown_parts(cleaned(output.is_redacted), output.details.name)
            if details is not None:
                write_file(output.details, details, follow=False)
                written.append(output.details)
            output.write(report)
        written.append(output.path)

    write_outputs(outputs, write)
    return tuple(written)


def write_outputs(outputs: Sequence[OutputFile], write: Callable[[OutputFile], None]) -> None:
    """
    Writes every output; one that cannot be written does not cost the others.

    Raises:
        OutputError: A file could not be written; the others were.
    """
    failures = []
    for output in outputs:
        try:
            write(output)
        except OSError as error:
            failures.append(f"cannot write {str(output.path)!r}: {error.strerror or error}")
    if failures:
        raise OutputError("; ".join(failures))


def say_what_was_written(paths: Sequence[Path]) -> None:
    """Each file with its size."""
    from layoutdoctor.reports.sections.wording import clean  # late: most commands write no file
    from layoutdoctor.units import format_bytes

    for path in paths:
        with contextlib.suppress(OSError):  # gone already
            size = path.stat().st_size
            shown = f" ({format_bytes(size)})" if size else ""
            logger.info("wrote %s%s", clean(str(path), 200), shown)


def print_report(diagnosis: Diagnosis, report_format: str, *, redact: bool = False) -> None:
    """The report to standard output; on a terminal laid out for its width, and coloured unless NO_COLOR is set."""
    diagnosis = for_others(diagnosis, redact_names=redact)
    if report_format != "text":
        print_text(renderer_of(report_format)(diagnosis))
        return
    is_coloured = wants_colour(sys.stdout)
    width = terminal_width()
    if width is None and not is_coloured:
        print_text(renderer_of("text")(diagnosis))
    else:
        from layoutdoctor.commands.terminal import render_terminal

        print_text(render_terminal(diagnosis, width, is_coloured=is_coloured))
