"""``policy``: which configuration to use for which input shapes, from saved diagnoses of one model. Needs no torch."""

from __future__ import annotations

from typing import TYPE_CHECKING

from layoutdoctor.commands.output import (
    add_output_options,
    for_others,
    prepare_outputs,
    publish,
)
from layoutdoctor.diagnosis.saved import load
from layoutdoctor.errors import UsageError
from layoutdoctor.examination.policy import make_policy
from layoutdoctor.reports import COMPARISON_FORMATS, check_format, render_policy

if TYPE_CHECKING:
    import argparse
    from collections.abc import Sequence

    from layoutdoctor.commands.output import OutputFile
    from layoutdoctor.diagnosis.policy import Policy


def prepare_parser(parser: argparse.ArgumentParser) -> None:
    """Adds the options."""
    parser.description = (
        "Which configuration to use, from saved diagnoses of one model for several input shapes, devices or numbers of "
        "threads. 'layoutdoctor model.py --input SPEC --or --input SPEC' makes them at once. Needs no torch."
    )
    parser.epilog = "Exit status: 0 done; 2 wrong usage; 3 a file could not be read."
    parser.add_argument("saved", metavar="SAVED.json", nargs="+", help="what --output SAVED.json wrote")
    parser.add_argument(
        "--weights", metavar="NUMBERS", help="how often the calls of each come, separated by commas (default: equally)"
    )
    add_output_options(parser, COMPARISON_FORMATS)


def run(arguments: argparse.Namespace) -> int:
    """Makes the policy of saved diagnoses."""
    outputs = prepare_policy_outputs(arguments, arguments.saved)
    weights = None if arguments.weights is None else read_weights(arguments.weights)
    conclude(make_policy([load(path) for path in arguments.saved], weights), arguments, outputs)
    return 0


def read_weights(text: str) -> list[float]:
    """
    Numbers above 0, separated by commas.

    Raises:
        UsageError: It is something else.
    """
    try:
        return [float(part) for part in text.split(",")]
    except ValueError:
        raise UsageError(
            f"cannot use {text!r} as weights: expected numbers separated by commas, such as 10,1"
        ) from None


def prepare_policy_outputs(arguments: argparse.Namespace, read: Sequence[str]) -> tuple[OutputFile, ...]:
    """The files that the policy is to be written to, proved writable."""
    outputs = prepare_outputs(arguments.output, force=arguments.force, read=read, redact=arguments.redact)
    for output in outputs:
        check_format(output.report_format, what="policy")
    return outputs


def conclude(policy: Policy, arguments: argparse.Namespace, outputs: Sequence[OutputFile]) -> None:
    """Writes and prints the policy."""
    publish(for_others(policy, redact_names=arguments.redact), outputs, arguments.format, render_policy)
