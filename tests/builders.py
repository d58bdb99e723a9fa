"""Small records with defaults, for tests: each function takes what the test is about and fills in the rest."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import msgspec

from layoutdoctor.diagnosis.answer import Comparison, Finding, Ratio, Recommendation
from layoutdoctor.diagnosis.conversion import Conversion, RedundantPair
from layoutdoctor.diagnosis.diagnosis import Diagnosis
from layoutdoctor.diagnosis.graph import Buffer, BufferRead, Convolution, Decision, FxNode, Graph, LayoutBreaker
from layoutdoctor.diagnosis.kernel import Kernel, KernelSummary, Total
from layoutdoctor.diagnosis.lack import Lack
from layoutdoctor.diagnosis.layout import Layout, blocked_layout, contiguous_stride, dense_stride, strided_layout
from layoutdoctor.diagnosis.subject import Configuration, Environment, InputTensor, SourceLocation, Subject
from layoutdoctor.diagnosis.trial import Equivalence, Failure, Measurement, Observed, Rounds, Trial
from layoutdoctor.examination.advice.choice import judge
from layoutdoctor.examination.graphs.conversions import with_graph_conversions
from layoutdoctor.recording.reading import RECORDED
from layoutdoctor.recording.recording import Head, Recording

IMAGE = (4, 64, 56, 56)


def contiguous(shape: tuple[int, ...] = IMAGE) -> Layout:
    return strided_layout(shape, contiguous_stride(shape))


def channels_last(shape: tuple[int, ...] = IMAGE) -> Layout:
    return strided_layout(shape, dense_stride(shape, (0, *range(2, len(shape)), 1)))


def blocked(shape: tuple[int, ...] = IMAGE, tag: str = "aBcd16b") -> Layout:
    return blocked_layout(shape, tag)


def a_location(line: int = 9, file: str = "model.py", code: str | None = None) -> SourceLocation:
    return SourceLocation(file=file, line=line, code=code)


def a_configuration(name: str = "inductor", **changes: Any) -> Configuration:
    from layoutdoctor.diagnosis.configurations import BUILTIN_CONFIGURATIONS

    for configuration in BUILTIN_CONFIGURATIONS:
        if configuration.name == name and not changes:
            return configuration
    return Configuration(**{"name": name, "backend": "inductor", "layout_optimization": "default", **changes})


def a_conversion(id: str = "reorder 0", **changes: Any) -> Conversion:
    fields: dict[str, Any] = {
        "id": id,
        "owner": "library",
        "kernel": "reorder jit:blk",
        "node": None,
        "op": "aten::mkldnn_convolution",
        "location": a_location(),
        "module": "body.0.0",
        "source": blocked(),
        "target": contiguous(),
        "direction": "from_blocked",
        "tensor": "activation",
        "seconds": 1e-3,
        "bytes_moved": 6_422_528,
    }
    return Conversion(**{**fields, **changes})


def kernels(*conversions: Conversion, seconds: float = 15e-3, **changes: Any) -> KernelSummary:
    real = [c for c in conversions if c.direction != "none"]
    spent = sum(c.seconds or 0.0 for c in real)
    fields: dict[str, Any] = {
        "count": 20 + len(conversions),
        "seconds": seconds,
        "conversion_count": len(real),
        "conversion_seconds": spent,
        "share": spent / seconds if seconds else None,
        "conversions": conversions,
        "not_understood_count": 0,
        "sources": ("profiler", "onednn_log"),
    }
    return KernelSummary(**{**fields, **changes})


def a_pair(first: str = "reorder 0", second: str = "reorder 1", **changes: Any) -> RedundantPair:
    fields: dict[str, Any] = {
        "kind": "through",
        "evidence": "kernels",
        "first": first,
        "second": second,
        "between": ("aten.relu.default",),
        "seconds": 2e-3,
        "bytes_moved": 12_845_056,
        "location": a_location(),
        "module": "body.1.0",
        "proof": "the only consumer of the value between is aten.relu.default, which works in any layout",
        "tensor_shape": IMAGE,
    }
    return RedundantPair(**{**fields, **changes})


def a_convolution(node: str = "convolution", **changes: Any) -> Convolution:
    fields: dict[str, Any] = {
        "node": node,
        "class_": "small",
        "channels_last": True,
        "rank": 2,
        "location": a_location(),
        "module": "body.0.0",
        "weight_shape": (64, 64, 3, 3),
        "groups": 1,
    }
    return Convolution(**{**fields, **changes})


def a_decision(*convolutions: Convolution, **changes: Any) -> Decision:
    convolutions = convolutions or (a_convolution(),)
    fields: dict[str, Any] = {
        "applied": True,
        "rule": "cpu-onednn",
        "explanation": "every convolution runs on a CPU with oneDNN, where Inductor always chooses channels-last",
        "convolution_count": len(convolutions),
        "channels_last_convolution_count": sum(bool(c.channels_last) for c in convolutions),
        "convolutions": convolutions,
    }
    return Decision(**{**fields, **changes})


def a_graph(decision: Decision | None = None, **changes: Any) -> Graph:
    fields: dict[str, Any] = {"name": "graph 0", "direction": "inference", "decision": decision}
    return Graph(**{**fields, **changes})


def a_node(name: str, target: str = "aten.relu.default", inputs: tuple[str, ...] = (), **changes: Any) -> FxNode:
    fields: dict[str, Any] = {
        "name": name,
        "op": "call_function",
        "target": target,
        "inputs": inputs,
        "layout": contiguous(),
        "dtype": "float32",
    }
    return FxNode(**{**fields, **changes})


def a_measurement(*round_seconds: float, **changes: Any) -> Measurement:
    round_seconds = round_seconds or (10e-3, 10.1e-3, 9.9e-3) * 8
    ordered = sorted(round_seconds)
    fields: dict[str, Any] = {
        "round_seconds": round_seconds,
        "median_seconds": ordered[len(ordered) // 2],
        "compile_seconds": 12.0,
        "peak_memory_bytes": 12_845_056,
        "calls_per_round": 8,
    }
    return Measurement(**{**fields, **changes})


def a_trial(name: str = "inductor", **changes: Any) -> Trial:
    fields: dict[str, Any] = {
        "configuration": a_configuration(name),
        "status": "ok",
        "kernels": kernels(),
        "measurement": a_measurement(),
        "equivalence": Equivalence(
            status="equal",
            max_abs_error=3e-7,
            relative_error=2e-7,
            eager_relative_error=1e-7,
            tolerance=1e-4,
            reference="float64",
        ),
    }
    return Trial(**{**fields, **changes})


def as_observed(trial: Trial) -> Observed:
    """The same without what followed from it."""
    facts = {field: getattr(trial, field) for field in Observed.__struct_fields__}
    if trial.measurement is not None:
        rounds = {field: getattr(trial.measurement, field) for field in Rounds.__struct_fields__}
        facts["measurement"] = Rounds(**rounds)
    return Observed(**facts)


def a_lack(reason: str = "shapes were not recorded") -> Lack:
    return Lack(part="shapes", reason=reason)


def a_failed_trial(name: str = "inductor-layout-opt-on", message: str = "RuntimeError: boom") -> Trial:
    return Trial(
        configuration=a_configuration(name),
        status="failed",
        failure=Failure(kind="compile", message=message),
    )


def a_ratio(name: str, median: float, width: float = 0.03, **changes: Any) -> Ratio:
    low, high = median - width, median + width
    fields: dict[str, Any] = {
        "name": name,
        "low": low,
        "median": median,
        "high": high,
        "verdict": judge(low, high),
        "round_count": 24,
    }
    return Ratio(**{**fields, **changes})


def a_comparison(*ratios: Ratio, fastest: tuple[str, ...] = ("inductor",), **changes: Any) -> Comparison:
    fields: dict[str, Any] = {
        "baseline": "inductor",
        "ratios": ratios,
        "fastest": fastest,
    }
    return Comparison(**{**fields, **changes})


def a_recommendation(configuration: str | None = "inductor", **changes: Any) -> Recommendation:
    fields: dict[str, Any] = {
        "configuration": configuration,
        "speedup": None,
        "how": "model = torch.compile(model)\ny = model(x)",
        "verified": False,
    }
    return Recommendation(**{**fields, **changes})


def a_speedup(median: float = 1.28, width: float = 0.03, name: str = "inductor-channels-last") -> Ratio:
    """Over three further starts."""
    return a_ratio(name, median, width, start_ratios=(median - width / 3, median, median + width / 3))


def an_input(layout: Layout | None = None, dtype: str = "float32", name: str | None = "x") -> InputTensor:
    layout = layout or contiguous((4, 3, 56, 56))
    return InputTensor(
        shape=layout.shape, stride=layout.stride, dtype=dtype, memory_formats=layout.memory_formats, name=name
    )


def a_subject(**changes: Any) -> Subject:
    fields: dict[str, Any] = {
        "name": "model.py",
        "mode": "inference",
        "device": "cpu",
        "inputs": (an_input(),),
        "model": "Model",
        "parameter_count": 112_832,
        "convolution_module_count": 4,
        "parameter_formats": {"contiguous_format": 4},
    }
    return Subject(**{**fields, **changes})


def an_environment(**changes: Any) -> Environment:
    fields: dict[str, Any] = {
        "torch": "2.13.0",
        "python": "3.11.7",
        "platform": "Linux x86_64",
        "onednn": "3.12.0",
        "onednn_isa": "Intel AVX-512 with Intel DL Boost",
        "thread_count": 2,
        "cpu_count": 2,
        "command": "layoutdoctor model.py",
    }
    return Environment(**{**fields, **changes})


def a_diagnosis(*trials: Trial, **changes: Any) -> Diagnosis:
    fields: dict[str, Any] = {
        "layoutdoctor_version": "0.1.0",
        "created_at": "2026-11-20T12:00:00Z",
        "environment": an_environment(),
        "subject": a_subject(),
        "trials": trials or (a_trial(),),
    }
    return Diagnosis(**{**fields, **changes})


def recordings_of(diagnosis: Diagnosis) -> tuple[Recording, ...]:
    """Recordings of a diagnosis whose trials were neither profiled nor compiled."""
    names = [field for field in Head.__struct_fields__ if field not in ("configurations", "other_cores")]
    shared = {field: getattr(diagnosis, field) for field in names}
    head = Head(**shared, configurations=tuple(trial.name for trial in diagnosis.trials))
    trials = (msgspec.structs.replace(trial, graphs=()) for trial in diagnosis.trials)
    return tuple(Recording(head=head, trial=as_observed(trial)) for trial in trials)


def a_finding(code: str = "LD101", **changes: Any) -> Finding:
    """A warning about a round trip."""
    fields: dict[str, Any] = {
        "rule": "round-trip-conversion",
        "severity": "warning",
        "configuration": "inductor",
        "message": "3 round trips",
        "module": "body.1",
    }
    return Finding(code=code, **{**fields, **changes})


def a_breaker(node: str = "instance_norm", **changes: Any) -> LayoutBreaker:
    fields: dict[str, Any] = {
        "node": node,
        "op": "instance_norm",
        "reason": "it computes on a contiguous copy and returns a contiguous result",
        "location": a_location(19),
        "module": "net.1",
        "source": channels_last(),
        "target": contiguous(),
    }
    return LayoutBreaker(**{**fields, **changes})


def a_placeholder(name: str, layout: Layout | None = None, tensor: str = "activation", **changes: Any) -> FxNode:
    fields: dict[str, Any] = {"op": "placeholder", "layout": layout or contiguous(), "tensor": tensor}
    return a_node(name, name, **{**fields, **changes})


def a_kernel(name: str = "convolution", seconds: float = 1e-3, **changes: Any) -> Kernel:
    return Kernel(**{"name": name, "seconds": seconds, "library": "onednn", **changes})


def a_read(name: str = "x", layout: Layout | None = None, **changes: Any) -> BufferRead:
    """A read of a whole tensor of that layout, for a buffer of the same dimensions."""
    return BufferRead(**{"name": name, "stride": (layout or contiguous()).stride, **changes})


def a_buffer(name: str = "buf0", *accesses: BufferRead, **changes: Any) -> Buffer:
    """A buffer that the first launch of a generated kernel writes; its reads are those of its loop."""
    fields: dict[str, Any] = {
        "layout": channels_last(),
        "dtype": "float32",
        "kernel": "cpp_fused_0",
        "reads": tuple(dict.fromkeys(read.name for read in accesses)),
        "accesses": accesses,
        "launch": 0,
    }
    return Buffer(name=name, **{**fields, **changes})


def a_total(kind: str = "operation", name: str = "aten::convolution", **changes: Any) -> Total:
    fields: dict[str, Any] = {"kind": kind, "name": name, "count": 10, "seconds": 2e-3}
    return Total(**{**fields, **changes})


def recorded(*conversions: Conversion, seconds: float | None = 15e-3, **changes: Any) -> KernelSummary:
    """The kernel list of a recorded trace; everything the library conversions add up to is added up."""
    real = [c for c in conversions if c.direction != "none"]
    spent = sum(c.seconds or 0.0 for c in real)
    exposed = [c.exposed_seconds for c in real]
    fields: dict[str, Any] = {
        "count": 100,
        "seconds": seconds,
        "conversion_count": sum(c.count for c in real),
        "conversion_seconds": spent,
        "share": spent / seconds if seconds else None,
        "conversions": conversions,
        "not_understood_count": 0,
        "sources": ("kineto_trace",),
        "exposed_conversion_seconds": None if None in exposed else sum(e for e in exposed if e is not None),
    }
    return KernelSummary(**{**fields, **changes})


def a_trace(kernels: KernelSummary | None = None, **changes: Any) -> Diagnosis:
    """
    A diagnosis of a recorded trace: one trial, nothing measured.

    The changes are those of the trial, but for ``subject``, ``environment``, ``findings`` and ``interrupted``.
    """
    subject = {"name": "trace.json.gz", "mode": "trace", "device": "cuda", "inputs": ()} | changes.pop("subject", {})
    environment = {"torch": None, "device_name": "NVIDIA H100 80GB HBM3"} | changes.pop("environment", {})
    whole = {name: changes.pop(name) for name in ("findings", "interrupted") if name in changes}
    trial = Trial(**{"configuration": RECORDED, "status": "ok", "kernels": kernels, **changes})
    return a_diagnosis(trial, subject=Subject(**subject), environment=Environment(**environment), **whole)


Told = Callable[..., None]
"""What the fixture ``told`` of the rules' tests is: a sentence, then what is found in each case that it is about."""


def finder(check: Callable[[Diagnosis], Iterator[Finding]]) -> Callable[..., list[Finding]]:
    """What a rule finds in the diagnosis of some trials; further arguments are fields of the diagnosis."""
    return lambda *trials, **changes: list(check(a_diagnosis(*trials, **changes)))


def graph_conversions(graph: Graph) -> tuple[Conversion, ...]:
    """What the examination finds in a graph alone."""
    return with_graph_conversions((graph,), 0)[0].conversions
