"""The file of a recording: lossless, small, and one sentence for each thing that can be wrong with it."""

from __future__ import annotations

import gzip
import tracemalloc
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
from recorded_builders import Recorder, a_recording

from layoutdoctor.errors import RecordError
from layoutdoctor.examination.examine import examine
from layoutdoctor.privacy import Surroundings, scrub
from layoutdoctor.recording.reading import read_recorded
from layoutdoctor.recording.recording import NONE, Iteration, Recording, busy_nanoseconds, busy_time
from layoutdoctor.recording.saved import load_recording, pack, save_recording, unpacked_column

TRACES = Path(__file__).parents[2] / "traces"


def saved(folder: Path, recording: Recording) -> Path:
    path = folder / "eager.recording"
    save_recording(recording, path)
    return path


def changed(folder: Path, **changes: Any) -> Path:
    """A recording whose fields somebody has edited."""
    plain = msgspec.msgpack.decode(gzip.decompress(saved(folder, a_recording()).read_bytes()))
    for place, value in changes.items():
        *parents, last = [int(part) if part.isdigit() else part for part in place.split("__")]
        target = plain
        for part in parents:
            target = target[part]
        target[last] = value
    path = folder / "edited.recording"
    path.write_bytes(gzip.compress(msgspec.msgpack.encode(plain)))
    return path


def refused(path: Path) -> str:
    with pytest.raises(RecordError) as caught:
        load_recording(path)
    message = str(caught.value)
    assert message.startswith(f"cannot read {str(path)!r}: ")
    assert len(message.splitlines()) == 1
    return message.partition(": ")[2]


def test_a_recording_is_read_as_it_was_written(tmp_path: Path) -> None:
    recording = a_recording()
    log = recording.iterations[0].log
    assert load_recording(saved(tmp_path, a_recording(iterations=(), log=log))).log == log
    path = saved(tmp_path, recording)

    again = load_recording(path)

    assert pack(again) == pack(recording)
    assert (again.head, again.trial) == (recording.head, recording.trial)
    assert again.iterations[0].log == recording.iterations[0].log
    assert examine(again) == examine(recording)
    assert path.stat().st_size < 3000
    assert path.read_bytes() == saved(tmp_path, again).read_bytes()  # nothing in it depends on when it is written


@pytest.mark.parametrize("name", ["h100_vit_patch_embed.json.gz", "h100_wan21_kernel_summary.csv"])
def test_whatever_was_read_elsewhere_is_kept_too(tmp_path: Path, name: str) -> None:
    recording = read_recorded(TRACES / name)

    again = load_recording(saved(tmp_path, recording))

    assert pack(again) == pack(recording)
    assert examine(again) == examine(recording)


@pytest.mark.parametrize(
    ("numbers", "most_bytes"),
    [
        ([], 1),
        ([0], 2),
        ([-1, 127], 3),
        ([-(2**63), 2**63 - 1, 0, -1], 33),
        (list(range(0, 10**9, 10**6)), 4001),
        ([5_000_000_000 + 100 * i for i in range(50)], 401),
        (np.random.default_rng(0).integers(-(2**63), 2**63 - 1, 99).tolist(), 793),
    ],
)
def test_numbers_of_any_size_are_packed_and_come_back(numbers: list[int], most_bytes: int) -> None:
    events = Recorder().trace()
    column = np.array(numbers, np.int64)
    (packed,) = msgspec.msgpack.decode(pack([column]))

    assert len(packed) <= most_bytes
    assert unpacked_column(np.ndarray, packed).tolist() == numbers
    again = msgspec.msgpack.decode(pack(events), type=type(events), dec_hook=unpacked_column)
    assert again.kernels.start.dtype == np.int64


