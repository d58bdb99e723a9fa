"""A trace is written back with its conversions and round trips marked, as Perfetto shows them, and stays itself."""

from __future__ import annotations

import gzip
import json
import math
from decimal import Decimal
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
import pytest
import reviewed

from layoutdoctor.__main__ import main
from layoutdoctor.examination.counts import counted_conversions
from layoutdoctor.privacy.scrubbing import rewrite_record
from layoutdoctor.reports.annotated_trace import OWN_PROCESS, write_annotated_trace
from layoutdoctor.run.recorded import examine_trace

if TYPE_CHECKING:
    from layoutdoctor.diagnosis.diagnosis import Diagnosis

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


def a_kernel(number: int, external: int, name: str, start: str) -> str:
    arguments = {"External id": external, "device": 0, "stream": 7, "correlation": number, "grid": [2, 2, 8]}
    return (
        f'{{"ph": "X", "cat": "kernel", "name": {json.dumps(name)}, "pid": 0, "tid": 7, '
        f'"ts": {start}, "dur": 4.321, "args": {json.dumps(arguments)}}}'
    )


def two_convolutions(base: str = "1100") -> list[str]:
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
            events.append(a_kernel(number, external, name, f"{start}"))
            start += Decimal("5.432")
    return events


def a_trace(folder: Path, *events: str, name: str = "trace.json") -> Path:
    path = folder / name
    text = ",\n".join(events or two_convolutions())
    path.write_text(f'{{"schemaVersion": 1, "traceEvents": [{text}], "traceName": "x"}}', encoding="utf-8")
    return path


def annotate(source: Path, target: Path, diagnosis: Diagnosis | None = None) -> list[dict[str, Any]]:
    """The events that were added, times as the file writes them."""
    write_annotated_trace(diagnosis or examine_trace(source), source, target)
    before, after = raw_events(source), raw_events(target)
    assert after[len(after) - len(before) :] == before
    return [json.loads(event, parse_float=str) for event in after[: len(after) - len(before)]]


def raw_events(path: Path) -> list[bytes]:
    data = path.read_bytes()
    text = gzip.decompress(data) if data.startswith(b"\x1f\x8b") else data
    document = msgspec.json.decode(text, type=dict[str, msgspec.Raw] | list[msgspec.Raw])
    events = (
        msgspec.json.decode(document["traceEvents"], type=list[msgspec.Raw]) if isinstance(document, dict) else document
    )
    return [bytes(event) for event in events]


def marks_of(events: list[dict[str, Any]], field: str = "direction") -> list[dict[str, Any]]:
    """The beginnings of the marks of conversions, or of those with another field, with the time of their end."""
    ends = {event["id"]: event["ts"] for event in events if event["ph"] == "e"}
    return [{**event, "end": ends[event["id"]]} for event in events if event["ph"] == "b" and field in event["args"]]


def shown(events: list[dict[str, Any]]) -> str:
    return "\n".join(json.dumps(event, indent=1) for event in events)


@pytest.mark.thorough
@pytest.mark.parametrize("path", REAL_TRACES, ids=lambda path: path.name)
def test_every_conversion_of_a_real_trace_is_marked_where_its_kernel_ran(path: Path, tmp_path: Path) -> None:
    diagnosis = examine_trace(path)
    conversions = counted_conversions(diagnosis.trials[0])

    events = annotate(path, tmp_path / "a.json.gz", diagnosis)

    marks = marks_of(events)
    kernels = [event for event in map(json.loads, raw_events(path)) if event.get("cat", "").lower() == "kernel"]
    names = {mark["args"]["kernel"] for mark in marks}
    ran = {name: sorted(kernel["ts"] for kernel in kernels if kernel["name"] == name) for name in names}
    for mark in marks:
        start = float(mark["ts"])
        assert min(abs(start - other) for other in ran[mark["args"]["kernel"]]) <= 2 * math.ulp(start)
    assert [mark["id"] for mark in marks] == [conversion.id for conversion in conversions]
    assert len(marks_of(events, "first")) == len(diagnosis.trials[0].redundant_pairs)
    assert str(OWN_PROCESS) not in {str(event.get("pid")) for event in kernels}


