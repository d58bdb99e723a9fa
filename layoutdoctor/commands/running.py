"""Runs the diagnosis of a command, and shows progress and first results."""

from __future__ import annotations

import contextlib
import importlib.util
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from layoutdoctor.commands.output import save_recordings, save_reports
from layoutdoctor.commands.resuming import Folder
from layoutdoctor.commands.streams import OutputError, logger, say, showing_progress
from layoutdoctor.diagnosis import Diagnosis
from layoutdoctor.errors import NO_TORCH, UnsupportedTorchError, UsageError
from layoutdoctor.examination.examine import concluded, diagnosis_of
from layoutdoctor.reports.sections.rows import trial_in_short
from layoutdoctor.run.diagnose import diagnose_request
from layoutdoctor.run.recorded import diagnose_recordings
from layoutdoctor.run.watching import Watch
from layoutdoctor.units import format_seconds
from layoutdoctor.words import listing
from layoutdoctor.workers.launcher import kept_launcher
from layoutdoctor.workers.processes import BUSY_CORES, OtherPrograms

if TYPE_CHECKING:
    from layoutdoctor.commands.conclusion import Conclusion
    from layoutdoctor.recording.recording import Recording
    from layoutdoctor.workers.messages import Progress, Request

_LOOK_SECONDS = 1.0


def check_request(request: Request) -> None:
    """Refuses a request that no worker can carry out: torch is missing, or a text in the request is not UTF-8."""
    require_torch()
    try:
        msgspec.json.encode(request)
    except UnicodeEncodeError as error:
        raise UsageError(
            f"cannot diagnose with {error.object!r}: it is no text in UTF-8; give a copy or a link under another name"
        ) from None


def require_torch() -> None:
    """Raises ``UnsupportedTorchError`` if torch is not installed; does not import torch."""
    if importlib.util.find_spec("torch") is None:
        raise UnsupportedTorchError(NO_TORCH)


class Running:
    """
    One diagnosis of a command, and its recordings while it runs. All diagnoses of a process share a launcher.

    Raises:
        UsageError: The folder to resume from cannot be used, or a text in the request is not UTF-8.
        UnsupportedTorchError: torch is not installed.
    """

    def __init__(self, request: Request, conclusion: Conclusion, resume: str | None) -> None:
        check_request(request)
        self._folder = None if resume is None else Folder(Path(resume), request)
        self._request, self._conclusion = request, conclusion
        self._named: set[str] = set()
        self._lost = () if self._folder is None else self._folder.lost()
        self._watch = Watch(lambda progress: None, self._show, self._show_table, self._lost)

    @property
    def recordings(self) -> tuple[Recording, ...]:
        """The recordings so far."""
        return self._watch.latest

    def diagnose(self, *, quiet: bool) -> Diagnosis:
        """
        Makes the diagnosis, findings included. Logs a line for each configuration as soon as it is ready.

        May be called only once: afterwards, other runs may use the folder of recordings.
        """
        with contextlib.nullcontext() if self._folder is None else self._folder.locked:
            return self._diagnose(quiet=quiet)

    def _diagnose(self, *, quiet: bool) -> Diagnosis:
        request, folder = self._request, self._folder
        if folder is not None and folder.changes:
            say(f"measuring all again: changed since the run that is resumed: {listing(folder.changes, 5)}")
        names = {one.name for one in self._lost}
        left = tuple(one for one in request.configurations if one.name not in names)
        if folder is not None and (folder.is_done or not left):
            return diagnose_recordings(folder.recordings)
        watched: list[OtherPrograms] = [OtherPrograms()]
        with showing_progress(quiet=quiet) as display:

            def show(progress: Progress) -> None:
                if watched and watched[0].elapsed > _LOOK_SECONDS:
                    _say_if_busy(watched.pop())
                display(progress)

            self._watch.progress = show
            request = msgspec.structs.replace(request, configurations=left)
            diagnosis = diagnose_request(kept_launcher(), request, self._watch)
        if folder is not None:
            folder.keep(self.recordings, self._watch.loaded_files)
        return diagnosis

    def stopped(self, how: str, directory: Path | None) -> Diagnosis | None:
        """
        Saves the recordings and reports of a stopped diagnosis.

        Args:
            how: The reason for the stop, for the record.
            directory: Folder for the recordings; None does not keep them.

        Returns:
            The diagnosis of the results so far, scrubbed or redacted; None if no configuration was ready.
        """
        seen = [
            msgspec.structs.replace(one, head=msgspec.structs.replace(one.head, interrupted=how))
            for one in self.recordings
        ]
        if not seen:
            return None
        if directory is not None:
            save_recordings(seen, directory)
        partial = self._conclusion.for_others(diagnosis_of(seen))
        try:
            save_reports(partial, self._conclusion.outputs)
        except OutputError as error:
            say(f"warning: {error}")
        return partial

    def _show(self) -> None:
        if self._folder is not None:
            self._folder.keep(self.recordings, self._watch.loaded_files)
        for one in self.recordings:
            if one.name not in self._named:
                self._named.add(one.name)
                # A configuration may be known to be the same as another one that has not compiled yet.
                trial = diagnosis_of([one]).trials[0] if one.trial.status == "ok" else concluded(one.trial)
                failure = trial.failure and self._conclusion.for_others(trial.failure)  # its text may hold a path
                logger.info("%s", trial_in_short(msgspec.structs.replace(trial, failure=failure)))

    def _show_table(self, recordings: Sequence[Recording]) -> None:
        from layoutdoctor.reports.sections.view import build_view  # imported late, because it is slow
        from layoutdoctor.reports.text import table_lines

        logger.info("first times, provisional (others are still compiling):")
        for table in build_view(self._conclusion.for_others(diagnosis_of(recordings))).tables[:1]:
            for _, line in table_lines(table.narrow, 100):
                logger.info("%s", line)


def _say_if_busy(others: OtherPrograms) -> None:
    cores = others.cores
    if cores is not None and cores > BUSY_CORES:
        logger.info("other programs use %.1f cores: times will vary; end them, or diagnose later", cores)


def say_stages(diagnosis: Diagnosis) -> None:
    """Logs the time of each stage, the longest first, for ``-v``."""
    longest = sorted(diagnosis.stage_seconds.items(), key=lambda stage: -stage[1])
    logger.debug("took %s", ", ".join(f"{format_seconds(seconds)} {stage}" for stage, seconds in longest))
