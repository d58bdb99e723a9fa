"""``scan``: examines many recorded traces and adds up the results. Needs no model, no torch and no GPU."""

from __future__ import annotations

import argparse
import contextlib
import itertools
import os
import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from layoutdoctor.commands.conclusion import EXIT_FAILED, EXIT_FOUND, EXIT_INCONCLUSIVE, is_failing, severity_or_code
from layoutdoctor.commands.output import (
    add_limit_option,
    add_output_options,
    for_others,
    prepare_outputs,
    say_what_was_written,
    write_outputs,
)
from layoutdoctor.commands.streams import OutputError, logger, print_text, say, showing_progress, terminal_width
from layoutdoctor.errors import UsageError
from layoutdoctor.reports import SCAN_FORMATS, render_scan
from layoutdoctor.reports.sections.wording import clean
from layoutdoctor.workers.messages import Progress

if TYPE_CHECKING:
    from layoutdoctor.commands.output import OutputFile
    from layoutdoctor.diagnosis.scan import Scan, ScannedRows

SCHEDULER_VARIABLE = "DASK_SCHEDULER_ADDRESS"
_LINES, _TABLE = "JSON Lines file", "Parquet file"


def prepare_parser(parser: argparse.ArgumentParser) -> None:
    """Adds the options."""
    parser.description = (
        "Examines many recorded traces and adds up what they lost to layout conversions: by rule, kernel, operation, "
        "module, shape, step, rank and file. Needs no torch."
    )
    parser.epilog = (
        "Exit status: 0 done; 1 a finding at or above --fail-on; 2 wrong usage; 3 a file was not examined or an "
        "output not written; 4 no kernels in any file. An output that ends in .jsonl gets a line of conversions "
        "when a file is done; one that ends in .parquet has them as a table, for DuckDB and pandas."
    )
    parser.add_argument(
        "paths",
        metavar="PATH_OR_URL",
        nargs="+",
        help="a trace, a folder, a pattern, a .zip or .tar, or a URL of fsspec",
    )
    parser.add_argument(
        "--glob",
        metavar="PATTERN",
        help="names to take in folders and archives (default: *.json, *.json.gz and *.sqlite; without any of these "
        "*.csv, *.log and *.txt)",
    )
    parser.add_argument(
        "--rank-regex",
        metavar="REGEX",
        help="its first group is the rank in a file's name (default: rank3 in the name, else what the trace says "
        "of itself, else a folder called rank3, r3 or 3)",
    )
    where = parser.add_mutually_exclusive_group()
    where.add_argument(
        "--jobs", metavar="N", type=int, help="processes here (default: 1; for over 20 MiB, one per processor)"
    )
    where.add_argument(
        "--scheduler",
        metavar="ADDRESS",
        help=f"examine on the workers of this Dask scheduler, which open the paths (default: {SCHEDULER_VARIABLE})",
    )
    parser.add_argument(
        "--resume",
        metavar="DIR",
        help="keep each file's result in this folder, and take results of unchanged files from there, if this version "
        "made them",
    )
    add_limit_option(parser)
    parser.add_argument(
        "--fail-on",
        metavar="CODE|error|warning",
        type=severity_or_code,
        help="exit with 1 if a file has a finding with this code, or at least so severe",
    )
    add_output_options(parser, SCAN_FORMATS)


def run(arguments: argparse.Namespace) -> int:
    """Examines every file, and prints the report on all."""
    further = {".jsonl": _LINES, ".parquet": _TABLE}
    outputs = prepare_outputs(
        arguments.output, force=arguments.force, read=arguments.paths, further=further, redact=arguments.redact
    )
    for output in outputs:
        if output.report_format not in (*SCAN_FORMATS, *further.values()):
            raise UsageError(
                f"cannot write {output.path.name!r}: a scan has no report as {output.report_format}; expected one of "
                ".html, .json, .jsonl, .md, .parquet and .txt"
            )
    from layoutdoctor.fleet.scanning import scan  # imported late, so that errors of the command line show first

    reports = [output for output in outputs if output.report_format in SCAN_FORMATS]
    with contextlib.ExitStack() as stack:
        sinks = [_Sink(output, stack) for output in outputs if output.report_format in further.values()]
        with showing_progress(quiet=arguments.quiet) as show:
            numbers, begin = itertools.count(1), time.monotonic()

            def take(found: ScannedRows, total: int) -> None:
                done = next(numbers)
                for sink in sinks:
                    sink.add(found)
                left = (time.monotonic() - begin) / done * (total - done)
                show(Progress(stage="examining", done=done, total=total, left_seconds=left))
                logger.debug("%s", clean(found.file.failure or found.file.name))

            result = scan(
                *arguments.paths,
                pattern=arguments.glob,
                rank_regex=arguments.rank_regex,
                max_bytes=arguments.max_bytes,
                jobs=arguments.jobs,
                scheduler=arguments.scheduler
                or (os.environ.get(SCHEDULER_VARIABLE) if arguments.jobs is None else None),
                resume=arguments.resume,
                listener=take,
            )
        for sink in sinks:
            sink.end()
    shown = for_others(result, redact_names=arguments.redact)
    try:
        _write(shown, reports, sinks)
    finally:
        print_text(render_scan(shown, arguments.format, terminal_width()))
    if any(is_failing(finding, arguments.fail_on) for file in result.files for finding in file.findings):
        return EXIT_FOUND
    if result.failed:
        return EXIT_FAILED
    return 0 if any(file.kernel_count for file in result.examined) else EXIT_INCONCLUSIVE


class _Sink:
    """An output file for the conversions of each examined trace. If it cannot be written, the scan goes on."""

    def __init__(self, output: OutputFile, stack: contextlib.ExitStack) -> None:
        from layoutdoctor.fleet.scanning import lines_file, parquet_file

        self.path, self.failure = output.path, ""
        self._own = stack.enter_context(contextlib.ExitStack())
        is_table = output.report_format == _TABLE
        self._add = self._own.enter_context(parquet_file(output.path)) if is_table else lines_file(output.path)

    def add(self, found: ScannedRows) -> None:
        """Adds the conversions of one trace."""
        self._do(lambda: self._add([found]))

    def end(self) -> None:
        """Completes the file."""
        self._do(self._own.close)

    def _do(self, step: Callable[[], None]) -> None:
        if self.failure:
            return
        try:
            step()
        except OSError as error:
            self.failure = f"cannot write {str(self.path)!r}: {error.strerror or error}"
            say(f"warning: {self.failure}; the scan goes on without it")
            with contextlib.suppress(OSError):
                self._own.__exit__(type(error), error, error.__traceback__)


def _write(scan: Scan, reports: Sequence[OutputFile], sinks: Sequence[_Sink]) -> None:
    write_outputs(reports, lambda output: output.write(render_scan(scan, output.report_format)))
    say_what_was_written([*(output.path for output in reports), *(sink.path for sink in sinks if not sink.failure)])
    failures = [sink.failure for sink in sinks if sink.failure]
    if failures:
        raise OutputError("; ".join(failures))
