"""Recordings on the command line: where ``--save-recordings`` puts them, and what files and folders hold of them."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from layoutdoctor.commands.output import for_others
from layoutdoctor.diagnosis.writing import check_directory, file_name_of
from layoutdoctor.errors import LayoutDoctorError, RecordError, UsageError
from layoutdoctor.reports.sections.wording import clean

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from layoutdoctor.diagnosis.records import Configuration
    from layoutdoctor.recording.recording import Recording

SUFFIX = ".recording"


def prepare_directory(name: str, what: str) -> Path:
    """
    Makes a directory and proves that files can be made in it.

    Args:
        name: As given.
        what: What is to be saved in it.

    Raises:
        UsageError: That is not so.
    """
    directory = Path(name)
    try:
        directory.mkdir(parents=True, exist_ok=True)
        check_directory(directory)
    except OSError as error:
        raise UsageError(
            f"cannot save {what} in {name!r}: {error.strerror or error}; name another directory"
        ) from error
    return directory.absolute()  # the model may change the current folder


def prepare_recordings(
    name: str | None, configurations: Sequence[Configuration], *, force: bool, redact: bool
) -> Path | None:
    """
    The directory that recordings go to; None where none were asked for.

    Args:
        name: What the user gave with ``--save-recordings``.
        configurations: What will be recorded.
        force: Whether earlier recordings may be replaced.
        redact: Whether reports are to be redacted.

    Raises:
        UsageError: A recording is there already, the directory cannot be used, or reports are to be redacted.
    """
    if name is None:
        return None
    if redact:
        raise UsageError(
            f"cannot save recordings in {name!r} with --redact: they hold the names of modules and files; leave out "
            "--redact, or --save-recordings"
        )
    directory = prepare_directory(name, "recordings")
    there = next((path for c in configurations if (path := _path(directory, c.name)).exists()), None)
    if there is not None and not force:
        raise UsageError(
            f"cannot save recordings in {name!r}: {there.name!r} is there already; pass --force to replace it, or name "
            "another directory"
        )
    return directory


def save_recordings(recordings: Iterable[Recording], directory: Path, interrupted: str | None = None) -> None:
    """
    Writes recordings, one file for each configuration, without user and host names, absolute paths and secrets.

    One that cannot be written costs itself only, and is named on standard error.

    Args:
        recordings: Of one diagnosis.
        directory: From ``prepare_recordings``.
        interrupted: What stopped the diagnosis; None where it came to its end.
    """
    from layoutdoctor.recording.saved import save_recording  # late: it brings numpy

    for recording in recordings:
        if interrupted is not None:
            head = msgspec.structs.replace(recording.head, interrupted=interrupted)
            recording = msgspec.structs.replace(recording, head=head)
        path = _path(directory, recording.name)
        try:
            save_recording(for_others(recording), path)
        except OSError as error:
            _say(f"warning: cannot write {str(path)!r}: {error.strerror or error}")


def _path(directory: Path, configuration: str) -> Path:
    return directory / f"{file_name_of(configuration)}{SUFFIX}"


def load_recordings(names: Sequence[str]) -> list[Recording]:
    """
    The recordings in files and folders; what cannot be read is named on standard error.

    Args:
        names: Files, and folders in which files that end in ``.recording`` are looked for, however deep.

    Raises:
        RecordError: There is none that can be read.
    """
    from layoutdoctor.recording.saved import load_recording  # late: it brings numpy

    found: list[Recording] = []
    problems: list[str] = []
    for name in names:
        path = Path(name)
        files = sorted(path.rglob(f"*{SUFFIX}")) if path.is_dir() else [path]
        if not files:
            problems.append(f"cannot examine {name!r}: no file in it ends in {SUFFIX}; name a folder of recordings")
        for file in files:
            try:
                found.append(load_recording(file))
            except LayoutDoctorError as error:
                problems.append(str(error))
    last = [] if found else problems[-1:]
    for problem in problems[: len(problems) - len(last)]:
        _say(f"error: {problem}")
    if last:
        raise RecordError(last[0])
    return found


def _say(text: str) -> None:
    print(f"layoutdoctor: {clean(text)}", file=sys.stderr)
