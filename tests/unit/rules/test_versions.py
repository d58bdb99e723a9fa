"""LD301: every known fault fires in its versions and in no other, and where its circumstances are met."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest
from builders import (
    Told,
    a_convolution,
    a_decision,
    a_diagnosis,
    a_failed_trial,
    a_kernel,
    a_location,
    a_node,
    a_subject,
    a_trial,
    an_environment,
    channels_last,
    contiguous,
    kernels,
)
from packaging.version import Version
from rule_builders import with_graph

import layoutdoctor
from layoutdoctor.diagnosis.trial import Equivalence, Trial
from layoutdoctor.rules.known_faults import KNOWN_FAULTS
from layoutdoctor.rules.ld301_known_fault import LD301, parse_cudnn, parse_torch

if TYPE_CHECKING:
    from pathlib import Path

    from layoutdoctor.diagnosis.answer import Finding
    from layoutdoctor.diagnosis.diagnosis import Diagnosis
    from layoutdoctor.diagnosis.graph import FxNode

VIDEO = contiguous((2, 16, 8, 32, 32))
CONV3D = a_node(
    "convolution", "aten.convolution.default", layout=VIDEO, dtype="bfloat16", module="patch", location=a_location(14)
)
UPSAMPLING = (
    a_node("convolution", "aten.convolution.default", ("x", "w")),
    a_node("up", "aten.upsample_bilinear2d.vec", ("convolution",), location=a_location(8)),
    a_node("relu", "aten.relu.default", ("up",)),
    a_node("convolution_1", "aten.convolution.default", ("relu", "w")),
)
PAD = a_node("pad", "aten.reflection_pad2d.default", ("x",), location=a_location(6))
STRIDED = a_node("as_strided", "aten.as_strided.default", ("x",))


def found(*nodes: FxNode, decision: Any = None, torch: str = "2.9.1+cu128", **changes: Any) -> list[Finding]:
    environment = an_environment(torch=torch, cudnn=changes.pop("cudnn", None))
    subject = a_subject(device=changes.pop("device", "cuda"), mode=changes.pop("mode", "inference"))
    trial = with_graph(*nodes, graph={"decision": decision})
    return list(LD301.check(a_diagnosis(trial, environment=environment, subject=subject, **changes)))


def with_outputs(eager_status: Any, status: Any, *nodes: FxNode, torch: str, same: bool = False) -> Diagnosis:
    expected, returned = channels_last(), channels_last() if same else contiguous()
    of_eager = Equivalence(status=eager_status, output_layouts=(expected,))
    trials: tuple[Trial, ...] = (
        with_graph(*nodes, name="eager", graph={"name": "eager"}, equivalence=of_eager),
        a_trial(equivalence=Equivalence(status=status, output_layouts=(returned,))),
    )
    return a_diagnosis(*trials, environment=an_environment(torch=torch))


def test_a_known_fault_is_reported_with_its_versions_and_what_shows_it_here(told: Told) -> None:
    told("A half precision conv3d on torch 2 9 without a new cudnn is reported", found(CONV3D, cudnn="91002"))
    lost = LD301.check(with_outputs("equal", "equal", PAD, torch="2.13.0.dev20260514"))
    told("Strides lost when padding is decomposed are reported where an output shows it", lost)
    failed = a_failed_trial("inductor-layout-opt-forced", "AssertionError: expected size 512==512, stride 1==512")
    told("A forced configuration that fails on a stride assertion is a note", LD301.check(a_diagnosis(failed)))
    old: dict[str, Any] = {"decision": a_decision(), "torch": "2.7.1", "device": "cpu"}
    told("Upsampling between convolutions on an old cpu build is a note", found(*UPSAMPLING, **old))
    step: dict[str, Any] = {"device": "mps", "mode": "training", "torch": "2.13.0"}
    told("Training on mps is advised to go without layout optimization", found(decision=a_decision(), **step))


@pytest.mark.parametrize(
    ("torch", "advice"),
    [
        ("2.8.0", "compare with float32; use torch 2.9.1"),
        ("2.9.0a0+git123", "use torch 2.9.1"),
        ("2.9.0.post1", "use torch 2.9.1"),
        ("2.9.1a0+5228.nv25.06", "install the package"),
        ("2.9.1+cu128", "install the package"),
        ("2.10.0.dev20251001", None),
        ("unknown", None),
    ],
)
def test_a_nightly_has_the_faults_of_its_release(torch: str, advice: str | None) -> None:
    advised = [str(finding.suggestion).startswith(str(advice)) for finding in found(CONV3D, torch=torch, cudnn="91002")]
    assert advised == ([True] if advice else [])


def test_other_versions_devices_and_circumstances_meet_no_fault() -> None:
    for changes in ({"cudnn": "91500"}, {"cudnn": "90701"}, {"cudnn": None}, {"cudnn": "91002", "device": "cpu"}):
        assert found(CONV3D, **changes) == []
    old: dict[str, Any] = {"decision": a_decision(), "torch": "2.7.1", "device": "cpu"}
    assert found(*UPSAMPLING[1:], **old) == found(*UPSAMPLING[:-1], **old) == []
    assert found(*UPSAMPLING, **{**old, "decision": a_decision(applied=False)}) == []
    for diagnosis in (
        with_outputs("equal", "equal", PAD, torch="2.10.0", same=True),
        with_outputs("different", "different", STRIDED, torch="2.11.0"),
        a_diagnosis(a_failed_trial("inductor-layout-opt-forced", "RuntimeError: boom")),
    ):
        assert list(LD301.check(diagnosis)) == []


@pytest.mark.parametrize(("torch", "count"), [("2.12.0+cu130", 1), ("2.13.0+cu130", 0)])
def test_a_trace_shows_a_convolution_template(tmp_path: Path, torch: str, count: int) -> None:
    name = "triton_tem_fused_convolution_4"
    kernel = {"ph": "X", "cat": "kernel", "name": name, "ts": 1, "dur": 2, "pid": 0, "tid": 7}
    (tmp_path / "t.json").write_text(json.dumps({"torch_version": torch, "traceEvents": [kernel]}), encoding="utf-8")

    findings = layoutdoctor.examine_trace(tmp_path / "t.json").findings

    assert [f"(pytorch #173068); here: {name} ran" in f.message for f in findings if f.code == "LD301"] == [
        True
    ] * count
    pointwise = a_decision(a_convolution("conv", weight_shape=(8, 8, 1, 1)))
    ran = with_nodes(decision=pointwise, ran=a_kernel(name, library="inductor"))
    environment, subject = an_environment(torch="2.12.0"), a_subject(device="cuda")
    assert list(LD301.check(a_diagnosis(ran, environment=environment, subject=subject))) == []


def test_versions_are_read_without_what_was_built() -> None:
    for text, version in {"2.9.1+cu128": "2.9.1", "2.13.0.dev20260514+cu130": "2.13.0.dev20260514"}.items():
        assert parse_torch(text) == Version(version)
    for text, version in {"91002": "9.10.2", "8907": "8.9.7", "9.10.2": "9.10.2"}.items():
        assert parse_cudnn(text) == Version(version)
    for read in (parse_torch, parse_cudnn):
        assert [read(text) for text in ("main", "2.x", "", None)] == [None] * 4


def test_every_fault_fires_in_its_versions_and_in_no_other() -> None:
    added = a_node("index_put", "aten.index_put_.default", ("x",))
    failed = a_failed_trial("inductor-layout-opt-forced", "AssertionError: expected stride 1==512")
    half = a_node("conv", "aten.convolution.default", dtype="bfloat16", module="stem")
    depthwise = a_decision(a_convolution("conv1d", rank=1, groups=768, weight_shape=(768, 1, 31)))
    large = a_decision(a_convolution("conv", weight_shape=(1, 1, 51, 51)))
    grouped = a_decision(a_convolution("conv", class_="grouped", groups=32))
    product = a_node("mm", "aten.mm.default", dtype="float16")
    reference = a_kernel("matmul", implementation="ref:any", node="mm")
    fallback = a_kernel("aten::slow_conv_dilated2d", library="aten", node="conv")
    template = a_kernel("triton_tem_fused_convolution_4", library="inductor")
    gradient = a_failed_trial("inductor", "CUDA error: illegal memory access in triton_convolution2d_bwd_weight")
    norm = (a_node("up", "aten._unsafe_index.Tensor"), a_node("gn", "aten.var_mean.correction"), UPSAMPLING[0])
    unit = with_nodes(
        decision=a_decision(a_convolution("conv", weight_shape=(8, 8, 1, 1))), name="inductor-channels-last"
    )
    trials = {
        "convolution_in_triton_template": [with_nodes(ran=template)],
        "weight_gradient_in_triton_template": [gradient],
        "upsampling_before_group_norm": [with_nodes(*norm)],
        "training_of_unit_convolution": [unit],
        "half_precision_conv3d": [with_nodes(CONV3D)],
        "upsampling_between_convolutions": [with_nodes(*UPSAMPLING, decision=a_decision())],
        "strides_lost_in_decomposition": list(with_outputs("equal", "equal", PAD, torch="").trials),
        "as_strided_with_other_values": list(with_outputs("equal", "different", STRIDED, torch="").trials),
        "scatter_with_other_values": list(with_outputs("equal", "different", added, torch="").trials),
        "forced_trial_failed": [failed],
        "training_with_layout_optimization": [with_nodes(decision=a_decision())],
        "depthwise_conv1d_in_half_precision": [with_nodes(a_node("conv1d", dtype="float16"), decision=depthwise)],
        "large_kernel_without_benchmark": [with_nodes(decision=large)],
        "small_or_grouped_on_rocm": [with_nodes(decision=grouped)],
        "bfloat16_convolution_in_fallback": [with_nodes(half, ran=fallback)],
        "half_precision_product_in_reference": [with_nodes(product, ran=reference)],
    }
    for fault, look in KNOWN_FAULTS.items():

        def fired(torch: str, fault: Any = fault, found_by: str = look.__name__) -> bool:
            environment = an_environment(torch=f"{torch}+rocm6.4", cudnn=fault.first_cudnn, device_name="NVIDIA B200")
            subject = a_subject(device=fault.device or "cpu", mode="training")
            diagnosis = a_diagnosis(*trials[found_by], environment=environment, subject=subject)
            return any(
                fault.what in finding.message and fault.source in finding.evidence for finding in LD301.check(diagnosis)
            )

        assert fired(fault.first_torch or "2.7.1"), fault.source
        assert fault.before_torch is None or not fired(fault.before_torch), fault.source
        assert fault.first_torch is None or not fired("2.3.1"), fault.source
    assert trials.keys() == {look.__name__ for look in KNOWN_FAULTS.values()}


def with_nodes(*nodes: FxNode, decision: Any = None, ran: Any = None, name: str = "inductor") -> Trial:
    seen = kernels(kernels=(ran,)) if ran is not None else None
    return with_graph(*nodes, name=name, graph={"decision": decision}, kernels=seen)
