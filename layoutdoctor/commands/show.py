"""
``show``: prints reports of recorded or saved files. Needs no model, no torch and no GPU.

The name and the first bytes of a file show its kind. A trace, a table of kernels or a log is examined. The recordings
of one diagnosis make one report, with the present analysis and rules. A saved diagnosis is printed in any format.
"""

from __future__ import annotations

import argparse
import contextlib
import os
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from layoutdoctor.commands.conclusion import (
    EXIT_FAILED,
    EXIT_INCONCLUSIVE,
    FailedTarget,
    add_conclusion_options,
    can_be_judged,
    prepare_conclusion,
    print_records,
    refuse_outputs_of_several,
    worst_of,
)
from layoutdoctor.commands.output import add_limit_option, print_report
from layoutdoctor.commands.streams import print_text, say_error
from layoutdoctor.diagnosis import Diagnosis, Failure
from layoutdoctor.diagnosis.saved import load, to_json
from layoutdoctor.errors import LayoutDoctorError, RecordError
from layoutdoctor.files.writing import RECORDING_SUFFIX
from layoutdoctor.recording.files import kind_of_file

if TYPE_CHECKING:
    from layoutdoctor.commands.conclusion import Conclusion
    from layoutdoctor.recording.recording import Recording


def prepare_parser(parser: argparse.ArgumentParser) -> None:
    """Adds the options."""
    parser.description = (
        "Shows what was recorded or saved before, and finds out by looking what each file is: a Chrome trace of "
        "torch.profiler (.json, .json.gz), an SQLite export or a table of Nsight Systems, a table of torch.profiler, a "
        "log of oneDNN or of TORCH_TRACE; what --save-recordings kept, which is examined with today's analysis and "
        "rules; or a saved diagnosis. Needs no torch."
    )
    parser.epilog = (
        "Exit status: 0 done; 1 a finding at or above --fail-on; 2 wrong usage; 3 a file could not be examined; "
        "4 nothing could be concluded, as when no kernels were recorded. The output of a trace that ends in .json.gz "
        "is the trace itself with its conversions and round trips marked, to be opened in Perfetto. The names trace, "
        "examine and render mean the same command."
    )
    parser.add_argument(
        "files",
        metavar="FILE",
        nargs="+",
        help="a trace, table or log, a recording or a folder of recordings, a saved diagnosis; recordings of one "
        "diagnosis make one report",
    )
    parser.add_argument(
        "--recheck", action="store_true", help="replace the findings of a saved diagnosis by those of today's rules"
    )
    add_limit_option(parser)
    add_conclusion_options(parser)


class _Source(NamedTuple):
    """
    One diagnosis to show.

    Attributes:
        name: File or subject, for messages.
        make: Function that makes the diagnosis.
        status_of: Function that returns the exit status of this diagnosis, if no finding fails the command.
    """

    name: str
    make: Callable[[], Diagnosis]
    status_of: Callable[[Diagnosis], int]


def run(arguments: argparse.Namespace) -> int:
    """Prints the report of each file; recordings of one diagnosis have one report."""
    kinds = [(file, kind_of_file(Path(file))) for file in arguments.files]
    annotate = None
    if [kind for _, kind in kinds] == ["trace"]:
        annotate = partial(_annotate, source=arguments.files[0], max_bytes=arguments.max_bytes)
    conclusion = prepare_conclusion(arguments, arguments.files, annotate)
    sources: list[_Source] = []
    for file, kind in kinds:
        if kind == "trace":
            sources += _of_a_run(file, arguments.max_bytes)
        elif kind == "diagnosis":
            sources.append(_Source(file, partial(_load, file, recheck=arguments.recheck), lambda _: 0))
    recordings = [file for file, kind in kinds if kind == "recording"]
    if recordings:
        sources += _of_recordings(recordings)
    refuse_outputs_of_several(arguments, len(sources))
    if len(sources) > 1:
        return _conclude_several(conclusion, sources)
    diagnosis = sources[0].make()
    return conclusion.conclude(diagnosis, sources[0].status_of(diagnosis))


def _conclude_several(conclusion: Conclusion, sources: Sequence[_Source]) -> int:
    """Makes and reports one diagnosis after the other; JSON is one list. Names the sources that have no diagnosis."""
    statuses: list[int] = []
    records: list[bytes] = []

    def show(diagnosis: Diagnosis, report_format: str) -> None:
        if report_format == "json":
            records.append(to_json(diagnosis))
            return
        if any(status < EXIT_FAILED for status in statuses):
            print_text("\n")
        print_report(diagnosis, report_format)

    for source in sources:
        try:
            diagnosis = source.make()
        except LayoutDoctorError as error:
            say_error(error)
            statuses.append(error.exit_status)
            failure = Failure(kind=type(error).__name__, message=str(error))
            records.append(to_json(conclusion.for_others(FailedTarget(target=source.name, failure=failure))))
        else:
            statuses.append(conclusion.conclude(diagnosis, source.status_of(diagnosis), show))
            del diagnosis  # the next diagnosis needs the memory
    if conclusion.report_format == "json":
        print_records(records)
    return worst_of(statuses)