@pytest.mark.parametrize("path", REAL_TRACES[:2], ids=lambda path: path.name)
def test_an_annotated_trace_is_examined_like_the_original_and_annotated_to_the_same(path: Path, tmp_path: Path) -> None:
    once, twice = tmp_path / "once.json.gz", tmp_path / "twice.json.gz"
    write_annotated_trace(examine_trace(path), path, once)
    write_annotated_trace(examine_trace(once), once, twice)

    original, again = examine_trace(path), examine_trace(once)
    assert (again.trials, again.environment) == (original.trials, original.environment)
    assert once.read_bytes() == twice.read_bytes()
    assert once.read_bytes()[3:8] == b"\0\0\0\0\0"  # no name and no time of the packing


def test_the_command_writes_it_and_refuses_other_files(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    target = tmp_path / "annotated.json.gz"

    status = main(["trace", str(PATCH_EMBED), "--output", str(target)])

    marks = marks_of([e for e in map(json.loads, raw_events(target)) if e.get("cat") == "layoutdoctor"])
    assert status == 0
    assert [mark["name"] for mark in marks] == [
        "to channels_last (activation)",
        "to channels_last (weight)",
        "to contiguous (activation)",
    ]
    assert sum(mark["end"] - mark["ts"] for mark in marks) == pytest.approx(23.072, rel=1e-4)

    assert main(["trace", str(KERNEL_CSV), "--output", str(tmp_path / "csv.json.gz")]) == 2
    assert (
        f"cannot annotate {str(KERNEL_CSV)!r}: expected a Chrome trace (.json, .json.gz), as only these can be written "
        "back with marks; write a report instead, such as --output report.md"
    ) in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == [target]


def test_a_round_trip_is_a_mark_around_its_conversions(tmp_path: Path, update_golden: bool) -> None:
    events = annotate(a_trace(tmp_path), tmp_path / "a.json.gz")

    reviewed.check("marks", {"a round trip": shown(events)}, update=update_golden)


@pytest.mark.parametrize("base", ["2915996583067.059", "0.001", "-2.5"])
def test_marks_have_the_times_of_the_file(base: str, tmp_path: Path) -> None:
    path = a_trace(tmp_path, *two_convolutions(base))

    marks = marks_of(annotate(path, tmp_path / "a.json.gz"))

    steps = ("0", "10.864", "21.728", "32.592")
    assert [Decimal(mark["ts"]) for mark in marks] == [Decimal(base) + Decimal(step) for step in steps]
    assert {Decimal(mark["end"]) - Decimal(mark["ts"]) for mark in marks} == {Decimal("4.321")}


def test_names_of_any_content_stay_data(tmp_path: Path) -> None:
    path = a_trace(tmp_path)
    diagnosis = examine_trace(path)
    hostile = rewrite_record(
        diagnosis, lambda old, at: HOSTILE + "\ud800" if at in ("Conversion.module", "Conversion.op") else old
    )

    events = annotate(path, tmp_path / "a.json.gz", hostile)

    assert marks_of(events)[0]["args"]["op"] == HOSTILE + "\\ud800"
    added = gzip.decompress((tmp_path / "a.json.gz").read_bytes()).partition(b"cudaLaunchKernel")[0]
    assert added.isascii()
    assert b"\x1b" not in added
    assert all(b'"ph"' in line for line in added.splitlines()[1:])


@pytest.mark.parametrize(
    "source",
    [
        '{"a": NaN, "b": 1, "traceEvents": [%s], "c": 2}',
        '{"b": 1, "traceEvents": [%s], "c": 2, "d": [Infinity, 1e999], "e": "\\ud800"}',
        '{"b": 1, "traceEvents": [%s, {"ph": "X", "name": "a "quoted" word", "ts": NaN}], "c": 2, "traceEvents": []}',
        "[%s]",
        "[%s",
    ],
)
def test_the_file_is_json_to_the_letter(tmp_path: Path, source: str) -> None:
    path, target = tmp_path / "t.json", tmp_path / "a.json.gz"
    path.write_text(source % ", ".join(two_convolutions()), encoding="utf-8")

    write_annotated_trace(examine_trace(path), path, target)

    def refuse(constant: str) -> object:
        raise AssertionError(f"{constant} is no JSON")

    document = json.loads(gzip.decompress(target.read_bytes()).decode(), parse_constant=refuse)
    events = [event for event in document["traceEvents"] if event.get("cat") not in ("layoutdoctor", None)]
    assert events == [json.loads(event) for event in two_convolutions()]
    assert (document.get("a"), document.get("b"), document.get("c")) in ((None, 1, 2), (None, None, None))
