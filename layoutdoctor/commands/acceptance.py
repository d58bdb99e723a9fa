"""
``--accepted`` and ``--write-accepted``: findings that a project lives with.

Both files are proved readable or writable before anything is measured. Faces the subcommands.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from layoutdoctor.accepted import Acceptance, AcceptedFile, accept, accept_all, load_accepted, save_accepted
from layoutdoctor.commands.output import OutputError, prepare_outputs
from layoutdoctor.errors import UsageError
from layoutdoctor.privacy import scrub
from layoutdoctor.reports.sections.wording import clean, clean_name, count_of, cut_list

if TYPE_CHECKING:
    import argparse
    from collections.abc import Iterator, Sequence

    from layoutdoctor.accepted import AcceptedFinding
    from layoutdoctor.commands.output import InputFile, OutputFile
    from layoutdoctor.records import Diagnosis

_MOST_NAMED = 5


def add_accepted_options(parser: argparse.ArgumentParser) -> None:
    """
    The two options, of which one may be given.

    Args:
        parser: The subcommand's parser.
    """
    group = parser.add_mutually_exclusive_group()
    group.add_argument(
        "--accepted",
        metavar="FILE",
        help="findings listed in this file do not count for --fail-on, and are marked as accepted",
    )
    group.add_argument(
        "--write-accepted",
        metavar="FILE",
        help="write all findings to this file as accepted; with --force an existing one is brought up to date, its "
        "reasons kept",
    )


@dataclass(frozen=True)
class AcceptedOption:
    """
    What was asked for.

    Attributes:
        path: The file; None where neither option was given.
        known: What it holds; None where it does not exist yet.
        is_written: Whether it is to be written.
    """

    path: Path | None = None
    known: AcceptedFile | None = None
    is_written: bool = False


def prepare_accepted(
    arguments: argparse.Namespace, outputs: Sequence[OutputFile], read: Sequence[InputFile]
) -> AcceptedOption:
    """
    Reads the file, and proves that it can be written where that was asked for.

    Args:
        arguments: The parsed command line.
        outputs: The report's files, none of which may be this one.
        read: What the command reads; this may be none of it either.

    Raises:
        RecordError: The file holds no accepted findings that can be read.
        UsageError: It exists and ``--force`` was not given, it cannot be written, it is an output file or read as well,
            or names are to be redacted.
    """
    if arguments.accepted is not None:
        path = Path(arguments.accepted)
        return AcceptedOption(path, load_accepted(path))
    if arguments.write_accepted is None:
        return AcceptedOption()
    if arguments.redact:
        raise UsageError(
            f"cannot write {arguments.write_accepted!r} with --redact: accepted findings are known again by the names "
            "of modules and files; leave out --redact, or --write-accepted"
        )
    further = {"": "accepted findings"}
    path = prepare_outputs([arguments.write_accepted], force=arguments.force, read=read, further=further)[0].path
    if path.resolve() in {output.path.resolve() for output in outputs}:
        raise UsageError(f"cannot write {str(path)!r} twice: it is given with --output and --write-accepted")
    return AcceptedOption(path, load_accepted(path) if path.is_file() else None, is_written=True)


def apply_accepted(option: AcceptedOption, diagnosis: Diagnosis) -> Acceptance:
    """
    The diagnosis with its accepted findings marked; nothing is written yet.

    Args:
        option: What ``prepare_accepted`` returned.
        diagnosis: Any diagnosis. Without either option its marks, which it may have been saved with, stay.
    """
    if option.path is None:
        return Acceptance(diagnosis)
    diagnosis = scrub(diagnosis)  # the file is for others too, and a saved diagnosis is known by the same names
    return accept(diagnosis, _file_of(option, diagnosis))


def _file_of(option: AcceptedOption, diagnosis: Diagnosis) -> AcceptedFile:
    return accept_all(diagnosis, option.known) if option.is_written else option.known or AcceptedFile()


def conclude_accepted(option: AcceptedOption, acceptance: Acceptance, *, redact: bool = False) -> None:
    """
    Writes the file where that was asked for, and says on standard error what is accepted and what is not any more.

    Args:
        option: What ``prepare_accepted`` returned.
        acceptance: What ``apply_accepted`` returned.
        redact: Whether no module or file is to be named.

    Raises:
        OutputError: The file could not be written after all.
    """
    if option.path is None:
        return
    if option.is_written:
        try:
            save_accepted(option.path, _file_of(option, acceptance.diagnosis))
        except OSError as error:
            raise OutputError(f"cannot write {str(option.path)!r}: {error.strerror or error}") from error
    for line in _lines(clean(str(option.path), 200), acceptance, is_written=option.is_written, redact=redact):
        print(f"layoutdoctor: {line}", file=sys.stderr)


def _lines(file: str, acceptance: Acceptance, *, is_written: bool, redact: bool) -> Iterator[str]:
    def names(entries: Sequence[AcceptedFinding]) -> str:
        shown = [clean_name(entry.code) if redact else clean(str(entry), 200) for entry in entries]
        return cut_list(shown, _MOST_NAMED)

    if is_written:
        yield f"wrote {file}: it accepts {count_of(acceptance.count, 'finding')}; fill in the reasons"
    elif acceptance.count:
        yield f"{count_of(acceptance.count, 'finding')} {'is' if acceptance.count == 1 else 'are'} accepted by {file}"
    if acceptance.gone:
        verb, them = ("is", "it") if len(acceptance.gone) == 1 else ("are", "them")
        yield f"{_entries(acceptance.gone)} {verb} gone: remove {them} from {file}: {names(acceptance.gone)}"
    if acceptance.expired:
        verb = "is past its" if len(acceptance.expired) == 1 else "are past their"
        yield f"{_entries(acceptance.expired)} {verb} last day in {file}: {names(acceptance.expired)}"
    if acceptance.outgrown:
        verb = "has" if len(acceptance.outgrown) == 1 else "have"
        yield f"{_entries(acceptance.outgrown)} {verb} more evidence than {file} accepts: {names(acceptance.outgrown)}"


def _entries(entries: Sequence[AcceptedFinding]) -> str:
    return count_of(len(entries), "accepted finding")
