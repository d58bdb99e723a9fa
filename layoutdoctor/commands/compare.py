"""
``compare``: what changed between two recorded traces, or two saved diagnoses.

Faces ``__main__``; needs no torch.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

from layoutdoctor.changes import compare
from layoutdoctor.commands.output import (
    add_output_options,
    for_others,
    prepare_outputs,
    print_text,
    write_outputs,
)
from layoutdoctor.commands.terminal import terminal_width
from layoutdoctor.comparison_records import TraceComparison
from layoutdoctor.reports.comparison import COMPARISON_FORMATS, check_format, render_comparison
from layoutdoctor.reports.sections.wording import clean

if TYPE_CHECKING:
    import argparse
    from collections.abc import Sequence

    from layoutdoctor.commands.output import OutputFile
    from layoutdoctor.comparison_records import ModelComparison

EXIT_REGRESSION = 1
EXIT_INCONCLUSIVE = 4


def prepare_parser(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """
    Adds the subcommand.

    Args:
        subparsers: The command line's.
    """
    parser = subparsers.add_parser(
        "compare",
        allow_abbrev=False,
        help="what changed between two recorded traces or saved diagnoses",
        description="What changed between two recorded traces, or two saved diagnoses of models: before and after a "
        "change, two versions, two machines. Needs no torch.",
        epilog="Exit status: 0 done; 1 a regression, with --fail-on regression; 2 wrong usage; 3 a file could not be "
        "read; 4 the two have nothing in common, or --fail-on regression cannot be judged.",
    )
    parser.add_argument("old", metavar="OLD", help="a recorded trace, or what --output SAVED.json wrote")
    parser.add_argument("new", metavar="NEW", help="the same from after the change")
    parser.add_argument(
        "--fail-on",
        choices=("regression",),
        help="exit with 1 if NEW is worse. Two diagnoses: a configuration that both have became slower, by 5 %% and "
        "the noise, than the machine did, as the other configurations show it; it has more round trips (with --target: "
        "or more conversions); it failed; or there is a new finding, warning or error, that does not rest on times. "
        "Two traces: more round trips, or more time for layout conversions: over 10 %% more, and 0.1 %% of the kernel "
        "time (between two devices: more conversions). Exit with 4 if that cannot be judged: other inputs or mode, an "
        "interrupted diagnosis, times of the baseline or the fastest that are unstable (LD401) or too few. Between "
        "two machines times are not judged, the rest is",
    )
    add_output_options(parser, COMPARISON_FORMATS)
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """
    Compares the two and prints the report.

    Args:
        arguments: The parsed command line.

    Raises:
        RecordError: A file cannot be read, or is no diagnosis that this version can read.
        TraceError: A file is no trace.
        UsageError: A trace and a diagnosis of a model were given, an output file cannot be written, or a comparison has
            no report in its format.
    """
    read = (arguments.old, arguments.new)
    outputs = prepare_outputs(arguments.output, force=arguments.force, read=read, redact=arguments.redact)
    for output in outputs:
        check_format(output.report_format)
    comparison = compare(arguments.old, arguments.new)
    shown = for_others(comparison, redact_names=arguments.redact)
    try:
        _save(shown, outputs)
    finally:
        print_text(render_comparison(shown, arguments.format, terminal_width()))
    if arguments.fail_on is not None and comparison.regression.not_judged is not None:
        reason = clean(comparison.regression.not_judged)
        print(f"layoutdoctor: warning: cannot judge a regression: {reason}", file=sys.stderr)
    return exit_status(comparison, fails_on_regression=arguments.fail_on is not None)


def _save(comparison: TraceComparison | ModelComparison, outputs: Sequence[OutputFile]) -> None:
    write_outputs(outputs, lambda output: [(output.path, render_comparison(comparison, output.report_format))])


def exit_status(comparison: TraceComparison | ModelComparison, *, fails_on_regression: bool) -> int:
    """
    What the command ends with.

    Args:
        comparison: The finished comparison.
        fails_on_regression: Whether the user asked to fail on a regression. One that cannot be judged is no pass.
    """
    is_empty = comparison.overlap.is_empty if isinstance(comparison, TraceComparison) else comparison.is_empty
    if is_empty:
        return EXIT_INCONCLUSIVE
    if fails_on_regression and comparison.regression.losses:
        return EXIT_REGRESSION
    if fails_on_regression and comparison.regression.not_judged is not None:
        return EXIT_INCONCLUSIVE
    return 0
