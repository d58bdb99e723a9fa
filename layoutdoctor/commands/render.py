"""``render``: a saved diagnosis in another format, if asked with today's rules. No model, no torch and no GPU."""

from __future__ import annotations

from typing import TYPE_CHECKING

from layoutdoctor.commands.conclusion import add_conclusion_options, prepare_conclusion
from layoutdoctor.diagnosis.saved import load
from layoutdoctor.errors import RecordError, UsageError

if TYPE_CHECKING:
    import argparse

    from layoutdoctor.diagnosis.diagnosis import Diagnosis


def prepare_parser(parser: argparse.ArgumentParser) -> None:
    """Adds the options."""
    parser.description = "A saved diagnosis in another format. Needs no torch."
    parser.epilog = (
        "Exit status: 0 done; 1 a finding at or above --fail-on; 2 wrong usage; 3 the file could not be read; "
        "4 --fail-on cannot be judged, as nothing was recorded."
    )
    parser.add_argument("saved", metavar="SAVED.json", help="what --output SAVED.json wrote")
    parser.add_argument("--recheck", action="store_true", help="replace the saved findings by those of today's rules")
    parser.add_argument(
        "--recordings",
        metavar="DIR",
        help="with --recheck: examine its recordings again, which --save-recordings kept in this directory",
    )
    add_conclusion_options(parser)


def run(arguments: argparse.Namespace) -> int:
    """Reads the diagnosis and prints its report."""
    conclusion = prepare_conclusion(arguments, [arguments.saved])
    if arguments.recordings is not None and not arguments.recheck:
        raise UsageError("cannot examine --recordings again without --recheck: pass it as well, or leave out both")
    diagnosis = load(arguments.saved)
    if arguments.recordings is not None:
        diagnosis = _examined_again(diagnosis, arguments.saved, arguments.recordings)
    elif arguments.recheck:
        import msgspec

        from layoutdoctor.rules import run_rules  # late: a saved diagnosis has its findings

        diagnosis = msgspec.structs.replace(diagnosis, findings=run_rules(diagnosis))
    return conclusion.conclude(diagnosis, 0)


def _examined_again(diagnosis: Diagnosis, saved: str, directory: str) -> Diagnosis:
    from layoutdoctor.commands.examine import load_recordings
    from layoutdoctor.examination.examine import by_diagnosis
    from layoutdoctor.run.recorded import diagnose_recordings

    names = {trial.name for trial in diagnosis.trials}
    for group in by_diagnosis(load_recordings([directory])):
        head = group[0].head
        is_the_same = (head.created_at, head.subject.name) == (diagnosis.created_at, diagnosis.subject.name)
        if is_the_same and names <= {recording.name for recording in group}:
            return diagnose_recordings(group)
    raise RecordError(
        f"cannot examine {saved!r} again: {directory!r} does not hold the recordings of all its configurations; name "
        "the directory that --save-recordings was given"
    )
