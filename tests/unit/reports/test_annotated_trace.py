"""A trace is written back with its conversions and round trips marked, as Perfetto shows them, and stays itself."""

from __future__ import annotations

import gzip
import json
import os
from collections import Counter, defaultdict
from decimal import Decimal
from pathlib import Path
from typing import Any

import msgspec
import pytest
from builders import a_pair, channels_last, contiguous

from layoutdoctor.__main__ import main
from layoutdoctor.analysis.costs import counted_conversions
from layoutdoctor.errors import TraceError, UsageError
from layoutdoctor.examination import examine_trace
from layoutdoctor.records import Conversion, Diagnosis, Layout, SourceLocation
from layoutdoctor.reports.annotated_trace import write_annotated_trace

TRACES = Path(__file__).parents[2] / "traces"
PATCH_EMBED = TRACES / "h100_vit_patch_embed.json.gz"
KERNEL_CSV = TRACES / "h100_wan21_kernel_summary.csv"
REAL_TRACES = sorted(path for path in TRACES.glob("*.json.gz") if path.stat().st_size < 1_000_000)

TO_NHWC = "void cudnn::ops::nchwToNhwcKernel<float, float, float, false, true, (cudnnKernelDataType_t)0>(int)"
TO_NCHW = "void cudnn::ops::nhwcToNchwKernel<float, float, float, true, false, (cudnnKernelDataType_t)0>(int)"
CONVOLUTION = "sm80_xmma_fprop_implicit_gemm_f32f32_nhwckrsc_nhwc"
POINTWISE = "void at::native::vectorized_elementwise_kernel<4, relu>(int)"
STEPS = (
    ("aten::cudnn_convolution", (TO_NHWC, CONVOLUTION, TO_NCHW)),
    ("aten::relu", (POINTWISE,)),
    ("aten::cudnn_convolution", (TO_NHWC, CONVOLUTION, TO_NCHW)),
)
HOSTILE = 'a "name"\x1b[31m \\ \n</script> \u2028\u202e é \x9b2J'


def a_kernel(number: int, external: int, name: str, start: str, stream: int = 7, device: int = 0) -> str:
    arguments = {"External id": external, "device": device, "stream": stream, "correlation": number, "grid": [2, 2, 8]}
    return (
        f'{{"ph": "X", "cat": "kernel", "name": {json.dumps(name)}, "pid": {device}, "tid": {stream}, '
        f'"ts": {start}, "dur": 4.321, "args": {json.dumps(arguments)}}}'
    )


def two_convolutions(base: str = "1100", device: int = 0, stream: int = 7) -> list[str]:
    """Two convolutions with a ReLU between: the first one's result is converted back and forth."""
    events, number, start = [], 0, Decimal(base)
    for external, (operation, kernels) in enumerate(STEPS, 1):
        host = start - 100
        sizes = [[8, 64, 8, 8], [64, 64, 3, 3]][: 1 + ("conv" in operation)]
        fields = {"ph": "X", "cat": "cpu_op", "name": operation, "pid": 100, "tid": 100}
        fields["args"] = {"External id": external, "Input Dims": sizes}
        events.append(json.dumps(fields)[:-1] + f', "ts": {host}, "dur": 10}}')
        for name in kernels:
            number += 1
            launch = {"ph": "X", "cat": "cuda_runtime", "name": "cudaLaunchKernel", "pid": 100, "tid": 100}
            launch["args"] = {"correlation": number}
            events.append(json.dumps(launch)[:-1] + f', "ts": {host + number % 4}, "dur": 0.5}}')
            events.append(a_kernel(number, external, name, f"{start}", stream, device))
            start += Decimal("5.432")
    return events


def a_trace(folder: Path, *events: str, name: str = "trace.json") -> Path:
    path = folder / name
    text = ",\n".join(events or two_convolutions())
    path.write_text(f'{{"schemaVersion": 1, "traceEvents": [{text}], "traceName": "x"}}', encoding="utf-8")
    return path


def annotate(source: Path, target: Path, diagnosis: Diagnosis | None = None) -> list[dict[str, Any]]:
    """The events that were added, numbers as the file writes them."""
    write_annotated_trace(diagnosis or examine_trace(source), source, target)
    before, after = raw_events(source), raw_events(target)
    assert after[len(after) - len(before) :] == before
    return [json.loads(event, parse_float=str, parse_int=str) for event in after[: len(after) - len(before)]]


def raw_events(path: Path) -> list[bytes]:
    data = path.read_bytes()
    text = gzip.decompress(data) if data.startswith(b"\x1f\x8b") else data
    document = msgspec.json.decode(text, type=dict[str, msgspec.Raw] | list[msgspec.Raw])
    events = msgspec.json.decode(document["traceEvents"], type=list[msgspec.Raw]) if isinstance(document, dict) else document
    return [bytes(event) for event in events]


def of_phase(events: list[dict[str, Any]], phase: str) -> list[dict[str, Any]]:
    return [event for event in events if event["ph"] == phase]


def titles(events: list[dict[str, Any]]) -> dict[tuple[str, str], str]:
    named = [event for event in events if event["name"] == "thread_name"]
    return {(event["pid"], event["tid"]): event["args"]["name"] for event in named}


def on_track(events: list[dict[str, Any]], beginning: str) -> list[dict[str, Any]]:
    """The marks on tracks whose title begins so."""
    named = titles(events)
    return [e for e in of_phase(events, "X") if named[e["pid"], e["tid"]].startswith(f"layoutdoctor: {beginning}")]


