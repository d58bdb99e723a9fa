"""``diagnose(model, x, isolate=True)``: the caller's own model, diagnosed in processes of its own."""

from __future__ import annotations

import math
import os
import shutil
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from layoutdoctor.errors import SubjectError, TransportError
from layoutdoctor.journal import temporary_journal
from layoutdoctor.processes import scratch_prefix
from layoutdoctor.progress import DEFAULT_TIMEOUT_SECONDS
from layoutdoctor.rules import run_rules
from layoutdoctor.subjects.transport import save_subject
from layoutdoctor.supervisor import Watch, supervise

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from layoutdoctor.messages import Request
    from layoutdoctor.progress import Progress
    from layoutdoctor.records import Diagnosis
    from layoutdoctor.rules import Rule
    from layoutdoctor.subjects.subject import LoadedSubject


def diagnose_isolated(
    subject: LoadedSubject,
    request: Request,
    *,
    rules: Sequence[Rule] | None,
    progress: Callable[[Progress], None] | None,
    timeout_seconds: float | None,
) -> Diagnosis:
    """
    The diagnosis of a loaded subject by child processes.

    Args:
        subject: Model and inputs; they are saved for the child in a private directory, which is removed at the end.
        request: What to try, and how.
        rules: Rules to run; None for all.
        progress: Called at every step, in this process.
        timeout_seconds: For one configuration; None for the default, infinity for no limit.

    Raises:
        TransportError: The model cannot be saved, or not be rebuilt in another process.
        SubjectError: The model does not run in eager mode, or takes the process with it.
    """
    directory = _private_directory()
    try:
        try:
            save_subject(subject, directory)
        except SubjectError as error:
            raise TransportError(str(error)) from error
        request = msgspec.structs.replace(request, subject_directory=str(directory))
        seconds = DEFAULT_TIMEOUT_SECONDS if timeout_seconds is None else float(timeout_seconds)
        watch = Watch() if progress is None else Watch(progress=progress)
        journal = temporary_journal()
        try:
            diagnosis = supervise(request, journal, watch, None if seconds == math.inf else seconds)
        finally:
            journal.close(is_needed=False)
    finally:
        shutil.rmtree(directory, ignore_errors=True)
    return msgspec.structs.replace(diagnosis, findings=run_rules(diagnosis, rules))


def _private_directory() -> Path:
    try:
        return Path(tempfile.mkdtemp(prefix=scratch_prefix(os.getpid())))
    except OSError as error:
        raise TransportError(
            f"cannot save the model for another process in {tempfile.gettempdir()!r}: {error.strerror or error}"
        ) from error
