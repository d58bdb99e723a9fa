"""``trace``: the layout conversions in recorded runs. No model, no torch and no GPU."""

from __future__ import annotations

import os
from functools import partial
from typing import TYPE_CHECKING

from layoutdoctor.commands.conclusion import (
    EXIT_INCONCLUSIVE,
    add_conclusion_options,
    conclude_several,
    prepare_conclusion,
    refuse_outputs_of_several,
)
from layoutdoctor.commands.output import add_limit_option

if TYPE_CHECKING:
    import argparse
    from collections.abc import Callable
    from pathlib import Path

    from layoutdoctor.diagnosis.diagnosis import Diagnosis


def prepare_parser(parser: argparse.ArgumentParser) -> None:
    """Adds the options."""
    parser.description = (
        "Finds the layout conversions in recorded runs: Chrome traces of torch.profiler (.json, .json.gz), "
        "SQLite exports and kernel summaries of Nsight Systems, verbose logs of oneDNN. Needs no torch."
    )
    parser.epilog = (
        "Exit status: 0 done; 1 a finding at or above --fail-on; 2 wrong usage; 3 a file could not be examined; "
        "4 nothing could be concluded, as when no kernels were recorded. An output that ends in .json.gz is the trace "
        "itself with its conversions and round trips marked, to be opened in Perfetto."
    )
    parser.add_argument("files", metavar="FILE", nargs="+", help="a recorded trace; several are examined one by one")
    add_limit_option(parser)
    add_conclusion_options(parser)


def run(arguments: argparse.Namespace) -> int:
    """Examines every file and prints its report."""
    refuse_outputs_of_several(arguments, len(arguments.files), "traces")
    annotate = partial(_annotate, source=arguments.files[0], max_bytes=arguments.max_bytes)
    conclusion = prepare_conclusion(arguments, arguments.files, annotate)
    makers: list[Callable[[], Diagnosis]] = [partial(_examine, file, arguments.max_bytes) for file in arguments.files]
    _import_numpy()
    if len(makers) > 1:
        return conclude_several(conclusion, zip(arguments.files, makers, strict=True), _status_of)
    from layoutdoctor.recording.reading import garbage_collection_paused  # late, as the analysis is

    with garbage_collection_paused():
        diagnosis = makers[0]()
        return conclusion.conclude(diagnosis, _status_of(diagnosis))


def _import_numpy() -> None:
    """Without the threads of its linear algebra, which no trace needs and which cost a tenth of a small one's time."""
    name = "OPENBLAS_NUM_THREADS"
    before = os.environ.get(name)
    os.environ.setdefault(name, "1")
    try:
        import numpy  # noqa: F401
    finally:
        if before is None:
            del os.environ[name]


def _examine(file: str, max_bytes: int) -> Diagnosis:
    from layoutdoctor.recording.reading import garbage_collection_paused
    from layoutdoctor.run.recorded import examine_trace  # late: what is wrong with the command line is said at once

    with garbage_collection_paused():
        return examine_trace(file, max_bytes=max_bytes)


def _annotate(diagnosis: Diagnosis, path: Path, *, source: str, max_bytes: int) -> None:
    from layoutdoctor.reports.annotated_trace import write_annotated_trace

    write_annotated_trace(diagnosis, source, path, max_bytes=max_bytes)


def _status_of(diagnosis: Diagnosis) -> int:
    kernels = diagnosis.trials[0].kernels
    return 0 if kernels is not None and kernels.count else EXIT_INCONCLUSIVE
