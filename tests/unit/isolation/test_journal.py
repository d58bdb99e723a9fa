"""What is kept of a run: for whom it may be continued, and what becomes of damage, strangers and a full disk."""

from __future__ import annotations

import os
import stat
import sys
from typing import TYPE_CHECKING, Any
from unittest import mock

import msgspec
import pytest
from builders import a_kept, a_trial
from recorded_builders import a_recording

from layoutdoctor.diagnosis.records import Failure
from layoutdoctor.errors import UsageError
from layoutdoctor.isolation import journal as journal_module
from layoutdoctor.isolation.journal import Journal, RunKey, open_journal, temporary_journal
from layoutdoctor.isolation.messages import Lost, TrialMemo
from layoutdoctor.recording.saved import pack

if TYPE_CHECKING:
    from pathlib import Path

KEY = RunKey(
    layoutdoctor="1",
    torch="2.13.0",
    python="3.11.7",
    processor="x86_64, 2 processors",
    target="m.py",
    source="abc",
    inputs=("f32[1]",),
    device=None,
    dtype=None,
    mode="inference",
    configurations=("eager",),
    lower_for=None,
)
KEPT = a_kept(
    a_trial("eager"),
    memos={"eager": TrialMemo(key="k", code=None, compile_seconds=float("inf"), onednn=("v3", None))},
).with_trial(a_recording(), TrialMemo(key="k"))
LOST = Lost(status="timed_out", failure=Failure(kind="compile", message="it took longer", log="a\nb"))


def test_a_run_is_continued_with_all_that_was_kept_for_its_owner_only(tmp_path: Path) -> None:
    journal = open_journal(str(tmp_path / "new" / "run"), KEY)
    assert not journal.can_continue
    journal.keep(KEPT)
    journal.lose("inductor", LOST)
    assert journal.can_continue
    journal.close(is_needed=False)

    again = open_journal(str(tmp_path / "new" / "run"), KEY)

    assert pack(again.kept) == pack(KEPT)
    assert again.lost == {"inductor": LOST}
    assert again.finished is None
    again.finish(KEPT)
    again.close(is_needed=False)
    finished = open_journal(str(tmp_path / "new" / "run"), KEY)
    assert pack(finished.finished) == pack(finished.kept) == pack(KEPT)
    finished.close(is_needed=False)

    journal = open_journal(str(tmp_path / "run"), KEY)

    assert stat.S_IMODE((tmp_path / "run").stat().st_mode) == 0o700
    temporary = temporary_journal(KEY)
    assert stat.S_IMODE(temporary.directory.stat().st_mode) == 0o700
    temporary.close(is_needed=False)
    journal.close(is_needed=False)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"mode": "training"}, "its mode was inference, now it is training"),
        ({"torch": "2.14.0"}, "its torch was 2.13.0, now it is 2.14.0"),
        ({"device": "cuda"}, "its device was none, now it is cuda"),
        ({"inputs": ()}, "its inputs were f32[1], now they are none"),
        (
            {"configurations": ('{"name":"eager"}', '{"name":"inductor"}')},
            "its configurations were eager, now they are eager, inductor",
        ),
        (
            {"configurations": ('{"name":"eager","cures":[]}',)},
            'its configurations were eager, now they are {"name":"eager","cures":[]}',
        ),
        ({"source": "def"}, "m.py has changed since"),
    ],
)
def test_another_run_is_not_continued(tmp_path: Path, change: dict[str, Any], said: str) -> None:
    open_journal(str(tmp_path), KEY).close(is_needed=True)

    with pytest.raises(UsageError) as caught:
        open_journal(str(tmp_path), msgspec.structs.replace(KEY, **change))

    assert str(caught.value) == (
        f"cannot continue the run in {str(tmp_path)!r}: {said}; give the command it was begun with, or another "
        "directory"
    )
    open_journal(str(tmp_path), KEY).close(is_needed=True)  # the refusal has let go of it


def test_a_directory_with_something_else_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "thesis.tex").write_text("mine")

    with pytest.raises(UsageError, match=r"it is no journal and holds 'thesis\.tex'"):
        open_journal(str(tmp_path), KEY)
    assert [path.name for path in tmp_path.iterdir()] == ["thesis.tex"]