def facts_of(path: Path) -> Any:
    diagnosis = examine_trace(path)
    return diagnosis.trials, diagnosis.environment, diagnosis.subject.notes


def changed(diagnosis: Diagnosis, **changes: Any) -> Diagnosis:
    trial = msgspec.structs.replace(diagnosis.trials[0], **changes)
    return msgspec.structs.replace(diagnosis, trials=(trial,))


def with_conversions(diagnosis: Diagnosis, *conversions: Conversion) -> Diagnosis:
    kernels = diagnosis.trials[0].kernels
    assert kernels is not None
    return changed(diagnosis, kernels=msgspec.structs.replace(kernels, conversions=conversions))


def dropped_by_perfetto(events: list[dict[str, Any]]) -> int:
    """Marks that begin within another one of their track and outlast it, in exact numbers and in doubles."""
    tracks = defaultdict(list)
    for event in of_phase(events, "X"):
        exact = (int(Decimal(event["ts"]) * 1000), int(Decimal(event["dur"]) * 1000))
        doubles = (int(float(event["ts"]) * 1000), int(float(event["dur"]) * 1000))
        for way, (start, duration) in enumerate((exact, doubles)):
            tracks[event["pid"], event["tid"], way].append((start, -duration))
    count = 0
    for spans in tracks.values():
        ends: list[int] = []
        for start, negative in sorted(spans):
            while ends and ends[-1] <= start:
                ends.pop()
            if ends and start - negative > ends[-1]:
                count += 1
            else:
                ends.append(start - negative)
    return count


@pytest.mark.parametrize("path", REAL_TRACES, ids=lambda path: path.name)
def test_every_conversion_of_a_real_trace_is_marked_where_its_kernel_ran(path: Path, tmp_path: Path) -> None:
    diagnosis = examine_trace(path)
    conversions = counted_conversions(diagnosis.trials[0])

    events = annotate(path, tmp_path / "a.json.gz", diagnosis)

    marks, trips = on_track(events, "layout conversions"), on_track(events, "round trips")
    kernels = [json.loads(event, parse_float=str, parse_int=str) for event in raw_events(path)]
    ran = Counter((e["name"], e["ts"], e["dur"], str(e["pid"])) for e in kernels if e.get("cat", "").lower() == "kernel")
    assert not Counter((e["args"]["kernel"], e["ts"], e["dur"], e["pid"]) for e in marks) - ran
    assert {mark["args"]["conversion"] for mark in marks} == {conversion.id for conversion in conversions}
    assert len(marks) == len(conversions)
    assert len(trips) == len(diagnosis.trials[0].redundant_pairs)
    assert len(of_phase(events, "s")) == len(of_phase(events, "f")) == len(trips)
    taken = {str(event.get("tid")) for event in kernels}
    assert not taken & {thread for _, thread in titles(events)}
    assert dropped_by_perfetto(events) == 0


@pytest.mark.parametrize("path", REAL_TRACES, ids=lambda path: path.name)
def test_an_annotated_trace_is_examined_like_the_original(path: Path, tmp_path: Path) -> None:
    once, twice = tmp_path / "once.json.gz", tmp_path / "twice.json.gz"
    write_annotated_trace(examine_trace(path), path, once)
    write_annotated_trace(examine_trace(once), once, twice)

    assert facts_of(once) == facts_of(path) == facts_of(twice)


def test_a_trace_annotated_twice_shares_no_track_and_no_flow(tmp_path: Path) -> None:
    first = annotate(a_trace(tmp_path), tmp_path / "once.json.gz")
    second = annotate(tmp_path / "once.json.gz", tmp_path / "twice.json.gz")

    assert len(first) == len(second) > 0
    assert not titles(first).keys() & titles(second).keys()
    assert not {e["id"] for e in of_phase(first, "s")} & {e["id"] for e in of_phase(second, "s")}


def test_the_command_writes_it(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    target = tmp_path / "annotated.json.gz"

    status = main(["trace", str(PATCH_EMBED), "--output", str(target)])

    marks = [event for event in map(json.loads, raw_events(target)) if event.get("cat") == "layoutdoctor"]
    assert status == 0
    assert [mark["name"] for mark in marks] == ["to channels_last (activation)", "to channels_last (weight)", "to contiguous"]
    assert sum(mark["dur"] for mark in marks) == pytest.approx(23.072)
    assert "3 layout conversions" in capsys.readouterr().out


def test_the_command_refuses_what_is_no_chrome_trace(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    status = main(["trace", str(KERNEL_CSV), "--output", str(tmp_path / "a.json.gz")])

    assert status == 2
    assert (
        f"cannot annotate {str(KERNEL_CSV)!r}: expected a Chrome trace (.json, .json.gz), as only these can be written "
        "back with marks; write a report instead, such as --output report.md"
    ) in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []


def test_a_round_trip_is_a_mark_over_both_conversions_with_an_arrow_between_them(tmp_path: Path) -> None:
    events = annotate(a_trace(tmp_path), tmp_path / "a.json.gz")

    assert titles(events) == {
        ("0", "900000000"): "layoutdoctor: layout conversions (stream 7)",
        ("0", "900000001"): "layoutdoctor: round trips",
    }
    (trip,) = on_track(events, "round trips")
    assert trip["name"] == "round trip: contiguous and back, [8, 64, 8, 8]"
    assert (trip["ts"], trip["dur"]) == ("1110.864", "10.864")  # two kernels later, 5.432 us each
    assert trip["dur"] != "4.321"
