from __future__ import annotations

import gzip
import json
from typing import TYPE_CHECKING, Any

import pytest
import torch
from recorded_builders import Recorder
from torch import nn

import layoutdoctor
from layoutdoctor.diagnosis.layout import contiguous_stride, dense_stride
from layoutdoctor.examination.kernels.conversions import examine_recorded
from layoutdoctor.reports.annotated_trace import write_annotated_trace
from layoutdoctor.reports.text import render_text

if TYPE_CHECKING:
    from pathlib import Path

IMAGE = (2, 16, 8, 9)
LAST = dense_stride(IMAGE, (0, 2, 3, 1))


class Branches(nn.Module):
    """Into channels_last, out of it, and back again for one branch."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Conv2d(8, 32, 3, padding=1), nn.ReLU(), nn.Conv2d(32, 32, 3, padding=1))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.body(x.to(memory_format=torch.channels_last)).contiguous()
        return torch.cat([y, y.to(memory_format=torch.channels_last)], 1)


def changes_format(event: dict[str, Any]) -> bool:
    """By torch itself: no format is shared by what a copy reads and writes."""
    arguments = event.get("args", {})
    if event.get("name") != "aten::copy_" or len(arguments["Input Dims"][0]) != 4:
        return False
    shape, (target, source) = arguments["Input Dims"][0], arguments["Input Strides"][:2]
    sides = [torch.empty_strided(shape, stride, device="meta") for stride in (target, source)]
    formats = torch.contiguous_format, torch.channels_last
    return not any(all(side.is_contiguous(memory_format=one) for side in sides) for one in formats)


def test_eager_copies_between_formats_are_told_and_that_there_may_be_others(tmp_path: Path) -> None:
    model, x, path = Branches().eval(), torch.randn(4, 8, 32, 32), tmp_path / "trace.json"
    with torch.no_grad():
        model(x)
        with torch.profiler.profile(record_shapes=True, with_stack=True) as profile:
            for _ in range(3):
                model(x)
    profile.export_chrome_trace(str(path))
    events = json.loads(path.read_text(encoding="utf-8"))["traceEvents"]
    copies = [event for event in events if changes_format(event)]
    diagnosis = layoutdoctor.examine_trace(path)
    (trial,) = diagnosis.trials
    kernels, found = trial.kernels, [conversion for graph in trial.graphs for conversion in graph.conversions]

    assert kernels is not None
    assert len(found) == len(copies) >= 9
    assert sum(c.seconds or 0.0 for c in found) == pytest.approx(sum(copy["dur"] for copy in copies) * 1e-6, rel=1e-3)
    ran = [event for event in events if event.get("cat") == "cpu_op"]
    span = max(event["ts"] + event["dur"] for event in ran) - min(event["ts"] for event in ran)
    assert 0 < (kernels.seconds or 0.0) <= span * 1e-6
    assert [c.direction for c in found if c.owner == "user"] == 3 * [
        "to_channels_last",
        "to_contiguous",
        "to_channels_last",
    ]
    lines = {c.location.line for c in found if c.owner == "user" and c.location is not None}
    assert lines == {Branches.forward.__code__.co_firstlineno}
    assert (kernels.waiting, kernels.exposed_conversion_seconds, found[0].exposed_seconds) == (None, None, None)
    text = " ".join(render_text(diagnosis).split())
    assert "Layout conversions take at least " in text
    assert "what oneDNN converts within its operations is in its own log (ONEDNN_VERBOSE=1), not in a trace" in text
    assert "GPU" not in text
    assert "launch" not in text
    assert {"LD501", "LD108"} <= {finding.code for finding in diagnosis.findings}
    write_annotated_trace(diagnosis, path, tmp_path / "marked.json.gz")
    marked = json.loads(gzip.decompress((tmp_path / "marked.json.gz").read_bytes()))["traceEvents"]
    starts = {event["ts"] for event in marked if event.get("cat") == "layoutdoctor" and event["ph"] == "b"}
    assert {copy["ts"] for copy in copies} <= starts


@pytest.mark.parametrize(
    ("around", "target", "count"),
    [
        ("ProfilerStep#1", LAST, 2),
        ("ProfilerStep#1", contiguous_stride(IMAGE), 0),
        ("Torch-Compiled Region: 0/0", LAST, 0),
    ],
    ids=["another format", "the same format", "compiled code, whose own kernels no trace has"],
)
def test_operations_stand_for_kernels_where_a_copy_changes_the_format(
    around: str, target: tuple[int, ...], count: int
) -> None:
    record = Recorder()
    with record.annotation(around), record.operation("aten::conv2d"):
        with record.operation("aten::contiguous"), record.operation("aten::clone"):
            strides = [target, contiguous_stride(IMAGE)]
            with record.operation("aten::copy_", shapes=[IMAGE, IMAGE], strides=strides):
                pass
        with record.operation("aten::mkldnn_convolution"), record.operation("aten::empty"):
            pass
    trace = record.trace()

    kernels = examine_recorded(trace, "cpu").kernels
    assert [kernel.name for kernel in kernels.kernels] == ["aten::copy_", "aten::mkldnn_convolution"][:count]
    assert kernels.convolution_count == (count or None)
    assert examine_recorded(trace).kernels.count == 0
