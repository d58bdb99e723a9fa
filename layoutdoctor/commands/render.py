"""
``render``: a saved diagnosis in another format, if asked with today's rules, and as a check on it.

Faces ``__main__``; needs no torch, so an old run can be read anywhere.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from layoutdoctor.commands.acceptance import add_accepted_options, apply_accepted, conclude_accepted, prepare_accepted
from layoutdoctor.commands.fail_on import add_fail_on_option, check_fail_on, failing_status, say_what_failed
from layoutdoctor.commands.output import add_output_options, prepare_outputs, print_report, save_reports
from layoutdoctor.commands.recordings import load_recordings
from layoutdoctor.errors import RecordError, UsageError
from layoutdoctor.records import load
from layoutdoctor.rules import run_rules

if TYPE_CHECKING:
    import argparse

    from layoutdoctor.records import Diagnosis

EXIT_INCONCLUSIVE = 4


def prepare_parser(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """
    Adds the subcommand.

    Args:
        subparsers: The command line's.
    """
    parser = subparsers.add_parser(
        "render",
        allow_abbrev=False,
        help="a saved diagnosis in another format",
        description="A saved diagnosis in another format. Needs no torch.",
        epilog="Exit status: 0 done; 1 a finding at or above --fail-on; 2 wrong usage; 3 the file could not be read; "
        "4 --fail-on cannot be judged, as nothing was recorded.",
    )
    parser.add_argument("saved", metavar="SAVED.json", help="what --output SAVED.json wrote")
    parser.add_argument("--recheck", action="store_true", help="replace the saved findings by those of today's rules")
    parser.add_argument(
        "--recordings",
        metavar="DIR",
        help="with --recheck: examine its recordings again, which --save-recordings kept in this directory",
    )
    add_fail_on_option(parser)
    add_accepted_options(parser)
    add_output_options(parser)
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """
    Reads the diagnosis and prints its report.

    Args:
        arguments: The parsed command line.

    Returns:
        The exit status.

    Raises:
        RecordError: The file is no diagnosis that this version can read, or the accepted findings cannot be read.
        UsageError: The command line is wrong, or an output file cannot be written.
    """
    fail_on = check_fail_on(arguments.fail_on)
    read = (arguments.saved, arguments.accepted)
    outputs = prepare_outputs(arguments.output, force=arguments.force, read=read, redact=arguments.redact)
    accepted = prepare_accepted(arguments, outputs, read)
    if arguments.recordings is not None and not arguments.recheck:
        raise UsageError("cannot examine --recordings again without --recheck: pass it as well, or leave out both")
    diagnosis = load(arguments.saved)
    if arguments.recordings is not None:
        diagnosis = _examined_again(diagnosis, arguments.saved, arguments.recordings)
    elif arguments.recheck:
        diagnosis = msgspec.structs.replace(diagnosis, findings=run_rules(diagnosis))
    acceptance = apply_accepted(accepted, diagnosis)
    try:
        save_reports(acceptance.diagnosis, outputs)
    finally:
        print_report(acceptance.diagnosis, arguments.format, redact=arguments.redact)
    conclude_accepted(accepted, acceptance, redact=arguments.redact)
    say_what_failed(acceptance.diagnosis, fail_on, redact=arguments.redact)
    return failing_status(acceptance.diagnosis, fail_on, 0, EXIT_INCONCLUSIVE)


def _examined_again(diagnosis: Diagnosis, saved: str, directory: str) -> Diagnosis:
    from layoutdoctor.examination.diagnoses import by_diagnosis  # late: both bring numpy
    from layoutdoctor.run.recorded import diagnose_recordings

    names = {trial.name for trial in diagnosis.trials}
    for group in by_diagnosis(load_recordings([directory])):
        head = group[0].head
        is_the_same = (head.created_at, head.subject.name) == (diagnosis.created_at, diagnosis.subject.name)
        if is_the_same and names <= {recording.name for recording in group}:
            return diagnose_recordings(group)
    raise RecordError(
        f"cannot examine {saved!r} again: {directory!r} does not hold the recordings of all its configurations; name "
        "the directory that --save-recordings was given"
    )
