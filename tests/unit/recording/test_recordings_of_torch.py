"""Traces that torch's profiler writes here, on a CPU, by each of its exporters."""

from __future__ import annotations

import gzip
import inspect
import json
from collections import Counter
from typing import TYPE_CHECKING, Any

import pytest
import torch
from torch.profiler import ProfilerActivity, profile, record_function

from layoutdoctor.diagnosis.lack import Lack
from layoutdoctor.recording.reading import read_trace
from layoutdoctor.recording.recording import RecordedTrace
from layoutdoctor.run.recorded import examine_trace

if TYPE_CHECKING:
    from pathlib import Path

NO_KERNELS = (
    Lack(
        part="kernels",
        reason="device kernels were not recorded (ProfilerActivity.CUDA), so nothing can be said of conversions",
    ),
)
HAS_PYTHON_EXPORT = "use_python_export" in inspect.signature(profile.export_chrome_trace).parameters


class Net(torch.nn.Module):
    """A convolution whose input is copied to another layout and back."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = torch.nn.Conv2d(3, 8, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        with record_function('a "quoted" range \\ with 你好\n'):
            return torch.relu(self.conv(x.contiguous(memory_format=torch.channels_last))).contiguous()


def recorded(metadata: str = "plain", **options: Any) -> profile:
    """Two steps of a small model."""
    model, x = Net(), torch.randn(2, 3, 16, 16)
    with profile(activities=[ProfilerActivity.CPU], **options) as found:
        found.add_metadata_json("mine", json.dumps({"traceEvents": [{"ph": "X", "cat": "kernel", "name": "no"}]}))
        found.add_metadata("text", metadata)
        for _ in range(2):
            model(x).sum().backward()
            found.step()
    return found


def check(path: Path) -> tuple[RecordedTrace, list[dict[str, Any]]]:
    """The trace, and its events by Python's own reader; both must agree on the operations."""
    data = path.read_bytes()
    document = json.loads(gzip.decompress(data) if data[:2] == b"\x1f\x8b" else data)
    events = document if isinstance(document, list) else document["traceEvents"]
    found = read_trace(path)
    assert isinstance(found, RecordedTrace)
    assert found.problems == []
    for table, category in ((found.operations, "cpu_op"), (found.annotations, "user_annotation")):
        expected = Counter(event["name"] for event in events if event.get("cat") == category)
        assert Counter(found.names[index] for index in table.name.tolist()) == expected
    (trial,) = examine_trace(path).trials
    copies = [conversion for graph in trial.graphs for conversion in graph.conversions]
    assert len(found.kernels) == 0
    kernels = trial.kernel_summary
    if any(arguments.strides for arguments in found.arguments):  # the model's copies are told, those of oneDNN are not
        assert (kernels.count > len(copies) > 0, kernels.conversions) == (True, ())
    elif not len(found.operations):  # a list of functions does not say which of its events are operations
        assert (kernels.count, copies, kernels.lacks) == (0, [], NO_KERNELS)
    else:
        parts = [lack.part for lack in kernels.lacks]
        assert (kernels.count > 0, copies, parts[0]) == (True, [], "kernels_of_library")
        assert {"shapes", "strides"} & set(parts)
    return found, events


@pytest.mark.parametrize("name", ["trace.json", "trace.json.gz"])
@pytest.mark.parametrize("options", [{}, {"record_shapes": True}, {"record_shapes": True, "with_stack": True}], ids=str)
def test_what_kineto_writes_is_read(tmp_path: Path, name: str, options: dict[str, bool]) -> None:
    path = tmp_path / name
    recorded(**options).export_chrome_trace(str(path))
    found, events = check(path)

    names = Counter(found.names[index] for index in found.operations.name.tolist())
    assert names["aten::conv2d"] == names["aten::convolution_backward"] == 2
    assert found.has_stack == bool(options.get("with_stack"))
    assert "traceEvents" in found.metadata["mine"]  # what the user added
    _check_shapes(found, events, recorded_shapes=bool(options.get("record_shapes")))


def _check_shapes(found: RecordedTrace, events: list[dict[str, Any]], *, recorded_shapes: bool) -> None:
    rows = found.operations.arguments.tolist()
    shapes = Counter(found.arguments[row].shapes.decode() for row in rows if row >= 0)
    arguments = (event.get("args", {}) for event in events if event.get("cat") == "cpu_op")
    written = (given["Input Dims"] for given in arguments if "Input Dims" in given)

    assert bool(shapes) == recorded_shapes
    if recorded_shapes:
        assert Counter(json.dumps(json.loads(text)) for text in shapes.elements()) == Counter(map(json.dumps, written))


@pytest.mark.skipif(not HAS_PYTHON_EXPORT, reason="torch before 2.12 has one exporter")
@pytest.mark.parametrize("name", ["trace.json", "trace.json.gz"])
def test_what_torch_s_own_exporter_writes_is_read(tmp_path: Path, name: str) -> None:
    path = tmp_path / name
    recorded(record_shapes=True, with_stack=True).export_chrome_trace(str(path), use_python_export=True)
    found, events = check(path)

    assert found.has_stack
    assert found.metadata["schemaVersion"] == 1
    _check_shapes(found, events, recorded_shapes=True)


def test_what_the_autograd_profiler_and_its_list_of_events_write_is_read(tmp_path: Path) -> None:
    """``EventList`` has an exporter of its own, which writes names and times and closes its list or not."""
    path = tmp_path / "trace.json"
    with torch.autograd.profiler.profile(record_shapes=True) as found:
        Net()(torch.randn(1, 3, 16, 16))
    found.export_chrome_trace(str(path))
    assert len(check(path)[0].operations) > 3

    with torch.autograd.profiler.profile() as found:
        torch.relu(torch.randn(1, 3, 16, 16))
    found.function_events.export_chrome_trace(str(path))
    check(path)


def test_metadata_whose_quotes_torch_does_not_escape_hide_no_event(tmp_path: Path) -> None:
    plain, quoted = tmp_path / "plain.json", tmp_path / "quoted.json"
    recorded().export_chrome_trace(str(plain))
    recorded('say "traceEvents": [{"ph": "X"}]').export_chrome_trace(str(quoted))
    try:
        json.loads(quoted.read_bytes())
    except ValueError:
        expected = ["mended: invalid JSON before the events"]
    else:  # a torch that escapes them
        expected = []
    found = read_trace(quoted)
    assert isinstance(found, RecordedTrace)

    assert len(found.operations) == len(check(plain)[0].operations)
    assert [problem.what for problem in found.problems if not problem.is_loss] == expected
