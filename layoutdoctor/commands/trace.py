"""
``trace``: the layout conversions in recorded runs. No model, no torch and no GPU.

Faces ``__main__``.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from layoutdoctor.commands.acceptance import add_accepted_options, apply_accepted, conclude_accepted, prepare_accepted
from layoutdoctor.commands.fail_on import add_fail_on_option, check_fail_on, failing_status, say_what_failed
from layoutdoctor.commands.output import (
    OutputError,
    add_output_options,
    prepare_outputs,
    print_report,
    save_reports,
)
from layoutdoctor.commands.several import EXIT_INCONCLUSIVE, refuse_outputs_of_several, report_several
from layoutdoctor.errors import UsageError
from layoutdoctor.limits import DEFAULT_MOST_BYTES
from layoutdoctor.units import format_bytes

if TYPE_CHECKING:
    import argparse
    from collections.abc import Sequence

    from layoutdoctor.commands.output import OutputFile
    from layoutdoctor.records import Diagnosis

ANNOTATED = "annotated trace"


def prepare_parser(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """
    Adds the subcommand.

    Args:
        subparsers: The command line's.
    """
    parser = subparsers.add_parser(
        "trace",
        allow_abbrev=False,
        help="the layout conversions in recorded traces, without the model and without torch",
        description="Finds the layout conversions in recorded runs: Chrome traces of torch.profiler (.json, .json.gz), "
        "SQLite exports and kernel summaries of Nsight Systems, verbose logs of oneDNN. Needs no torch.",
        epilog="Exit status: 0 done; 1 a finding at or above --fail-on; 2 wrong usage; 3 a file could not be examined; "
        "4 nothing could be concluded, as where no kernels were recorded. An output that ends in .json.gz is the trace "
        "itself with its conversions and round trips marked, to be opened in Perfetto.",
    )
    parser.add_argument("files", metavar="FILE", nargs="+", help="a recorded trace; several are examined one by one")
    parser.add_argument(
        "--max-bytes",
        metavar="BYTES",
        type=int,
        default=DEFAULT_MOST_BYTES,
        help=f"read at most this much of a file, after unpacking (default: {format_bytes(DEFAULT_MOST_BYTES)})",
    )
    add_fail_on_option(parser)
    add_accepted_options(parser)
    add_output_options(parser)
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """
    Examines every file and prints its report.

    Args:
        arguments: The parsed command line.

    Raises:
        TraceError: The only file cannot be read, or is no trace.
        UsageError: The command line is wrong, or an output file cannot be written.
    """
    fail_on = check_fail_on(arguments.fail_on)
    if arguments.max_bytes < 1:
        raise UsageError(f"cannot read at most {arguments.max_bytes} bytes: expected a number above 0 for --max-bytes")
    refuse_outputs_of_several(arguments, len(arguments.files), "traces")
    read = (*arguments.files, arguments.accepted)
    further = {".json.gz": ANNOTATED}
    outputs = prepare_outputs(
        arguments.output, force=arguments.force, read=read, further=further, redact=arguments.redact
    )
    accepted = prepare_accepted(arguments, outputs, read)
    if len(arguments.files) == 1:
        acceptance = apply_accepted(accepted, _examine(arguments.files[0], arguments.max_bytes))
        diagnosis = acceptance.diagnosis
        _write(diagnosis, arguments, outputs)
        conclude_accepted(accepted, acceptance, redact=arguments.redact)
        say_what_failed(diagnosis, fail_on, redact=arguments.redact)
        return exit_status(diagnosis, fail_on)
    makers = [partial(_examine, file, arguments.max_bytes) for file in arguments.files]
    return report_several(arguments, fail_on, accepted, makers, exit_status)


def _write(diagnosis: Diagnosis, arguments: argparse.Namespace, outputs: Sequence[OutputFile]) -> None:
    """Every output and the report; one that fails does not cost the others."""
    try:
        save_reports(diagnosis, [output for output in outputs if output.report_format != ANNOTATED])
        for output in outputs:
            if output.report_format == ANNOTATED:
                _annotate(diagnosis, arguments.files[0], arguments.max_bytes, output)
    finally:
        print_report(diagnosis, arguments.format, redact=arguments.redact)


def _examine(file: str, max_bytes: int) -> Diagnosis:
    from layoutdoctor.run.recorded import examine_trace  # late: it brings numpy, which no other command needs

    return examine_trace(file, max_bytes=max_bytes)


def _annotate(diagnosis: Diagnosis, source: str, max_bytes: int, output: OutputFile) -> None:
    from layoutdoctor.reports.annotated_trace import write_annotated_trace

    try:
        write_annotated_trace(diagnosis, source, output.path, max_bytes=max_bytes)
    except OSError as error:
        raise OutputError(f"cannot write {str(output.path)!r}: {error.strerror or error}") from error


def exit_status(diagnosis: Diagnosis, fail_on: str | None) -> int:
    """
    What the command ends with.

    Args:
        diagnosis: The examined trace.
        fail_on: From ``check_fail_on``.
    """
    kernels = diagnosis.trials[0].kernels
    status = 0 if kernels is not None and kernels.count else EXIT_INCONCLUSIVE
    return failing_status(diagnosis, fail_on, status, EXIT_INCONCLUSIVE)