# ------------------------------------------------------------------------------------------- saved diagnoses
def _load(file: str, *, recheck: bool) -> Diagnosis:
    diagnosis = load(file)
    if not recheck:
        return diagnosis
    import msgspec

    from layoutdoctor.rules import run_rules  # imported only for --recheck

    return msgspec.structs.replace(diagnosis, findings=run_rules(diagnosis))


# ------------------------------------------------------------------------------------------- traces, tables, logs
def _of_a_run(file: str, max_bytes: int) -> Iterator[_Source]:
    """Yields one source for a recorded run, or one source for each table of a file."""
    _import_numpy()
    from layoutdoctor.recording.reading import read_tables
    from layoutdoctor.run.recorded import diagnose_recordings

    try:
        tables = read_tables(Path(file), Path(file).name, max_bytes)
    except LayoutDoctorError:
        tables = ()  # examining the file reports the error
    if not tables:
        yield _Source(file, partial(_examine, file, max_bytes), status_of_run)
    for table in tables:
        yield _Source(table.head.subject.name, partial(diagnose_recordings, [table]), status_of_run)


def _examine(file: str, max_bytes: int) -> Diagnosis:
    _import_numpy()
    from layoutdoctor.recording.reading import garbage_collection_paused
    from layoutdoctor.run.recorded import examine_trace  # imported late, so that errors of the command line show first

    with garbage_collection_paused():
        return examine_trace(file, max_bytes=max_bytes)


def _import_numpy() -> None:
    """
    Imports NumPy without the threads of OpenBLAS.

    No trace needs these threads, and their start takes a tenth of the time of a small trace.
    """
    name = "OPENBLAS_NUM_THREADS"
    before = os.environ.get(name)
    os.environ.setdefault(name, "1")
    try:
        import numpy  # noqa: F401
    finally:
        if before is None:
            del os.environ[name]


def _annotate(diagnosis: Diagnosis, path: Path, *, source: str, max_bytes: int) -> None:
    from layoutdoctor.reports.annotated_trace import write_annotated_trace

    write_annotated_trace(diagnosis, source, path, max_bytes=max_bytes)


def status_of_run(diagnosis: Diagnosis) -> int:
    """Returns the exit status of the diagnosis of a recorded run: 0 if kernels were recorded."""
    kernels = diagnosis.trials[0].kernels
    return 0 if kernels is not None and kernels.count else EXIT_INCONCLUSIVE


# ------------------------------------------------------------------------------------------- recordings
def _of_recordings(names: Sequence[str]) -> Iterator[_Source]:
    """Yields a source for each diagnosis in the recordings; if no file can be read, a source that raises the error."""
    from layoutdoctor.examination.examine import by_diagnosis
    from layoutdoctor.run.recorded import diagnose_recordings

    try:
        groups = list(by_diagnosis(_load_recordings(names)))
    except RecordError as error:
        yield _Source(names[0], partial(_fail, error), _status_of_recordings)
        return
    for group in groups:
        yield _Source(group[0].head.subject.name, partial(diagnose_recordings, group), _status_of_recordings)


def _fail(error: RecordError) -> Diagnosis:
    raise error


def _status_of_recordings(diagnosis: Diagnosis) -> int:
    return 0 if can_be_judged(diagnosis) else EXIT_INCONCLUSIVE


def _load_recordings(names: Sequence[str]) -> list[Recording]:
    """
    Loads the recordings in files and folders, and names unreadable ones on standard error.

    Raises:
        RecordError: No recording can be read.
    """
    from layoutdoctor.recording.saved import load_recording

    found: list[Recording] = []
    problems: list[str] = []
    for name in names:
        path, is_folder = Path(name), False
        with contextlib.suppress(OSError):  # reading the file reports the error
            is_folder = path.is_dir()
        files = sorted(path.rglob(f"*{RECORDING_SUFFIX}")) if is_folder else [path]
        if not files:
            problems.append(
                f"cannot examine {name!r}: no file in it ends in {RECORDING_SUFFIX}; name a folder of recordings, "
                "or a recording; 'layoutdoctor scan' examines a folder of traces"
            )
        for file in files:
            try:
                found.append(load_recording(file))
            except LayoutDoctorError as error:
                problems.append(str(error))
    if not found:
        raise RecordError("; ".join(problems))
    for problem in problems:
        say_error(problem)
    return found
