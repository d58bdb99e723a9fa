"""
Runs layoutdoctor on a model with a planted fault, in processes and folders of their own, and looks at what is left.

Every process that a run starts inherits a variable with the run's number, so that what is left of it can be found in
``/proc`` and nothing else is touched.
"""

from __future__ import annotations

import contextlib
import getpass
import json
import os
import shutil
import signal
import subprocess
import sys
import time
import uuid
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import layoutdoctor

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from layoutdoctor.diagnosis.records import Diagnosis

MARKER = "LAYOUTDOCTOR_TEST_RUN"
PLANTING = Path(__file__).with_name("planting.py")
ROOT = Path(__file__).parents[2]
RECORD = "d.json"
# A process that was killed is gone when the kernel comes to it; a second is long for that.
GRACE_SECONDS = 5.0
_POLL_SECONDS = 0.05
# Tests that run in the background of a shell, or under nohup, ignore these two, and the command would inherit that.
_LAUNCH = """
import json, os, resource, signal, sys
for number in (signal.SIGINT, signal.SIGHUP):
    signal.signal(number, signal.SIG_DFL)
for name, value in json.loads(sys.argv[1]).items():
    resource.setrlimit(getattr(resource, name), (value, value))
os.execv(sys.argv[2], sys.argv[2:])
"""


class HangError(AssertionError):
    """The command did not end within the row's time."""


@dataclass(frozen=True)
class Ended:
    """
    What one run of the command gave, and what it left.

    Attributes:
        status: Exit status; the negative number of the signal where one killed it.
        output: Standard output; ``said`` is standard error.
        processes: Command lines of processes of this run that were alive after it.
        temporary: Names in the run's folder for temporary files.
        files: Names in the folder with the model and the outputs, those given left out.
        diagnosis: What was saved; None where nothing was.
    """

    status: int
    output: str
    said: str
    seconds: float
    processes: tuple[str, ...]
    temporary: tuple[str, ...]
    files: tuple[str, ...]
    diagnosis: Diagnosis | None
    record_text: str
    folder: Path

    @property
    def text(self) -> str:
        """All that was said, and saved of failures and in notes, with one space between words: reports wrap lines."""
        trials = self.diagnosis.trials if self.diagnosis is not None else ()
        messages = [
            f"{trial.name} {trial.status.replace('_', ' ')} ({trial.failure.kind}): {trial.failure.message}"
            for trial in trials
            if trial.failure is not None
        ]
        messages += [*(self.diagnosis.subject.notes if self.diagnosis is not None else ())]
        for trial in trials:
            detail = trial.equivalence.detail if trial.equivalence is not None else None
            messages += [f"{trial.name}: {note}" for note in (*trial.notes, detail) if note is not None]
        return " ".join("\n".join([self.output, self.said, *messages]).split())

    @property
    def statuses(self) -> dict[str, str]:
        """Status of every trial that was saved, by configuration."""
        return {} if self.diagnosis is None else {trial.name: trial.status for trial in self.diagnosis.trials}