def test_two_runs_do_not_share_a_journal(tmp_path: Path) -> None:
    first = open_journal(str(tmp_path), KEY)

    with pytest.raises(UsageError, match="another run is using it now"):
        open_journal(str(tmp_path), KEY)
    first.close(is_needed=True)
    open_journal(str(tmp_path), KEY).close(is_needed=True)


@pytest.mark.parametrize("name", ["run.msgpack", "kept.msgpack", "lost.msgpack", "finished.msgpack"])
@pytest.mark.parametrize(
    "content", [b"", b"\x00" * 50, b"\xff\xff", b"\x93" * 100_000, b"cos\nsystem\n", b"\x81\xa4name\xc7"]
)
def test_a_damaged_journal_is_named(tmp_path: Path, name: str, content: bytes) -> None:
    journal = open_journal(str(tmp_path), KEY)
    journal.keep(KEPT)
    journal.close(is_needed=True)
    (tmp_path / name).write_bytes(content)

    with pytest.raises(UsageError) as caught:
        open_journal(str(tmp_path), KEY)
    assert str(caught.value).startswith(f"cannot continue from {str(tmp_path / name)!r}: it is damaged (")
    assert "remove the directory to start anew" in str(caught.value)


def test_a_file_that_is_none_is_not_read(tmp_path: Path) -> None:
    open_journal(str(tmp_path), KEY).close(is_needed=True)
    (tmp_path / "kept.msgpack").mkdir()

    with pytest.raises(UsageError, match="cannot continue from"):
        open_journal(str(tmp_path), KEY)


@pytest.mark.parametrize("name", ["file", "file/below", "/proc/nowhere"])
def test_a_directory_that_cannot_be_made_is_said_at_once(
    tmp_path: Path, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "file").write_text("")

    with pytest.raises(UsageError, match=r"cannot keep a journal in .*; name another directory"):
        open_journal(name, KEY)


def test_a_full_disk_costs_the_journal_only(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    journal = open_journal(str(tmp_path), KEY)

    monkeypatch.setattr(journal_module, "replacing", mock.Mock(side_effect=OSError(28, "No space left on device")))
    journal.keep(KEPT)

    assert journal.kept == KEPT
    assert journal.failure == f"cannot keep a journal in {str(tmp_path)!r}: No space left on device"
    assert not journal.can_continue
    journal.lose("eager", LOST)  # nothing more is tried
    journal.close(is_needed=False)


def test_a_temporary_journal_stays_only_where_somebody_needs_it() -> None:
    for is_needed in (True, False):
        journal = temporary_journal(KEY)
        journal.keep(KEPT)
        journal.close(is_needed=is_needed)
        assert journal.directory.exists() == is_needed
        if is_needed:
            again = open_journal(str(journal.directory), KEY)
            assert pack(again.kept) == pack(KEPT)
            again.close(is_needed=False)
            assert journal.directory.exists()  # the user named it
            Journal(journal.directory, None, is_temporary=True).close(is_needed=False)
            assert not journal.directory.exists()


def test_a_file_system_without_locks_is_used_without(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import fcntl

    monkeypatch.setattr(fcntl, "flock", mock.Mock(side_effect=OSError(95, "Operation not supported")))

    open_journal(str(tmp_path / "no locks here"), KEY).close(is_needed=True)
    monkeypatch.setitem(sys.modules, "fcntl", None)  # nor on this system
    open_journal(str(tmp_path / "nowhere"), KEY).close(is_needed=True)
    assert not (tmp_path / "nowhere" / "lock").exists()


@pytest.mark.parametrize("name", ["run.msgpack", "kept.msgpack", "lock"])
def test_a_pipe_in_its_place_keeps_nobody_waiting(tmp_path: Path, name: str) -> None:
    journal = open_journal(str(tmp_path), KEY)
    journal.keep(KEPT)
    journal.close(is_needed=True)
    (tmp_path / name).unlink()
    os.mkfifo(tmp_path / name)

    if name == "lock":
        open_journal(str(tmp_path), KEY).close(is_needed=True)
    else:
        with pytest.raises(UsageError, match="it is no file of a journal"):
            open_journal(str(tmp_path), KEY)
