"""Messages between the two processes, and the board that says whose turn it is."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import threading
import time
from typing import TYPE_CHECKING

import msgspec
import pytest
from builders import a_diagnosis, a_kept, a_trial, recordings_of
from recorded_builders import a_recording

from layoutdoctor.diagnosis.records import Failure
from layoutdoctor.isolation import messages as messages_module
from layoutdoctor.isolation.messages import (
    Began,
    Broken,
    Finished,
    Kept,
    KeptMore,
    MessageReader,
    Progress,
    Refused,
    StageClock,
    TrialMemo,
    TurnBoard,
    encode,
    without_profile,
)
from layoutdoctor.recording.saved import pack

if TYPE_CHECKING:
    from pathlib import Path

    from layoutdoctor.isolation.messages import AnyMessage

DIAGNOSIS = a_diagnosis(a_trial("eager"))
(RECORDING,) = recordings_of(DIAGNOSIS)
KEPT = a_kept(a_trial("eager"), memos={"eager": TrialMemo(key="k")})
MESSAGES: list[AnyMessage] = [
    Began(configuration=None, stage="load"),
    Began(configuration="eager", stage="run", is_new=False),
    Progress("eager: running", 1, 3),
    KeptMore(recording=RECORDING, memo=TrialMemo(key="k")),
    Broken(configuration="eager", failure=Failure(kind="run", message="m")),
    Refused(kind="SubjectError", message="no"),
    Finished(recordings=(RECORDING,)),
]


@pytest.mark.parametrize("size", [1, 2, 3, 5, 64, 10**6])
def test_messages_arrive_however_they_are_cut(size: int) -> None:
    data = b"".join(map(encode, MESSAGES))
    reader = MessageReader()

    heard = [message for start in range(0, len(data), size) for message in reader.feed(data[start : start + size])]

    assert heard == MESSAGES


@pytest.mark.parametrize("data", [b"\xff\xff\xff\xff", b"\0\0\0\1\xc1", b"\0\0\0\2[]", b"\0\0\0\4junk"])
def test_what_is_no_message_is_an_error(data: bytes) -> None:
    with pytest.raises(ValueError, match=r".+"):
        list(MessageReader().feed(data))


def test_both_processes_see_the_board() -> None:
    descriptor = TurnBoard.make()
    board = TurnBoard(descriptor)
    assert board.read() is None
    code = f"from layoutdoctor.isolation.messages import TurnBoard; TurnBoard({descriptor}).write(3)"
    before = time.monotonic()
    subprocess.run(
        [sys.executable, "-c", code], check=True, pass_fds=(descriptor,), env={**os.environ, "PYTHONPATH": "."}
    )

    turn = board.read()
    assert turn is not None
    assert turn[0] == 3
    assert before <= turn[1] <= time.monotonic()
    os.close(descriptor)


def test_a_board_needs_no_memory_files(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delattr(messages_module.os, "memfd_create", raising=False)
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    descriptor = TurnBoard.make()
    board, other = TurnBoard(descriptor), TurnBoard(descriptor)

    board.write(0)

    assert other.read() == board.read()
    assert other.read() is not None
    assert list(tmp_path.iterdir()) == []
    os.close(descriptor)


def test_a_process_waits_until_what_it_handed_over_is_dealt_with_but_not_for_ever(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    descriptor = TurnBoard.make()
    board, other = TurnBoard(descriptor), TurnBoard(descriptor)
    os.close(descriptor)
    threading.Timer(0.2, other.let_go_on).start()
    start = time.monotonic()

    board.wait(1)
    board.write(5)

    assert 0.15 < time.monotonic() - start < 60
    board.wait(1)  # it has been dealt with
    assert (other.read() or (None,))[0] == 5
    monkeypatch.setattr(messages_module, "_LONGEST_WAIT_SECONDS", 0.01)
    board.wait(2)


def test_it_is_known_which_trials_are_done() -> None:
    assert [KEPT.trial("eager"), KEPT.trial("inductor"), Kept().trial("eager")] == [RECORDING.trial, None, None]
    assert [KEPT.head, Kept().head] == [RECORDING.head, None]


def test_a_name_that_is_no_text_travels_as_its_escape() -> None:
    trial = msgspec.structs.replace(DIAGNOSIS.trials[0], notes=("\udcff",))
    recording = msgspec.structs.replace(a_recording(), trial=trial)
    (heard,) = MessageReader().feed(encode(KeptMore(recording=recording, memo=TrialMemo(key="\udcff"))))
    assert isinstance(heard, KeptMore)
    assert heard.recording.trial.notes == ("\\udcff",)
    assert heard.memo.key == "\\udcff"
    assert pack(heard.recording.iterations) == pack(recording.iterations)


def test_what_is_known_later_of_a_trial_does_not_cost_what_was_seen_of_it() -> None:
    seen = a_recording()
    later = msgspec.structs.replace(
        without_profile(seen),
        head=msgspec.structs.replace(seen.head, interrupted="later"),
        trial=msgspec.structs.replace(seen.trial, graphs=(), status="crashed"),
    )

    kept = Kept().with_trial(RECORDING).with_trial(seen, TrialMemo(key="k")).with_trial(later)

    (known,) = kept.recordings
    assert (known.head.interrupted, known.trial.status) == ("later", "crashed")
    assert (known.trial.graphs, known.was_profiled) == (seen.trial.graphs, True)
    assert known.iterations == seen.iterations
    assert kept.memos == {"eager": TrialMemo(key="k")}
    assert kept.without_profiles().recordings == (later,)


def test_stages_that_only_count_on_are_one(monkeypatch: pytest.MonkeyPatch) -> None:
    moments = iter((0.0, 3.0, 4.0, 6.5, 7.0, 8.0))
    monkeypatch.setattr(messages_module.time, "monotonic", lambda: next(moments))
    told: list[Progress] = []
    clock = StageClock(told.append)

    stages = ("fresh processes, start 1: compiling", "fresh processes, start 1: round 1 of 9")
    slower = "fresh processes, start 1: round 10, as the machine is slower now"
    for stage in (*stages, slower, stages[0].replace("1", "2"), stages[1]):
        clock(Progress(stage, 0, 1))

    assert clock.end() == {"starting": 3.0, "fresh processes: compiling": 1.0 + 0.5, "fresh processes": 2.5 + 1.0}
    assert len(told) == 5
