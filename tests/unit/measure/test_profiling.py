from __future__ import annotations

import ctypes
import gzip
import json
import os
import types
from typing import TYPE_CHECKING, Any

import torch

from layoutdoctor.examination.kernels.operations import operation_tree
from layoutdoctor.measure import profiling
from layoutdoctor.measure.profiling import (
    Recorder,
    named_kernels,
    quiet_profiler,
    verbose_onednn,
)

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    import pytest

    from layoutdoctor.measure.profiling import GeneratedCode
    from layoutdoctor.recording.recording import Iteration


def step() -> None:
    with torch.no_grad():
        torch.conv2d(torch.ones(2, 16, 8, 8), torch.ones(16, 16, 3, 3)).relu()


def test_one_iteration_is_recorded_with_operations_and_log() -> None:
    step()
    recording = Recorder().record(lambda: step, "cpu", ())
    names = [operation.name for operation in operation_tree(recording.events)]

    assert names.count("aten::conv2d") == 1
    assert names.count("aten::relu") == 1
    assert recording.log is not None
    assert recording.log.not_understood == []
    assert recording.lacks == ()
    if recording.log.primitives:
        assert recording.log.has_timestamps


def test_of_several_iterations_the_trace_of_the_quietest_is_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sizes = iter([1, 7, 1, 4, 1, 5])  # the first of two warms up

    def rows(iteration: Iteration) -> int:
        (product,) = (o for o in operation_tree(iteration.events) if o.name == "aten::mm")
        return int(product.shapes[0][0])

    def prepare() -> Callable[[], None]:
        size = next(sizes)
        a = torch.ones(size, size)
        return lambda: _product(a)

    # In place of their times, which another program may change.
    monkeypatch.setattr(profiling, "busy_time", lambda one: (False, rows(one)))
    recorder = Recorder()
    recordings = [recorder.record(prepare, "cpu", (), tmp_path / "trace.json.gz") for _ in range(3)]

    assert [rows(recording) for recording in recordings] == [7, 4, 5]
    kept = json.loads(gzip.decompress((tmp_path / "trace.json.gz").read_bytes()))
    products = [event for event in kept["traceEvents"] if event.get("name") == "aten::mm"]
    assert [event["args"]["Input Dims"][0] for event in products] == [[4, 4]]


def test_on_a_gpu_the_trace_is_read_whole_and_what_was_queued_before_has_ended(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[str] = []
    monkeypatch.setattr(torch.cuda, "synchronize", asked.append)
    iteration = lambda: asked.append("the iteration") or step()  # noqa: E731
    recording = Recorder().record(lambda: iteration, "cuda:1", (), tmp_path / "trace.json")

    warm, recorded = asked[:2], asked[2:]
    assert warm == ["the iteration", "cuda:1"]
    assert recorded == ["cuda:1", "the iteration", "cuda:1"]
    assert recording.device == "cuda"
    assert (recording.log, recording.lacks) == (None, ())
    assert len(recording.events.kernels) == 0
    convolution = next(o for o in operation_tree(recording.events) if o.name == "aten::convolution")
    assert convolution.row is not None
    assert recording.events.names[int(recording.events.operations.name[convolution.row])] == "aten::convolution"
    assert convolution.shapes[:2] == ((2, 16, 8, 8), (16, 16, 3, 3))
    json.loads((tmp_path / "trace.json").read_bytes())


def _product(a: torch.Tensor) -> None:
    torch.mm(a, a)


def test_what_the_model_prints_is_passed_on_and_the_log_is_not(capfd: pytest.CaptureFixture[str]) -> None:
    before = dict(os.environ)
    with verbose_onednn([]) as written:
        print("from Python")
        ctypes.CDLL(None).puts(b"from C")
        step()
    step()
    assert dict(os.environ) == before
    out = capfd.readouterr().out

    assert "from Python" in out
    assert "from C" in out
    assert "onednn_verbose" not in out
    assert "onednn_verbose" in written[0]


def test_a_torch_without_onednn_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.backends.mkldnn, "is_available", lambda: False)
    lacks: list[Any] = []
    with verbose_onednn(lacks) as written:
        pass
    assert written == []
    assert [lack.reason for lack in lacks] == ["this torch was built without oneDNN: there is no log of its primitives"]


def test_what_the_profiler_prints_is_dropped_and_the_rest_passed_on(capfd: pytest.CaptureFixture[str]) -> None:
    with quiet_profiler():
        os.write(2, b"USDT: profiler_start\nSTAGE ActivityProfiler ready\na warning of the model\n")

    assert capfd.readouterr().err.strip() == "a warning of the model"


def generated(**kernels: Any) -> GeneratedCode:
    """A stand-in for a generated module, whose ``call`` looks its kernels up in its globals."""
    module = types.ModuleType("generated")
    vars(module).update(kernels)
    exec("def call(x):\n    return kernel(x)", vars(module))
    return "graph 0", tuple(kernels), module


def test_generated_kernels_run_in_a_range_with_their_name_and_are_put_back() -> None:
    def kernel(x: torch.Tensor) -> torch.Tensor:
        return x.relu()

    item = generated(kernel=kernel)
    module = item[-1]
    recording = Recorder().record(lambda: lambda: module.call(torch.ones(3)), "cpu", [item])
    ranges = [operation for operation in operation_tree(recording.events) if operation.row is None]

    assert [entry.name for entry in ranges if "layoutdoctor" in entry.name] == ["layoutdoctor::graph 0::kernel"]
    assert module.kernel is kernel


def test_a_module_whose_kernels_cannot_be_reached_is_noted() -> None:
    with named_kernels([("graph 0", ["kernel"], 3)]) as problems:
        pass

    assert len(problems) == 1
    assert problems[0].part == "kernel_names"
    assert problems[0].reason.startswith("kernels of graph 0 are not named: AttributeError")
