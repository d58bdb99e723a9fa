"""``policy``: chooses configurations by input shapes, from saved diagnoses of one model. Needs no torch."""

from __future__ import annotations

import argparse

from layoutdoctor.commands.output import add_output_options, for_others, prepare_outputs, publish, read_weights
from layoutdoctor.diagnosis.saved import load
from layoutdoctor.examination.advice.policy import make_policy
from layoutdoctor.reports import COMPARISON_FORMATS, check_format, render_policy


def prepare_parser(parser: argparse.ArgumentParser) -> None:
    """Adds the options."""
    parser.description = (
        "Which configuration to use, from saved diagnoses of one model for several input shapes, devices or numbers of "
        "threads. 'layoutdoctor model.py --input SPEC --or --input SPEC' makes them at once. Needs no torch."
    )
    parser.epilog = "Exit status: 0 done; 2 wrong usage; 3 a file could not be read."
    parser.add_argument("saved", metavar="SAVED.json", nargs="+", help="what --output SAVED.json wrote")
    parser.add_argument(
        "--weights",
        metavar="NUMBERS",
        type=read_weights,
        help="relative number of calls for each diagnosis, as 10,1 (default: equal)",
    )
    add_output_options(parser, COMPARISON_FORMATS)


def run(arguments: argparse.Namespace) -> int:
    """Makes the policy from saved diagnoses, writes it and prints it."""
    outputs = prepare_outputs(arguments.output, force=arguments.force, read=arguments.saved, redact=arguments.redact)
    for output in outputs:
        check_format(output.report_format, what="policy")
    policy = make_policy([load(path) for path in arguments.saved], arguments.weights)
    publish(for_others(policy, redact_names=arguments.redact), outputs, arguments.format, render_policy)
    return 0
