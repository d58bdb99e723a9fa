"""Standard error that cannot be written costs nothing but what was said."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from layoutdoctor.commands.streams import lossy_stderr, silence

COMMAND = [sys.executable, "-m", "layoutdoctor", "render", "missing.json"]


@pytest.mark.thorough
@pytest.mark.skipif(not Path("/dev/full").exists(), reason="no device that is always full")
def test_a_full_standard_error_changes_no_exit_status() -> None:
    with Path("/dev/full").open("wb") as full:
        assert subprocess.run(COMMAND, stderr=full, check=False).returncode == 3


@pytest.mark.thorough
def test_a_reader_of_standard_error_that_went_away_changes_no_exit_status() -> None:
    reading, writing = os.pipe()
    os.close(reading)
    try:
        assert subprocess.run(COMMAND, stderr=writing, check=False).returncode == 3
    finally:
        os.close(writing)


def test_what_cannot_be_written_is_lost_and_the_stream_is_put_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Full:
        def __init__(self) -> None:
            self.file = (tmp_path / "said").open("w")
            self.name = "full"

        def write(self, text: str) -> int:
            raise OSError(28, "No space left on device")

        def flush(self) -> None:
            raise OSError(28, "No space left on device")

        def fileno(self) -> int:
            return self.file.fileno()

    full = Full()
    monkeypatch.setattr(sys, "stderr", full)
    with lossy_stderr():
        print("lost", file=sys.stderr, flush=True)
        assert sys.stderr.name == "full"

    assert sys.stderr is full
    full.file.write("goes to nothing as well")
    full.file.close()
    assert (tmp_path / "said").read_text() == ""


def test_a_stream_without_a_descriptor_is_let_be(capsys: pytest.CaptureFixture[str]) -> None:
    silence(sys.stderr)

    with lossy_stderr():
        print("said", file=sys.stderr)
    assert capsys.readouterr().err == "said\n"
