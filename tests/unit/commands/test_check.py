"""``--check``: one screen about the machine, for bug reports; and a word before minutes are spent on a busy one."""

from __future__ import annotations

import logging
import subprocess
import sys

import pytest

from layoutdoctor.__main__ import main
from layoutdoctor.commands import check, running
from layoutdoctor.errors import NO_TORCH
from layoutdoctor.workers import processes
from layoutdoctor.workers.processes import OtherPrograms


def test_it_says_what_is_there_on_one_screen(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TORCHINDUCTOR_FREEZING", "1")
    assert main(["--check"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) <= 30
    assert max(map(len, lines)) <= 100
    named = [line.split("  ")[0] for line in lines if not line.startswith(" ")]
    assert named == [
        *("layoutdoctor", "Python", "torch", "triton", "compiler", "oneDNN", "GPU", "settings"),
        *("nsys", "allocator", "machine", "other programs"),
    ]
    assert "TORCHINDUCTOR_FREEZING=1" in " ".join(lines)


def test_without_torch_it_says_so_and_the_rest(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "torch", None)
    assert main(["check"]) == 0
    out = capsys.readouterr().out
    assert " ".join(NO_TORCH.split()) in " ".join(out.split())
    assert "machine" in out
    assert "oneDNN" not in out


def test_what_it_prints_holds_no_folder_of_the_users(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(check.shutil, "which", lambda name: "/home/somebody/secret/bin/nsys")
    assert main(["check"]) == 0
    assert "somebody" not in capsys.readouterr().out


@pytest.mark.parametrize(("cores", "is_said"), [(0.4, False), (0.6, True), (None, False)])
def test_a_busy_machine_is_named_before_minutes_are_spent(
    cores: float | None, is_said: bool, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(OtherPrograms, "cores", cores)
    with caplog.at_level(logging.INFO, logger="layoutdoctor"):
        running._say_if_busy(OtherPrograms())
    assert [record.getMessage() for record in caplog.records] == (
        ["other programs use 0.6 cores: times will vary; end them, or diagnose later"] if is_said else []
    )


def test_work_of_our_own_children_is_not_that_of_others(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(processes, "busy_seconds", lambda: 100.0)
    before = OtherPrograms._seconds()
    subprocess.run([sys.executable, "-c", "import time\nwhile time.process_time() < 1.0: pass"], check=True)
    after = OtherPrograms._seconds()
    assert before is not None
    assert after is not None
    assert after < before - 0.9
