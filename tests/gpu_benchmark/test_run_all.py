"""``run_all.sh`` shares the time out, goes on, and says by its exit status what is left; the parts here do nothing."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from collections.abc import Callable

    Run = Callable[..., subprocess.CompletedProcess[str]]

SCRIPT = Path(__file__).parents[2] / "benchmarks" / "gpu" / "run_all.sh"

PART = """import json, pathlib, sys
part, out, seconds = pathlib.Path(__file__).stem, pathlib.Path(sys.argv[1]), int(sys.argv[3])
calls = out / f"{part}.json"
earlier = json.loads(calls.read_text()) if calls.exists() else []
calls.write_text(json.dumps([*earlier, [seconds, sys.argv[4:]]]))
print(part, "ran", flush=True)
sys.exit(dict(STATUS).get((part, len(earlier)), 0))
"""


@pytest.fixture
def run_all(tmp_path: Path) -> Run:
    """The script in a folder of its own beside parts that note how they were called."""
    folder = tmp_path / "benchmarks" / "gpu"
    folder.mkdir(parents=True)
    shutil.copy(SCRIPT, folder)

    def run(*arguments: str, status: dict[tuple[str, int], int] | None = None) -> subprocess.CompletedProcess[str]:
        for part in ("diagnoses", "target_check", "launch_grid", "timers", "winners"):
            text = PART.replace("STATUS", repr(status or {}))
            (folder / f"{part}.py").write_text(text, encoding="utf-8")
        python = tmp_path / "python"
        if not python.exists():  # everything can be imported at once: torch would take seconds
            python.write_text('#!/bin/sh\n[ "$1" = -c ] && exit 0\nexec python3 "$@"\n', encoding="utf-8")
            python.chmod(0o755)
        command = ["bash", str(folder / "run_all.sh"), str(tmp_path / "out"), *arguments]
        environment = {**os.environ, "PYTHON": str(python)}
        return subprocess.run(
            command, capture_output=True, text=True, env=environment, cwd="/", timeout=60, check=False
        )

    return run


def calls(tmp_path: Path, part: str) -> list[tuple[int, list[str]]]:
    file = tmp_path / "out" / f"{part}.json"
    return [(seconds, rest) for seconds, rest in json.loads(file.read_text())] if file.exists() else []


def test_every_part_gets_its_share_of_what_is_left(tmp_path: Path, run_all: Run) -> None:
    done = run_all("--seconds", "400", "--small", "--device", "cpu", "--only", "a,b")

    assert done.returncode == 0, done.stderr
    (first, arguments), *again = calls(tmp_path, "diagnoses")
    assert 230 <= first <= 240
    assert arguments == ["--small", "--device", "cpu", "--only", "a,b"]
    assert again == []
    assert calls(tmp_path, "winners")[0][0] >= 380  # what the others left over
    assert "everything is done" in (tmp_path / "out" / "run_all.log").read_text()


def test_a_part_with_items_left_gets_the_rest_of_the_time(tmp_path: Path, run_all: Run) -> None:
    done = run_all("--seconds", "300", "diagnoses", "timers", status={("diagnoses", 0): 75})

    assert done.returncode == 0, done.stderr
    first, second = (seconds for seconds, _ in calls(tmp_path, "diagnoses"))
    assert 250 <= first <= 261
    assert second > 280
    assert calls(tmp_path, "winners") == []


def test_time_that_ran_out_asks_for_another_call(run_all: Run) -> None:
    done = run_all("timers", status={("timers", 0): 75, ("timers", 1): 75})

    assert done.returncode == 75
    assert "call again" in done.stdout


def test_a_part_that_fails_does_not_keep_the_others_from_running(tmp_path: Path, run_all: Run) -> None:
    done = run_all("timers", "winners", status={("timers", 0): 3})

    assert done.returncode == 3
    assert len(calls(tmp_path, "winners")) == 1
    assert "timers: exit status 3" in done.stdout


def test_earlier_results_are_taken_over_and_newer_ones_are_kept(tmp_path: Path, run_all: Run) -> None:
    earlier = tmp_path / "earlier"
    earlier.mkdir()
    (tmp_path / "out").mkdir()
    for name in ("timers.json", "winners.json", "traces.tar", "other.txt"):
        (earlier / name).write_text("[[1, []]]", encoding="utf-8")
    (tmp_path / "out" / "winners.json").write_text("[[2, []], [2, []]]", encoding="utf-8")

    done = run_all("--earlier", str(earlier), "timers", "winners")

    assert done.returncode == 0, done.stderr
    assert [seconds for seconds, _ in calls(tmp_path, "timers")][:-1] == [1]
    assert [seconds for seconds, _ in calls(tmp_path, "winners")][:-1] == [2, 2]
    assert (tmp_path / "out" / "traces.tar").exists()
    assert not (tmp_path / "out" / "other.txt").exists()


def test_missing_packages_come_from_wheels_or_are_named(tmp_path: Path, run_all: Run) -> None:
    (tmp_path / "python").write_text("#!/bin/sh\nexit 1\n", encoding="utf-8")
    (tmp_path / "python").chmod(0o755)

    done = run_all("timers")

    assert done.returncode == 3
    assert "no wheels in" in done.stdout


@pytest.mark.parametrize("arguments", [("nonsense",), ("--seconds",), ("--seconds", "soon"), ("--unknown",)])
def test_wrong_arguments_are_refused(arguments: tuple[str, ...], run_all: Run) -> None:
    done = run_all(*arguments)

    assert done.returncode == 2
    assert done.stderr
