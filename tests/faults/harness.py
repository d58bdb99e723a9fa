"""
Runs the command on a model with a planted fault, in processes and folders of its own, and looks at what is left.

Every process that a run starts inherits a variable with the run's number, so that what is left of it can be found and
nothing else is touched.
"""

from __future__ import annotations

import contextlib
import getpass
import json
import os
import shlex
import shutil
import signal
import subprocess
import sys
import time
import uuid
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import psutil

import layoutdoctor

if TYPE_CHECKING:
    from faults.fault import Fault

    from layoutdoctor.diagnosis.diagnosis import Diagnosis

MARKER = "LAYOUTDOCTOR_TEST_RUN"
PLANTING = Path(__file__).with_name("planting.py")
ROOT = Path(__file__).parents[2]
RECORD = "d.json"
LONGEST_SECONDS = 300.0
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


@dataclass(frozen=True)
class Ended:
    """
    What one run of the command gave, and what it left.

    Attributes:
        status: Exit status; the negative number of the signal where one killed it; None if it did not end.
        output: Standard output; ``said`` is standard error.
        processes: Processes of this run that were alive after it.
        temporary: Names in the run's folder for temporary files.
        files: Names that the run made in the folder with the model.
        diagnosis: What was saved; None where nothing was.
    """

    status: int | None
    output: str
    said: str
    processes: list[psutil.Process]
    temporary: tuple[str, ...]
    files: tuple[str, ...]
    diagnosis: Diagnosis | None
    record_text: str

    @property
    def text(self) -> str:
        """All that was said, and saved of failures and in notes, with one space between words: reports wrap lines."""
        trials = self.diagnosis.trials if self.diagnosis is not None else ()
        messages = [
            f"{trial.name} {trial.status.replace('_', ' ')} ({trial.failure.kind}): {trial.failure.message}"
            for trial in trials
            if trial.failure is not None
        ]
        messages += self.diagnosis.subject.notes if self.diagnosis is not None else ()
        messages += [note for trial in trials for note in trial.notes]
        return " ".join("\n".join([self.output, self.said, *messages]).split())


class Workplace:
    """Folders for the runs of one fault: the model's, one for temporary files, and a home."""

    def __init__(self, fault: Fault, folder: Path, cache: Path) -> None:
        self.fault, self.cache = fault, cache
        self.work, self.temporary, self.home = (folder / name for name in ("work", "tmp", "home"))
        for made in (self.work, self.temporary, self.home):
            made.mkdir(parents=True)
        shutil.copy(PLANTING, self.work)
        for name, text in {"model.py": fault.model_source, **fault.files}.items():
            path = self.work / name
            path.write_text(text, encoding="utf-8")
            path.chmod(0o755)
        # torch keeps precompiled headers here whatever its cache's folder is; making one takes ten seconds.
        headers = cache / "headers"
        headers.mkdir(parents=True, exist_ok=True)
        self.headers = self.temporary / f"torchinductor_{getpass.getuser()}"
        self.headers.symlink_to(headers)

    def run(self, *, resumed: bool = False) -> Ended:
        """Runs the row's command, and waits for its end; ``resumed`` continues the first run."""
        fault, number = self.fault, uuid.uuid4().hex
        before = {path.name for path in self.work.iterdir()} | {"__pycache__"}
        words = ["model.py", "--configurations", fault.configurations, "--budget", "0.2", "--output", RECORD]
        words += shlex.split(fault.options) + (["--resume", "folder"] if fault.is_resumed else [])
        words += ["--force"] if resumed else []
        command = [sys.executable, "-c", _LAUNCH, json.dumps(fault.limits)]
        command += [sys.executable, "-m", "layoutdoctor", *words]
        status = None
        (self.home / "out").touch()
        with Path(fault.output or self.home / "out").open("wb") as out, (self.home / "err").open("wb") as err:
            process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=err,
                cwd=self.work,
                env=self._environment(number),
                start_new_session=True,  # as a terminal gives each command a group of its own
            )
            try:
                if fault.interrupt and not resumed:
                    self._interrupt(process)
                with contextlib.suppress(subprocess.TimeoutExpired):
                    status = process.wait(LONGEST_SECONDS)
            finally:
                left = processes_left(number)
                if process.poll() is None:
                    process.kill()
                    process.wait()
                end_processes(number)
        output, said = (_text(self.home / name) for name in ("out", "err"))
        record = self.work / RECORD
        return Ended(
            status=status,
            output=output,
            said=said,
            processes=left,
            temporary=tuple(sorted(path.name for path in self.temporary.iterdir() if path != self.headers)),
            files=tuple(sorted({path.name for path in self.work.iterdir()} - before)),
            diagnosis=layoutdoctor.load(record) if record.is_file() else None,
            record_text=record.read_text(encoding="utf-8") if record.is_file() else "",
        )

    def _environment(self, number: str) -> dict[str, str]:
        changes = {name: value.format(work=self.work) for name, value in self.fault.environment.items()}
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

    def _interrupt(self, process: subprocess.Popen[bytes]) -> None:
        """Signals, once the model waits: an interrupt to the whole group, as a terminal sends it, else the command."""
        last = time.monotonic() + LONGEST_SECONDS
        while not (self.work / "reached").exists():
            if process.poll() is not None or time.monotonic() > last:
                raise AssertionError(f"the stage was not reached: {_text(self.home / 'err')[-4000:]}")
            time.sleep(_POLL_SECONDS)
        for name in self.fault.interrupt.split(","):
            if name == "SIGINT":
                os.killpg(process.pid, signal.SIGINT)
            else:
                process.send_signal(signal.Signals[name])


def processes_left(number: str) -> list[psutil.Process]:
    """The processes of a run that are alive, after those that were killed had the time to go."""
    last = time.monotonic() + GRACE_SECONDS
    while (found := _processes(number)) and time.monotonic() < last:
        time.sleep(_POLL_SECONDS)
    return found


def end_processes(number: str) -> None:
    """Ends what is left of a run, so that one row's fault is not the next one's."""
    for process in _processes(number):
        with contextlib.suppress(psutil.NoSuchProcess):
            process.kill()


def _processes(number: str) -> list[psutil.Process]:
    found = psutil.process_iter(["environ"])
    return [process for process in found if (process.info["environ"] or {}).get(MARKER) == number]


def _text(path: Path) -> str:
    """A file's end; a model that prints gigabytes is one of the faults."""
    with path.open("rb") as stream:
        stream.seek(max(path.stat().st_size - 4_000_000, 0))
        return stream.read().decode(errors="replace")
