"""Folders for temporary files: what a killed run left goes, and nothing else."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
import pytest

from layoutdoctor.files.scratch import _OWNER, _Owner, private_directory

if TYPE_CHECKING:
    from collections.abc import Callable

CODE = (
    "from layoutdoctor.files.scratch import private_directory; made = private_directory(); print(made.name, flush=True)"
)
OWN = _Owner.this_process()
pytestmark = pytest.mark.skipif(OWN is None, reason="this system does not tell boots and namespaces apart")


@pytest.fixture(autouse=True)
def _temporary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    monkeypatch.setenv("TMPDIR", str(tmp_path))


def left_by_a_killed_run() -> Path:
    code = f"{CODE}; import os; os.kill(os.getpid(), 9)"
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert ended.returncode == -9
    return Path(ended.stdout.strip())


def with_owner(folder: Path, **changes: Any) -> Path:
    """A folder as a run makes it, with another owner."""
    folder.mkdir(mode=0o700)
    assert OWN is not None
    (folder / _OWNER).write_bytes(msgspec.json.encode(msgspec.structs.replace(OWN, **changes)))
    return folder


def test_what_a_killed_run_left_is_removed_and_what_a_living_one_has_stays() -> None:
    left = left_by_a_killed_run()
    (left / "trace.json").write_text("{}")
    with private_directory() as mine:
        assert not left.exists()
        with private_directory():
            assert Path(mine).is_dir()


def of_another_boot(folder: Path) -> None:
    with_owner(folder, pid=2**22 + 1, boot="another")


def of_another_namespace(folder: Path) -> None:
    with_owner(folder, pid=2**22 + 1, namespace=1)


def of_a_living_process(folder: Path) -> None:
    with_owner(folder)


def of_the_users_own(folder: Path) -> None:
    folder.mkdir(mode=0o700)
    (folder / "diagnosis.json").write_text("{}")


def with_a_marker_that_is_damaged(folder: Path) -> None:
    folder.mkdir(mode=0o700)
    (folder / _OWNER).write_text('{"pid": 1')


def with_a_marker_that_is_a_link(folder: Path) -> None:
    marker = with_owner(folder.with_name("elsewhere"), pid=2**22 + 1) / _OWNER
    folder.mkdir(mode=0o700)
    (folder / _OWNER).symlink_to(marker)


def with_a_marker_that_is_a_pipe(folder: Path) -> None:
    folder.mkdir(mode=0o700)
    os.mkfifo(folder / _OWNER)


def that_others_may_enter(folder: Path) -> None:
    with_owner(folder, pid=2**22 + 1).chmod(0o755)


def that_is_a_link(folder: Path) -> None:
    folder.symlink_to(with_owner(folder.with_name("elsewhere"), pid=2**22 + 1))


@pytest.mark.parametrize("name", ["layoutdoctor-2026-results", f"layoutdoctor-{2**22 + 1}-x", "layoutdoctor-"])
@pytest.mark.parametrize(
    "make",
    [
        of_another_boot,
        of_another_namespace,
        of_a_living_process,
        of_the_users_own,
        with_a_marker_that_is_damaged,
        with_a_marker_that_is_a_link,
        with_a_marker_that_is_a_pipe,
        that_others_may_enter,
        that_is_a_link,
    ],
)
def test_a_folder_that_is_not_proved_to_be_left_stays(make: Callable[[Path], None], name: str, tmp_path: Path) -> None:
    make(tmp_path / name)
    with private_directory():
        pass
    assert (tmp_path / name).exists()


def test_the_process_number_of_a_dead_run_may_belong_to_another_process(tmp_path: Path) -> None:
    assert OWN is not None
    folder = with_owner(tmp_path / "layoutdoctor-7-a", started=OWN.started - 3600)
    with private_directory():
        pass
    assert not folder.exists()
