from __future__ import annotations

from typing import Any

import pytest
from builders import (
    Told,
    a_convolution,
    a_decision,
    a_diagnosis,
    a_failed_trial,
    a_graph,
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

from layoutdoctor.diagnosis.records import Diagnosis, Equivalence, Finding, FxNode, Trial
from layoutdoctor.rules.versions import LD301, known_faults, parse_cudnn, parse_torch

VIDEO = contiguous((2, 16, 8, 32, 32))
CONV3D = a_node(
    "convolution", "aten.convolution.default", layout=VIDEO, dtype="bfloat16", module="patch", location=a_location(14)
)


def a_model(*nodes: FxNode, decision: Any = None, torch: str = "2.9.1+cu128", **changes: Any) -> Diagnosis:
    fields: dict[str, Any] = {
        "environment": an_environment(torch=torch, cudnn=changes.pop("cudnn", None)),
        "subject": a_subject(device=changes.pop("device", "cuda"), mode=changes.pop("mode", "inference")),
    }
    return a_diagnosis(a_trial(graphs=(a_graph(decision, nodes=nodes),)), **{**fields, **changes})


def findings(diagnosis: Diagnosis) -> list[Finding]:
    return list(LD301.check(diagnosis))


def sources(diagnosis: Diagnosis) -> list[str]:
    return [source for finding in LD301.check(diagnosis) for source in finding.evidence]


@pytest.mark.parametrize(
    ("torch", "advice"),
    [
        ("2.8.0", None),
        ("2.9.0a0+git123", "use torch 2.9.1"),
        ("2.9.0.dev20250801+cu128", "use torch 2.9.1"),
        ("2.9.0.post1", "use torch 2.9.1"),
        ("2.9.1a0+5228.nv25.06", "install the package"),
        ("2.9.1+cu128", "install the package"),
        ("2.10.0.dev20251001", None),
    ],
)
def test_a_nightly_has_the_faults_of_its_release(torch: str, advice: str | None) -> None:
    found = findings(a_model(CONV3D, torch=torch, cudnn="91002"))

    assert [finding.suggestion.startswith(str(advice)) for finding in found] == ([True] if advice else [])


def test_what_it_suggests(told: Told) -> None:
    told(
        "Torch 2 9 0 uses no cudnn for it whatever its version", findings(a_model(CONV3D, torch="2.9.0", cudnn="91500"))
    )

    found = findings(a_model(*UPSAMPLING, decision=a_decision(), torch="2.7.1", device="cpu"))
    told("Upsampling between convolutions on an old cpu build is a note", found)

    step: dict[str, Any] = {"device": "mps", "mode": "training", "torch": "2.13.0"}
    told(
        "Training on mps is advised to go without layout optimization", findings(a_model(decision=a_decision(), **step))
    )
    assert findings(a_model(decision=a_decision(), **{**step, "mode": "inference"})) == []
    assert findings(a_model(decision=a_decision(), **{**step, "torch": "2.15.0"})) == []
    assert findings(a_model(decision=a_decision(applied=False), **step)) == []


def test_what_is_no_finding() -> None:
    # Another version or device is no finding.
    for changes in (
        {"cudnn": "91500"},
        {"cudnn": "90701"},
        {"cudnn": None},
        {"cudnn": "91002", "torch": "2.8.0"},
        {"cudnn": "91002", "torch": "2.10.0"},
        {"cudnn": "91002", "torch": "unknown"},
        {"cudnn": "91002", "device": "cpu"},
        {"cudnn": "91002", "device": None},
    ):
        assert findings(a_model(CONV3D, **changes)) == []

    # Another convolution or dtype is no finding.
    for node in (
        a_node("convolution", "aten.convolution.default", layout=VIDEO, dtype="float32"),
        a_node("convolution", "aten.convolution.default", layout=contiguous(), dtype="bfloat16"),
        a_node("relu", layout=VIDEO, dtype="bfloat16"),
    ):
        assert findings(a_model(node, cudnn="91002")) == []

    # Upsampling elsewhere or on a newer torch is no finding.
    for nodes, changes in (
        (UPSAMPLING, {"torch": "2.13.0"}),
        (UPSAMPLING, {"device": "cuda"}),
        (UPSAMPLING, {"decision": a_decision(applied=False)}),
        (UPSAMPLING[1:], {}),
        (UPSAMPLING[:-1], {}),
    ):
        fields: dict[str, Any] = {"decision": a_decision(), "torch": "2.7.1", "device": "cpu"}
        assert findings(a_model(*nodes, **{**fields, **changes})) == []

    # Of a GPU of NVIDIA, or where layout optimization was not applied, constants are no finding.
    small = a_convolution("conv", class_="small")
    for decision, torch in ((a_decision(small), "2.13.0+cu128"), (a_decision(small, applied=False), "2.13.0+rocm6.4")):
        assert findings(a_model(decision=decision, torch=torch)) == []

    # Padding without an output that differs or on a torch with the fix is no finding.
    assert findings(with_outputs("equal", "equal", PAD, torch="2.13.0")) == []
    assert findings(with_outputs("equal", "equal", PAD, torch="2.10.0", same=True)) == []
    assert findings(with_outputs("equal", "equal", torch="2.10.0")) == []


def test_which_facts_it_gives() -> None:
    # A conv3d with a kernel of one is not concerned.
    pointwise = a_decision(a_convolution("convolution", rank=3, weight_shape=(64, 64, 1, 1, 1)))
    patch = a_decision(a_convolution("convolution", rank=3, weight_shape=(64, 3, 2, 16, 16)))
    assert findings(a_model(CONV3D, decision=pointwise, cudnn="91002")) == []
    assert len(findings(a_model(CONV3D, decision=patch, cudnn="91002"))) == 1

    # Upsampling between convolutions is found through branches that meet again.
    branches = tuple(a_node(name, "aten.relu.default", ("convolution",)) for name in ("left", "right"))
    added = a_node("add", "aten.add.Tensor", ("left", "right"))
    up = a_node("up", "aten.upsample_bilinear2d.vec", ("add",))
    nodes = (UPSAMPLING[0], *branches, added, up, *UPSAMPLING[2:])
    assert len(findings(a_model(*nodes, decision=a_decision(), torch="2.7.1", device="cpu"))) == 1
    assert findings(a_model(*nodes[1:], decision=a_decision(), torch="2.7.1", device="cpu")) == []

    # As strided with wrong values under the compiler only is told.
    strided = a_node("as_strided", "aten.as_strided.default", ("x",))
    assert sources(with_outputs("equal", "different", strided, torch="2.11.0")) == ["pytorch #174963"]
    assert sources(with_outputs("different", "different", strided, torch="2.11.0")) == []
    assert sources(with_outputs("equal", "different", torch="2.11.0")) == []
    assert sources(with_outputs("equal", "different", strided, torch="2.13.0")) == []

    # Every entry names an issue or release note and says what to do.
    for fault in known_faults():
        assert "#" in fault.source
        assert fault.advice
        assert fault.is_of_cudnn or (fault.first_cudnn is None and fault.before_cudnn is None)

    # A version of torch is read without what was built.
    versions = {"2.9.1+cu128": "2.9.1", "2.13.0.dev20260514+cu130": "2.13.0.dev20260514", "2.6.0a0+git-x!": "2.6a0"}
    for text, version in versions.items():
        assert parse_torch(text) == Version(version)
    for text in ("main", "2", "20260514", "", None):
        assert parse_torch(text) is None

    # A version of cudnn is read with and without dots.
    versions = {"91002": "9.10.2", "91500": "9.15.0", "8907": "8.9.7", "9.10.2": "9.10.2"}
    for text, version in versions.items():
        assert parse_cudnn(text) == Version(version)
    for text in ("none", "", None):
        assert parse_cudnn(text) is None


UPSAMPLING = (
    a_node("convolution", "aten.convolution.default", ("x", "w")),
    a_node("up", "aten.upsample_bilinear2d.vec", ("convolution",), location=a_location(8)),
    a_node("relu", "aten.relu.default", ("up",)),
    a_node("convolution_1", "aten.convolution.default", ("relu", "w")),
)


PAD = a_node("pad", "aten.reflection_pad2d.default", ("x",), location=a_location(6))


def with_outputs(eager_status: Any, status: Any, *nodes: FxNode, torch: str, same: bool = False) -> Diagnosis:
    expected, returned = channels_last(), channels_last() if same else contiguous()
    trials: tuple[Trial, ...] = (
        a_trial(
            "eager",
            graphs=(a_graph(name="eager", nodes=nodes),),
            equivalence=Equivalence(status=eager_status, output_layouts=(expected,)),
        ),
        a_trial(equivalence=Equivalence(status=status, output_layouts=(returned,))),
    )
    return a_diagnosis(*trials, environment=an_environment(torch=torch))


def test_every_entry_fires_in_its_versions_and_in_no_other() -> None:
    strided = a_node("as_strided", "aten.as_strided.default", ("x",))
    added = a_node("index_put", "aten.index_put_.default", ("x",))
    failed = a_failed_trial("inductor-layout-opt-forced", "AssertionError: expected stride 1==512")
    half = a_node("conv", "aten.convolution.default", dtype="bfloat16", module="stem")
    depthwise = a_decision(a_convolution("conv1d", rank=1, groups=768, weight_shape=(768, 1, 31)))
    large = a_decision(a_convolution("conv", weight_shape=(1, 1, 51, 51)))
    grouped = a_decision(a_convolution("conv", class_="grouped", groups=32))
    product = a_node("mm", "aten.mm.default", dtype="float16")
    reference = a_kernel("matmul", implementation="ref:any", node="mm")
    fallback = a_kernel("aten::slow_conv_dilated2d", library="aten", node="conv")
    trials = {
        "half_precision_conv3d": [with_nodes(CONV3D)],
        "upsampling_between_convolutions": [with_nodes(*UPSAMPLING, decision=a_decision())],
        "strides_lost_in_decomposition": list(with_outputs("equal", "equal", PAD, torch="").trials),
        "as_strided_with_other_values": list(with_outputs("equal", "different", strided, torch="").trials),
        "scatter_with_other_values": list(with_outputs("equal", "different", added, torch="").trials),
        "forced_trial_failed": [failed],
        "training_with_layout_optimization": [with_nodes(decision=a_decision())],
        "depthwise_conv1d_in_half_precision": [with_nodes(a_node("conv1d", dtype="float16"), decision=depthwise)],
        "large_kernel_without_benchmark": [with_nodes(decision=large)],
        "small_or_grouped_on_rocm": [with_nodes(decision=grouped)],
        "bfloat16_convolution_in_fallback": [with_nodes(half, ran=fallback)],
        "half_precision_product_in_reference": [with_nodes(product, ran=reference)],
    }
    for fault in known_faults():

        def fired(torch: str, fault: Any = fault) -> bool:
            environment = an_environment(torch=f"{torch}+rocm6.4", cudnn=fault.first_cudnn)
            subject = a_subject(device=fault.device or "cpu", mode="training")
            diagnosis = a_diagnosis(*trials[fault.look], environment=environment, subject=subject)
            return any(
                fault.what in finding.message and fault.source in finding.evidence for finding in LD301.check(diagnosis)
            )

        assert fired(fault.first_torch or "2.7.1"), fault.source
        assert fault.before_torch is None or not fired(fault.before_torch), fault.source
        assert fault.first_torch is None or not fired("2.3.1"), fault.source
    assert trials.keys() == {fault.look for fault in known_faults()}


def with_nodes(*nodes: FxNode, decision: Any = None, ran: Any = None) -> Trial:
    seen = kernels(kernels=(ran,)) if ran is not None else None
    return a_trial(graphs=(a_graph(decision, nodes=nodes),), kernels=seen)


def test_what_it_says(told: Told) -> None:
    told("A half precision conv3d on torch 2 9 without a new cudnn is told", findings(a_model(CONV3D, cudnn="91002")))
    found = findings(with_outputs("equal", "equal", PAD, torch="2.13.0.dev20260514"))
    told("Strides lost when padding is decomposed are told where an output shows it", found)

    message = "AssertionError: expected size 512==512, stride 1==512 at dim=0"
    failed = a_failed_trial("inductor-layout-opt-forced", message)
    told("A forced configuration that fails on a stride assertion is a note", findings(a_diagnosis(failed)))
    assert findings(a_diagnosis(a_failed_trial("inductor-layout-opt-forced", "RuntimeError: boom"))) == []
    assert findings(a_diagnosis(a_failed_trial("inductor", message))) == []
