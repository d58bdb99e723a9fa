from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from recorded_builders import GEMM, Recorder

from layoutdoctor.diagnosis.subject import Environment
from layoutdoctor.recording.reading import describe_environment, device_of

if TYPE_CHECKING:
    from layoutdoctor.recording.recording import RecordedTrace

GPUS = [{"id": 0, "name": "NVIDIA A100"}, {"id": 1, "name": "NVIDIA H100"}, {"id": 2, "name": "NVIDIA H100"}]


def a_trace(metadata: dict[str, Any], *devices: int) -> RecordedTrace:
    """A trace with one kernel on each of the devices."""
    record = Recorder()
    for device in devices:
        record.kernel(GEMM, device=device)
    return record.trace(metadata=metadata)


def test_what_was_recorded_with_which_settings_is_kept_and_nothing_else() -> None:
    metadata = {
        "record_shapes": 1,
        "with_stack": 0,
        "schemaVersion": 1,
        "traceName": "/home/me/t.json",
        "env": {"A": "b"},
    }

    found = describe_environment(a_trace(metadata, 0))

    assert found == Environment(torch=None, settings={"record_shapes": "1", "with_stack": "0", "schemaVersion": "1"})


@pytest.mark.parametrize(
    ("metadata", "device", "expected"),
    [
        ({"deviceProperties": GPUS}, 1, Environment(torch=None, device_name="NVIDIA H100")),
        ({"deviceProperties": [None, {"id": [0], "name": None}]}, 0, Environment(torch=None)),
        ({"torch_version": "2.13.0", "cuda_runtime_version": 12040}, 0, Environment(torch="2.13.0", cuda="12.4")),
        ({"pytorch_version": "2.9.1", "cuda_runtime_version": "12040"}, 0, Environment(torch="2.9.1")),
        ({"metadata": {"torch_version": "2.8.0"}}, 0, Environment(torch="2.8.0")),
        ({"torch_version": 2.13, "metadata": "2.8.0"}, 0, Environment(torch=None)),
    ],
)
def test_what_a_trace_says_of_its_machine_is_kept(metadata: dict[str, Any], device: int, expected: Environment) -> None:
    assert describe_environment(a_trace(metadata, device)) == expected


@pytest.mark.parametrize(
    ("kernel", "launch", "device", "expected"),
    [
        (GEMM, "cudaLaunchKernel", "NVIDIA A100", "cuda"),
        (GEMM, "hipLaunchKernel", "AMD Instinct MI300X", "cuda"),  # torch's own word
        ("gen_conv", "urEnqueueKernelLaunch", None, "xpu"),
        ("gen_conv", "zeCommandListAppendLaunchKernel", None, "xpu"),
        ("at::native::xpu::UnrolledElementwiseKernel<CopyScalarFunc>", "launch", None, "xpu"),
        ("gen_conv", "launch", "Intel(R) Data Center GPU Max 1550", "xpu"),
    ],
)
def test_a_device_is_called_by_torchs_name_for_it(kernel: str, launch: str, device: str | None, expected: str) -> None:
    record = Recorder()
    record.kernel(kernel)
    trace = record.trace(metadata={"deviceProperties": [{"id": 0, "name": device}]} if device else {})
    trace.names[int(trace.launches.name[0])] = launch

    assert device_of(trace) == expected
