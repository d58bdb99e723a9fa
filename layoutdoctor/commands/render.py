"""``render``: a saved diagnosis in another format, if asked with today's rules. No model, no torch and no GPU."""

from __future__ import annotations

from typing import TYPE_CHECKING

from layoutdoctor.commands.conclusion import add_conclusion_options, prepare_conclusion
from layoutdoctor.diagnosis.saved import load

if TYPE_CHECKING:
    import argparse


def prepare_parser(parser: argparse.ArgumentParser) -> None:
    """Adds the options."""
    parser.description = "A saved diagnosis in another format. Needs no torch."
    parser.epilog = (
        "Exit status: 0 done; 1 a finding at or above --fail-on; 2 wrong usage; 3 the file could not be read; "
        "4 --fail-on cannot be judged, as nothing was recorded."
    )
    parser.add_argument("saved", metavar="SAVED.json", help="what --output SAVED.json wrote")
    parser.add_argument("--recheck", action="store_true", help="replace the saved findings by those of today's rules")
    add_conclusion_options(parser)


def run(arguments: argparse.Namespace) -> int:
    """Reads the diagnosis and prints its report."""
    conclusion = prepare_conclusion(arguments, [arguments.saved])
    diagnosis = load(arguments.saved)
    if arguments.recheck:
        import msgspec

        from layoutdoctor.rules import run_rules  # late: a saved diagnosis has its findings

        diagnosis = msgspec.structs.replace(diagnosis, findings=run_rules(diagnosis))
    return conclusion.conclude(diagnosis, 0)
