"""``examine``: yesterday's recordings with today's analysis and rules. No model, no torch and no GPU."""

from __future__ import annotations

import contextlib
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from layoutdoctor.commands.conclusion import (
    EXIT_INCONCLUSIVE,
    add_conclusion_options,
    can_be_judged,
    conclude_several,
    prepare_conclusion,
    refuse_outputs_of_several,
)
from layoutdoctor.commands.streams import say_error
from layoutdoctor.errors import LayoutDoctorError, RecordError

if TYPE_CHECKING:
    import argparse
    from collections.abc import Sequence

    from layoutdoctor.diagnosis.diagnosis import Diagnosis
    from layoutdoctor.recording.recording import Recording


def prepare_parser(parser: argparse.ArgumentParser) -> None:
    """Adds the options."""
    parser.description = (
        "Examines what --save-recordings kept: the diagnosis once more, with today's analysis and rules. "
        "Recordings of one diagnosis make one report. Needs no torch."
    )
    parser.epilog = (
        "Exit status: 0 done; 1 a finding at or above --fail-on; 2 wrong usage; 3 nothing could be examined; "
        "4 nothing could be concluded. A recording that cannot be read is named, the others are examined."
    )
    parser.add_argument("recordings", metavar="RECORDING", nargs="+", help="a recording, or a folder of them")
    add_conclusion_options(parser)


def run(arguments: argparse.Namespace) -> int:
    """Examines every recording and prints a report for each diagnosis."""
    conclusion = prepare_conclusion(arguments, arguments.recordings)
    from layoutdoctor.examination.examine import by_diagnosis  # late: what is wrong with the command line comes first
    from layoutdoctor.run.recorded import diagnose_recordings

    groups = list(by_diagnosis(load_recordings(arguments.recordings)))
    refuse_outputs_of_several(arguments, len(groups), "diagnoses")
    if len(groups) > 1:
        makers = [(group[0].head.subject.name, partial(diagnose_recordings, group)) for group in groups]
        return conclude_several(conclusion, makers, _status_of)
    diagnosis = diagnose_recordings(groups[0])
    return conclusion.conclude(diagnosis, _status_of(diagnosis))


def _status_of(diagnosis: Diagnosis) -> int:
    return 0 if can_be_judged(diagnosis) else EXIT_INCONCLUSIVE


def load_recordings(names: Sequence[str]) -> list[Recording]:
    """The recordings in files and folders; what cannot be read is named on standard error."""
    from layoutdoctor.recording.saved import SUFFIX, load_recording

    found: list[Recording] = []
    problems: list[str] = []
    for name in names:
        path, is_folder = Path(name), False
        with contextlib.suppress(OSError):  # reading it says why
            is_folder = path.is_dir()
        files = sorted(path.rglob(f"*{SUFFIX}")) if is_folder else [path]
        if not files:
            problems.append(f"cannot examine {name!r}: no file in it ends in {SUFFIX}; name a folder of recordings")
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
