from __future__ import annotations

from typing import TYPE_CHECKING, Any

from loops import for_each
from recorded_builders import GEMM, Recorder

from layoutdoctor.diagnosis.records import Environment
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


def test_the_devices_that_ran_the_kernels_are_named() -> None:
    assert describe_environment(a_trace({"deviceProperties": GPUS}, 1)).device_name == "NVIDIA H100"
    assert describe_environment(a_trace({"deviceProperties": GPUS}, 1, 2)).device_name == "NVIDIA H100"
    assert describe_environment(a_trace({"deviceProperties": GPUS}, 0, 2)).device_name == "NVIDIA A100, NVIDIA H100"


@for_each(
    "listed", [None, [], {}, "NVIDIA", [None, 3], [{"id": 0}], [{"id": 0, "name": 5}], [{"id": [0], "name": None}]]
)
def test_a_list_of_devices_that_is_none_names_none(listed: object) -> None:
    assert describe_environment(a_trace({"deviceProperties": listed}, 0)).device_name is None


@for_each(
    ("metadata", "version"),
    [
        ({"torch_version": "2.13.0"}, "2.13.0"),
        ({"pytorch_version": "2.9.1"}, "2.9.1"),
        ({"metadata": {"torch_version": "2.8.0"}}, "2.8.0"),
        ({"torch_version": 2.13}, None),
        ({"metadata": "2.8.0"}, None),
        ({}, None),
    ],
)
def test_the_version_of_torch_is_given_where_somebody_wrote_it(metadata: dict[str, Any], version: str | None) -> None:
    assert describe_environment(a_trace(metadata, 0)).torch == version


@for_each(
    ("number", "version"),
    [(12040, "12.4"), (11080, "11.8"), (13000, "13.0"), ("12040", None), (True, None), (3, None), (None, None)],
)
def test_cudas_version_is_read_from_its_number(number: object, version: str | None) -> None:
    assert describe_environment(a_trace({"cuda_runtime_version": number}, 0)).cuda == version


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


def test_the_device_type_is_torchs_word_for_it() -> None:
    record = Recorder()
    assert device_of(record.trace()) is None
    with record.operation("aten::conv2d"):
        pass
    assert device_of(record.trace()) == "cpu"
    with record.operation("aten::_mps_convolution"):
        pass
    assert device_of(record.trace()) == "mps"
    assert device_of(a_trace({}, 0)) == "cuda"
    assert device_of(a_trace({"deviceProperties": [{"id": 0, "name": "Intel(R) Max XPU"}]}, 0)) == "xpu"


@for_each(
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
