"""
``rank``: sorts the convolutions of a saved diagnosis by the time that each loses in one configuration against another.

Needs no model, no torch and no GPU.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator

from layoutdoctor.commands.output import for_others, print_table
from layoutdoctor.commands.streams import print_text
from layoutdoctor.diagnosis import Diagnosis
from layoutdoctor.diagnosis.saved import load, to_json
from layoutdoctor.errors import UsageError
from layoutdoctor.examination.account import account_of_convolutions
from layoutdoctor.reports import COMPARISON_FORMATS

_MOST_ROWS = 30


def prepare_parser(parser: argparse.ArgumentParser) -> None:
    """Adds the options."""
    parser.description = (
        "The convolutions of a saved diagnosis, forward and backward apart, by the time that one configuration loses "
        "against another, with the conversions that each needs, layouts and implementations. Time that the same "
        "operation gains or loses is scatter. Needs no torch."
    )
    parser.epilog = "Exit status: 0 done; 2 wrong usage; 3 the file could not be read."
    parser.add_argument("saved", metavar="SAVED.json", help="what --output SAVED.json wrote")
    parser.add_argument("--of", metavar="NAME", help="the configuration to rank (default: the baseline)")
    parser.add_argument("--against", metavar="NAME", help="configuration to compare (default: recommended or fastest)")
    parser.add_argument("--format", choices=COMPARISON_FORMATS, default="text", help="what is printed (default: text)")
    parser.add_argument("--redact", action="store_true", help="replace names of modules and files of your own")


def run(arguments: argparse.Namespace) -> int:
    """Prints the ranked convolutions, as a table or as JSON."""
    diagnosis = for_others(load(arguments.saved), redact_names=arguments.redact)
    of = arguments.of or diagnosis.compared_with or diagnosis.trials[0].name
    against = arguments.against or next((name for name in _candidates(diagnosis) if name != of), of)
    trials = [diagnosis.trial(diagnosis.trial(name).same_as or name) for name in (of, against)]
    account = account_of_convolutions(*trials)
    if account is None:
        raise UsageError(
            f"cannot rank the convolutions of {of!r} against {against!r}: expected two configurations that were "
            "measured, with times of their kernels; name others with --of and --against"
        )
    if arguments.format == "json":
        print_text(to_json(account).decode() + "\n")
        return 0
    from layoutdoctor.reports.sections.account import table_of_convolutions  # imported late: JSON needs no table

    table = table_of_convolutions(account).first(_MOST_ROWS)
    print_table(table, arguments.format)
    if table.left_out and arguments.format == "text":
        print_text(f"and {table.left_out} more: --format json has all\n")
    return 0


def _candidates(diagnosis: Diagnosis) -> Iterator[str]:
    """Yields the configurations to compare with by default, the first choice first."""
    if diagnosis.recommended_name is not None:
        yield diagnosis.recommended_name
    yield from sorted(diagnosis.ratios, key=lambda name: -diagnosis.ratios[name].median)
    yield from (trial.name for trial in diagnosis.trials)
