"""``compare``: compares two recorded traces, or two saved diagnoses. Needs no model, no torch and no GPU."""

from __future__ import annotations

import argparse

from layoutdoctor.commands.conclusion import EXIT_FOUND, EXIT_INCONCLUSIVE
from layoutdoctor.commands.output import add_output_options, for_others, prepare_outputs, publish
from layoutdoctor.commands.streams import say
from layoutdoctor.reports import COMPARISON_FORMATS, check_format, render_comparison
from layoutdoctor.reports.sections.wording import clean
from layoutdoctor.run.recorded import compare


def prepare_parser(parser: argparse.ArgumentParser) -> None:
    """Adds the options."""
    parser.description = (
        "What changed between two recorded traces, or two saved diagnoses of models: before and after a "
        "change, two versions, two machines. Needs no torch."
    )
    parser.epilog = (
        "Exit status: 0 done; 1 a regression, with --fail-on regression; 2 wrong usage; 3 a file could not be "
        "read; 4 nothing in common, or --fail-on regression cannot be judged."
    )
    parser.add_argument("old", metavar="OLD", help="a recorded trace, or what --output SAVED.json wrote")
    parser.add_argument("new", metavar="NEW", help="the same kind of file, newer")
    parser.add_argument(
        "--fail-on",
        choices=("regression",),
        help="exit with 1 if NEW is worse. Two diagnoses: a configuration became slower against the baseline, by 5 %% "
        "and the noise, has more round trips (with --lower-for: or more conversions), or failed; the baseline became "
        "10 %% slower and most others did not; or there is a new warning or error that does not rest on times. "
        "Two traces: more round trips, or more time for layout conversions: over 10 %% more, and 0.1 %% of the kernel "
        "time (between two devices: more conversions). Exit with 4 if this cannot be judged: other inputs or mode, an "
        "interrupted diagnosis, or too few times. Between two machines, all but times is judged",
    )
    add_output_options(parser, COMPARISON_FORMATS)


def run(arguments: argparse.Namespace) -> int:
    """Compares two traces or diagnoses, and prints the report."""
    read = (arguments.old, arguments.new)
    outputs = prepare_outputs(arguments.output, force=arguments.force, read=read, redact=arguments.redact)
    for output in outputs:
        check_format(output.report_format)
    comparison = compare(arguments.old, arguments.new)
    publish(for_others(comparison, redact_names=arguments.redact), outputs, arguments.format, render_comparison)
    not_judged = comparison.regression.not_judged
    if arguments.fail_on is not None and not_judged is not None:
        say(f"warning: cannot judge a regression: {clean(not_judged)}")
    if comparison.is_empty:
        return EXIT_INCONCLUSIVE
    if arguments.fail_on is None:
        return 0
    if comparison.regression.losses:
        return EXIT_FOUND
    return 0 if not_judged is None else EXIT_INCONCLUSIVE  # without a judgement, the check does not pass