class Workplace:
    """Folders for the runs of one fault: the model's, one for temporary files, and a home."""

    def __init__(self, folder: Path, cache: Path) -> None:
        self.cache = cache
        self.work, self.temporary, self.home = (folder / name for name in ("work", "tmp", "home"))
        for made in (self.work, self.temporary, self.home):
            made.mkdir(parents=True)
        shutil.copy(PLANTING, self.work)
        # torch keeps precompiled headers here whatever its cache's folder is; making one takes ten seconds.
        headers = cache / "headers"
        headers.mkdir(parents=True, exist_ok=True)
        self.headers = self.temporary / f"torchinductor_{getpass.getuser()}"
        self.headers.symlink_to(headers)

    def write_model(self, source: str) -> None:
        """Writes the model file."""
        (self.work / "model.py").write_text(source, encoding="utf-8")

    def given(self) -> set[str]:
        """Names in the model's folder before a run; what Python caches of them is no output."""
        return {path.name for path in self.work.iterdir()} | {"__pycache__"}

    def run(
        self,
        words: Sequence[str],
        *,
        within_seconds: float,
        environment: Mapping[str, str] | None = None,
        limits: Mapping[str, int] | None = None,
        shell_tail: str = "",
        prefix: Sequence[str] = (),
        interrupt: Callable[[subprocess.Popen[bytes]], None] | None = None,
    ) -> Ended:
        """
        Runs ``python -m layoutdoctor`` and waits for its end.

        Args:
            environment: Variables besides those of this process.
            limits: Soft and hard limits by their names in ``resource``, such as ``RLIMIT_AS``.
            interrupt: Called with the process once the model has said that it waits.

        Raises:
            HangError: It did not end.
        """
        number = uuid.uuid4().hex
        before = self.given()
        command = [sys.executable, "-c", _LAUNCH, json.dumps(dict(limits or {})), sys.executable]
        command = [*prefix, *command, "-m", "layoutdoctor", *words]
        if shell_tail:
            command = ["sh", "-c", f'exec "$@" {shell_tail}', "sh", *command]
        start = time.monotonic()
        with (self.home / "out").open("wb") as out, (self.home / "err").open("wb") as err:
            process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=err,
                cwd=self.work,
                env=self._environment(number, environment or {}),
                start_new_session=True,  # as a terminal gives each command a group of its own
            )
            try:
                if interrupt is not None:
                    self._wait_until_reached(process, within_seconds)
                    interrupt(process)
                status = process.wait(within_seconds)
            except subprocess.TimeoutExpired:
                status = None
            finally:
                left = processes_left(number)
                if process.poll() is None:
                    process.kill()
                    process.wait()
                end_processes(number)
        output, said = (_text(self.home / name) for name in ("out", "err"))
        if status is None:
            raise HangError(
                f"it ran for more than {within_seconds:g} s; alive: {left}\n{said[-4000:]}\n{output[-2000:]}"
            )
        names = {path.name for path in self.work.iterdir()} if self.work.is_dir() else set()
        record = self.work / RECORD
        return Ended(
            status=status,
            output=output,
            said=said,
            seconds=time.monotonic() - start,
            processes=tuple(left),
            temporary=tuple(sorted(path.name for path in self.temporary.iterdir() if path != self.headers)),
            files=tuple(sorted(names - before)),
            diagnosis=layoutdoctor.load(record) if record.is_file() else None,
            record_text=record.read_text(encoding="utf-8") if record.is_file() else "",
            folder=self.work,
        )

    def _environment(self, number: str, changes: Mapping[str, str]) -> dict[str, str]:
        return {
            **os.environ,
            MARKER: number,
            "HOME": str(self.home),
            "TMPDIR": str(self.temporary),
            "TORCHINDUCTOR_CACHE_DIR": str(self.cache),
            "PYTHONPATH": str(ROOT),
            "OMP_NUM_THREADS": "1",
            "NO_COLOR": "1",
            **changes,
        }

    def _wait_until_reached(self, process: subprocess.Popen[bytes], within_seconds: float) -> None:
        reached = self.work / "reached"
        last = time.monotonic() + within_seconds
        while not reached.exists():
            if process.poll() is not None or time.monotonic() > last:
                raise AssertionError(f"the stage was not reached: {_text(self.home / 'err')[-4000:]}")
            time.sleep(_POLL_SECONDS)


def processes_left(number: str) -> list[str]:
    """Command lines of the processes of a run that are alive, after those that were killed had the time to go."""
    last = time.monotonic() + GRACE_SECONDS
    while True:
        found = dict(_processes(number))
        if not found or time.monotonic() > last:
            return sorted(found.values())
        time.sleep(_POLL_SECONDS)


def end_processes(number: str) -> None:
    """Ends what is left of a run, so that one row's fault is not the next one's."""
    for pid, _ in _processes(number):
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


def _processes(number: str) -> Iterator[tuple[int, str]]:
    wanted = f"{MARKER}={number}".encode()
    for folder in Path("/proc").iterdir():
        if not folder.name.isdigit():
            continue
        try:
            if wanted in (folder / "environ").read_bytes().split(b"\0"):
                line = (folder / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
                yield int(folder.name), line[:300]
        except OSError:
            continue  # it ended meanwhile


def _text(path: Path) -> str:
    """A file's end; a model that prints gigabytes is one of the faults."""
    if not path.is_file():
        return ""
    with path.open("rb") as stream:
        stream.seek(max(path.stat().st_size - 4_000_000, 0))
        return stream.read().decode(errors="replace")
