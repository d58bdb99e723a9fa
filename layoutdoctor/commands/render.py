"""
``render``: a saved diagnosis in another format, if asked with today's rules.

Faces ``__main__``; needs no torch, so an old run can be read anywhere.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from layoutdoctor.commands.output import add_output_options, prepare_outputs, print_report, save_reports
from layoutdoctor.records import load
from layoutdoctor.rules import run_rules

if TYPE_CHECKING:
    import argparse


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
    )
    parser.add_argument("saved", metavar="SAVED.json", help="what --output SAVED.json wrote")
    parser.add_argument("--recheck", action="store_true", help="replace the saved findings by those of today's rules")
    add_output_options(parser)
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """
    Reads the diagnosis and prints its report.

    Args:
        arguments: The parsed command line.

    Raises:
        RecordError: The file is no diagnosis that this version can read.
        UsageError: An output file cannot be written.
    """
    outputs = prepare_outputs(arguments.output, force=arguments.force)
    diagnosis = load(arguments.saved)
    if arguments.recheck:
        diagnosis = msgspec.structs.replace(diagnosis, findings=run_rules(diagnosis))
    try:
        save_reports(diagnosis, outputs)
    finally:
        print_report(diagnosis, arguments.format)
    return 0