def test_what_is_no_recording_of_ours_or_too_large_is_said(tmp_path: Path) -> None:
    path = tmp_path / "x.recording"
    for content, reason in (
        (b"", "it is empty; expected what --save-recordings wrote"),
        (b'{"schema_version": 1}', "it is no recording; expected what --save-recordings wrote"),
        (gzip.compress(b'{"traceEvents": []}'), "it is no recording; expected what --save-recordings wrote"),
        (gzip.compress(b"\x93" * 100_000), "it is no recording"),
        (b"\x1f\x8b" + bytes(50), "it is cut off or damaged; copy or record it again"),
    ):
        path.write_bytes(content)
        assert refused(path).startswith(reason)
    assert refused(tmp_path / "missing.recording").startswith(
        "No such file or directory; name a file that layoutdoctor"
    )
    newer = "it is a recording of version 3, expected 2; update layoutdoctor"
    assert refused(changed(tmp_path, recording_version=3)) == newer
    older = "it is a recording of version 0, expected 2; examine it with the layoutdoctor version that wrote it"
    assert refused(changed(tmp_path, recording_version=0)) == older
    path = saved(tmp_path, a_recording())
    whole = path.read_bytes()
    for length in range(2, len(whole), 97):
        path.write_bytes(whole[:length])
        assert refused(path) == "it is cut off or damaged; copy or record it again"
    path.write_bytes(whole)
    bomb = tmp_path / "bomb.recording"
    bomb.write_bytes(gzip.compress(bytes(200 << 20), 1))
    tracemalloc.start()
    assert refused(bomb).endswith(" MiB, which is too much")
    assert tracemalloc.get_traced_memory()[1] < 140 << 20  # 128 of them for the packed file
    tracemalloc.stop()


NINE = b"\x01\x09\x09\x09\x09"
EVENTS = "recording__iterations__1__events"


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({f"{EVENTS}__operations__name": b"\x01\x00"}, "operations.name has 1 entries, expected 4"),
        ({f"{EVENTS}__operations__name": NINE}, "operations.name has an index outside its list of 4 entries"),
        ({f"{EVENTS}__operations__thread": b"\x01\xfe\xfe\xfe\xfe"}, "operations.thread has an index outside"),
        ({f"{EVENTS}__operations__arguments": NINE}, "operations.arguments has an index outside"),
        ({f"{EVENTS}__operations__start": b"\x01\x09\x08\x07\x06"}, "operations is not in the order of its starts"),
        ({f"{EVENTS}__operations__start": b"\x03\x09\x08\x07\x06"}, "a column of numbers is cut off"),
        ({f"{EVENTS}__operations__start": b""}, "expected a column of numbers"),
        ({f"{EVENTS}__operations__start": [1, 2]}, "expected a column of numbers"),
        ({"recording__head__configurations": ["inductor"]}, "does not name 'eager', which was recorded"),
        ({"recording__trial__graphs__0__nodes__0__inputs": ["relu"]}, "$.trial.graphs[0].nodes[0].inputs has 'relu'"),
        ({"recording__trial__status": "splendid"}, "Invalid enum value 'splendid'"),
        (
            {"recording__iterations__1__log__primitives__0__start_seconds": 1e300},
            "Expected `float` <= 1000000000000000.0",
        ),
    ],
)
def test_one_that_contradicts_itself_is_said(tmp_path: Path, changes: dict[str, Any], reason: str) -> None:
    message = refused(changed(tmp_path, **changes))

    assert reason in message
    assert message.endswith("record it again")


def test_an_operation_whose_thread_was_not_recorded_is_read_again(tmp_path: Path) -> None:
    recording = load_recording(changed(tmp_path, **{f"{EVENTS}__operations__thread": b"\x01\xff\xff\xff\xff"}))
    assert set(recording.iterations[1].events.operations.thread.tolist()) == {NONE}


def test_names_of_people_and_machines_are_taken_out_of_events_too() -> None:
    recording = a_recording()
    recording.iterations[0].events.names[0] = "/home/jane/models/net.py(3): forward"
    recording.iterations[0].events.metadata = {"traceName": "/home/jane/t.json", "deviceProperties": [{"id": 0}]}
    recording = msgspec.structs.replace(
        recording, trial=msgspec.structs.replace(recording.trial, notes=("in /home/jane/net.py",))
    )

    scrubbed = scrub(recording, Surroundings(home="/home/jane", user="jane"))

    assert b"jane" not in pack(scrubbed)
    assert b"jane" in pack(recording)
    assert scrubbed.iterations[1].events is recording.iterations[1].events
    assert examine(scrubbed) == examine(recording)


def test_a_busy_cpu_is_as_busy_as_its_outermost_operations() -> None:
    recorder = Recorder()
    with recorder.operation("a"), recorder.operation("b"):
        pass
    with recorder.annotation("c"), recorder.operation("d"):
        pass
    events = recorder.trace()

    assert busy_nanoseconds(events) == int(events.operations.duration[0] + events.annotations.duration[0])
    assert busy_nanoseconds(Recorder().trace()) == 0
    on_a_cpu, nothing, without_kernels = (
        Iteration(events=each, device=device)
        for each, device in ((events, "cpu"), (Recorder().trace(), "cpu"), (Recorder().trace(), "cuda"))
    )
    assert sorted([without_kernels, on_a_cpu, nothing], key=busy_time) == [nothing, on_a_cpu, without_kernels]
