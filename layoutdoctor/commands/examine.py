"""``examine``: yesterday's recordings with today's analysis and rules. No model, no torch and no GPU."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from layoutdoctor.commands.acceptance import add_accepted_options, apply_accepted, conclude_accepted, prepare_accepted
from layoutdoctor.commands.fail_on import (
    add_fail_on_option,
    can_be_judged,
    check_fail_on,
    failing_status,
    say_what_failed,
)
from layoutdoctor.commands.output import add_output_options, prepare_outputs, print_report, save_reports
from layoutdoctor.commands.recordings import load_recordings
from layoutdoctor.commands.several import EXIT_INCONCLUSIVE, refuse_outputs_of_several, report_several

if TYPE_CHECKING:
    import argparse

    from layoutdoctor.records import Diagnosis


def prepare_parser(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """
    Adds the subcommand.

    Args:
        subparsers: The command line's.
    """
    parser = subparsers.add_parser(
        "examine",
        allow_abbrev=False,
        help="saved recordings once more, with today's analysis and rules, without torch",
        description="Examines what --save-recordings kept: the diagnosis once more, with today's analysis and rules. "
        "Recordings of one diagnosis make one report. Needs no torch.",
        epilog="Exit status: 0 done; 1 a finding at or above --fail-on; 2 wrong usage; 3 nothing could be examined; "
        "4 nothing could be concluded. A recording that cannot be read is named, the others are examined.",
    )
    parser.add_argument("recordings", metavar="RECORDING", nargs="+", help="a recording, or a folder of them")
    add_fail_on_option(parser)
    add_accepted_options(parser)
    add_output_options(parser)
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """
    Examines every recording and prints a report for each diagnosis.

    Args:
        arguments: The parsed command line.

    Raises:
        RecordError: No recording can be read.
        UsageError: The command line is wrong, or an output file cannot be written.
    """
    from layoutdoctor.examination.diagnoses import by_diagnosis  # late: both bring numpy
    from layoutdoctor.run.recorded import diagnose_recordings

    fail_on = check_fail_on(arguments.fail_on)
    outputs = prepare_outputs(arguments.output, force=arguments.force, redact=arguments.redact)
    accepted = prepare_accepted(arguments, outputs)
    groups = list(by_diagnosis(load_recordings(arguments.recordings)))
    refuse_outputs_of_several(arguments, len(groups), "diagnoses")
    if len(groups) > 1:
        makers = [partial(diagnose_recordings, group) for group in groups]
        return report_several(arguments, fail_on, accepted, makers, exit_status)
    acceptance = apply_accepted(accepted, diagnose_recordings(groups[0]))
    diagnosis = acceptance.diagnosis
    try:
        save_reports(diagnosis, outputs)
    finally:
        print_report(diagnosis, arguments.format, redact=arguments.redact)
    conclude_accepted(accepted, acceptance, redact=arguments.redact)
    say_what_failed(diagnosis, fail_on, redact=arguments.redact)
    return exit_status(diagnosis, fail_on)


def exit_status(diagnosis: Diagnosis, fail_on: str | None) -> int:
    """
    What the command ends with.

    Args:
        diagnosis: The examined one.
        fail_on: From ``check_fail_on``.
    """
    status = 0 if can_be_judged(diagnosis) else EXIT_INCONCLUSIVE
    return failing_status(diagnosis, fail_on, status, EXIT_INCONCLUSIVE)
