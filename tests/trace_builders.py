"""Small records of a recorded trace with defaults, for tests, as in builders."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from builders import a_conversion, a_diagnosis, a_graph, a_pair, a_trial, channels_last, contiguous, recorded

from layoutdoctor.diagnosis.kernel import Kernel, KernelSummary, Total
from layoutdoctor.diagnosis.layout import Layout, strided_layout
from layoutdoctor.diagnosis.subject import Environment, Subject
from layoutdoctor.recording.reading import RECORDED

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from layoutdoctor.diagnosis.answer import Finding
    from layoutdoctor.diagnosis.conversion import Conversion, RedundantPair
    from layoutdoctor.diagnosis.diagnosis import Diagnosis
    from layoutdoctor.diagnosis.trial import Trial


TO_NHWC = "void cudnn::ops::nchwToNhwcKernel<__half, __half, float, false, true>"
TO_NCHW = "void cudnn::ops::nhwcToNchwKernel<__half, __half, float, true, false>"
PADDING = "void cudnn::ops::nhwcAddPaddingKernel<__half, __half, float>"
KERNEL_SECONDS = 15e-3


def to_channels_last(id: str, **changes: Any) -> Conversion:
    """A library's conversion of an activation in front of a convolution."""
    return _library(id, TO_NHWC, contiguous(), channels_last(), "to_channels_last", changes)


def to_contiguous(id: str, **changes: Any) -> Conversion:
    """A library's conversion of a convolution's result back."""
    return _library(id, TO_NCHW, channels_last(), contiguous(), "to_contiguous", changes)


def _library(
    id: str, kernel: str, source: Layout, target: Layout, direction: str, changes: dict[str, Any]
) -> Conversion:
    fields: dict[str, Any] = {
        "owner": "library",
        "kernel": kernel,
        "op": "aten::cudnn_convolution",
        "source": source,
        "target": target,
        "direction": direction,
        "seconds": 1e-4,
        "exposed_seconds": 4e-5,
        "confidence": "shapes",
        "stream": 7,
        "seconds_source": "measured",
    }
    return a_conversion(id, **{**fields, **changes})


def an_eager_copy(id: str, **changes: Any) -> Conversion:
    """A strided copy by one of PyTorch's own kernels, contiguous to channels_last."""
    fields: dict[str, Any] = {
        "owner": "framework",
        "kernel": "void at::native::elementwise_kernel<128, 4, at::native::gpu_kernel_impl_nocast<...>>",
        "op": "aten::copy_",
        "confidence": "shapes",
        "graph": "recorded",
    }
    return to_channels_last(id, **{**fields, **changes})


def a_generated_copy(id: str, **changes: Any) -> Conversion:
    """A launch of a Triton kernel with a two-dimensional tile."""
    fields: dict[str, Any] = {
        "owner": "compiler",
        "kernel": "triton_poi_fused_clone_3",
        "op": None,
        "source": None,
        "target": None,
        "direction": "other",
        "confidence": None,
        "graph": "recorded",
        "tensor": "unknown",
        "bytes_moved": None,
        "cause": "it walks a two-dimensional tile (YBLOCK)",
    }
    return an_eager_copy(id, **{**fields, **changes})


def a_permuted_copy(id: str, **changes: Any) -> Conversion:
    """A copy as attention makes it: [N, L, H, C] seen as [N, H, L, C], written contiguous."""
    shape = (8, 12, 197, 64)
    fields: dict[str, Any] = {
        "source": strided_layout(shape, (197 * 768, 64, 768, 1)),
        "target": contiguous(shape),
        "direction": "none",
        "cause": "it permutes dimensions, as attention does",
    }
    return an_eager_copy(id, **{**fields, **changes})


def a_recorded_pair(first: str, second: str, **changes: Any) -> RedundantPair:
    """A round trip that recorded shapes prove."""
    fields: dict[str, Any] = {
        "between": ("aten::batch_norm", "aten::relu_"),
        "confidence": "shapes",
        "seconds": 2e-4,
        "exposed_seconds": 8e-5,
        "proof": None,
        "seconds_source": "measured",
    }
    return a_pair(first, second, **{**fields, **changes})


def recorded_kernels(*conversions: Conversion, seconds: float = KERNEL_SECONDS, **changes: Any) -> KernelSummary:
    """The kernels of a trace, with these library conversions among them."""
    fields: dict[str, Any] = {"count": 200, "convolution_count": 40, "convolution_seconds": 4e-3}
    return recorded(*conversions, seconds=seconds, **{**fields, **changes})


def a_recorded_trial(*conversions: Conversion, **changes: Any) -> Trial:
    """The trial of a trace: what libraries convert is in its kernel list, everything else in its graph."""
    by_library = [c for c in conversions if c.owner == "library"]
    others = tuple(c for c in conversions if c.owner != "library")
    fields: dict[str, Any] = {
        "configuration": RECORDED,
        "kernels": recorded_kernels(*by_library),
        "graphs": (a_graph(name="recorded", conversions=others),),
        "measurement": None,
        "equivalence": None,
    }
    return a_trial(**{**fields, **changes})


def a_trace_diagnosis(trial: Trial | None = None, **changes: Any) -> Diagnosis:
    """The diagnosis of a trace: one trial, nothing measured, compared or recommended."""
    fields: dict[str, Any] = {
        "environment": Environment(torch=None, device_name="NVIDIA A100-SXM4-80GB"),
        "subject": Subject(name="trace.json.gz", mode="trace", device="cuda", inputs=()),
    }
    return a_diagnosis(trial or a_recorded_trial(), **{**fields, **changes})


def a_recorded_kernel(name: str = "sm80_xmma_fprop_implicit_gemm", **changes: Any) -> Kernel:
    """One launch in a trace."""
    return Kernel(**{"name": name, "seconds": 1e-3, "library": "cudnn", "op": "aten::cudnn_convolution", **changes})


def a_total(name: str, seconds: float = 1e-3, **changes: Any) -> Total:
    """Kernels of one name, added up."""
    return Total(**{"kind": "kernel", "name": name, "count": 10, "seconds": seconds, **changes})


def finder_in_trace(check: Callable[[Diagnosis], Iterator[Finding]]) -> Callable[..., list[Finding]]:
    """What a rule finds in a trace with some conversions; further arguments are fields of its trial."""
    return lambda *conversions, **changes: list(check(a_trace_diagnosis(a_recorded_trial(*conversions, **changes))))
