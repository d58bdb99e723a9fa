"""
The casebook's known false alarms, one by one: what looks like a layout problem and is none.

Flagged means a finding above a note, or a conversion or pair in the record where no layout changes without need. What
compares measured times, and what oneDNN really converts inside a contiguous convolution, is no matter of this file.
Beside each silence stands a case that is told, so that the test would see a tool that says nothing at all.
"""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING, Any

import pytest
import torch
from builders import (
    a_breaker,
    a_comparison,
    a_conversion,
    a_convolution,
    a_decision,
    a_diagnosis,
    a_graph,
    a_kernel,
    a_node,
    a_pair,
    a_placeholder,
    a_ratio,
    a_recommendation,
    a_speedup,
    a_subject,
    a_trial,
    blocked,
    channels_last,
    contiguous,
    kernels,
)
from torch import Tensor, nn
from torch.nn import functional

import layoutdoctor
from layoutdoctor.diagnosis.layout import strided_layout
from layoutdoctor.diagnosis.records import Equivalence
from layoutdoctor.examination.graphs.round_trips import redundant_pairs
from layoutdoctor.examination.kernels.names import KernelEntry, kernel_entry
from layoutdoctor.rules import run_rules

if TYPE_CHECKING:
    from collections.abc import Sequence

    from layoutdoctor.diagnosis.records import Conversion, Diagnosis, Finding, Kernel, Mode, Trial

pytestmark = pytest.mark.compile

# Whether these are told, and how severe, depends on what was measured in this run.
BY_TIME = frozenset({"LD103", "LD203", "LD204", "LD205", "LD303", "LD304", "LD401", "LD403"})
CUDA = {"device": "cuda"}


@cache
def diagnosed(
    model: type[nn.Module], shape: tuple[int, ...], configurations: str, mode: Mode = "inference"
) -> Diagnosis:
    """One diagnosis per model, input, configurations (separated by spaces) and mode, for all tests of this file."""
    torch.manual_seed(0)
    x = torch.randn(shape)
    return layoutdoctor.diagnose(model(), x, mode=mode, configurations=configurations.split(), budget_seconds=0.1)


def trial_of(diagnosis: Diagnosis, name: str) -> Trial:
    trial = diagnosis.measured_trial(name)
    assert trial is not None
    assert trial.status == "ok", trial.failure
    assert all(graph.hook_failure is None for graph in trial.graphs)
    assert any(graph.nodes for graph in trial.graphs)  # there was something to look at
    return trial


def in_graphs(diagnosis: Diagnosis, *names: str) -> list[Conversion]:
    trials = [trial_of(diagnosis, name) for name in names or [trial.name for trial in diagnosis.trials]]
    return [c for trial in trials for graph in trial.graphs for c in graph.conversions]


def described(conversions: Sequence[Conversion]) -> list[tuple[Any, ...]]:
    """What a failure should show of a conversion."""
    return [
        (
            c.graph,
            c.op,
            c.node,
            c.tensor,
            c.role,
            c.direction,
            c.source and c.source.stride,
            c.target and c.target.stride,
        )
        for c in conversions
    ]


def above_note(diagnosis: Diagnosis) -> list[Finding]:
    return [f for f in diagnosis.findings if f.severity != "note" and f.code not in BY_TIME]


def flags(diagnosis: Diagnosis) -> list[tuple[Any, ...]]:
    """Findings above a note, conversions that graphs claim, breakers and the pairs that graphs prove."""
    graphs = [graph for trial in diagnosis.trials for graph in trial.graphs]
    pairs = [p for trial in diagnosis.trials for p in trial.redundant_pairs if p.evidence == "graph"]
    return [
        *((f.code, f.configuration, f.message) for f in above_note(diagnosis)),
        *described(in_graphs(diagnosis)),
        *((b.op, b.node, b.reason) for graph in graphs for b in graph.breakers),
        *((p.first, p.second, p.between) for p in pairs),
    ]


def judged(*trials: Trial, **changes: Any) -> dict[str, str]:
    """Severities by code that today's rules give to a record."""
    return {f.code: f.severity for f in run_rules(a_diagnosis(*trials, **changes))}


def large_strides(conversion: Conversion) -> tuple[list[Any], list[Any]]:
    """Strides of the dimensions larger than 1, before and after."""
    found: list[list[Any]] = []
    for layout in (conversion.source, conversion.target):
        assert layout is not None
        assert layout.stride is not None
        found.append([step for size, step in zip(layout.shape, layout.stride, strict=True) if size != 1])
    return found[0], found[1]


# 1


class SqueezeAndAttend(nn.Module):
    """A squeeze-and-excitation block on [N, C, 1, 1], and a map of one channel that weighs the pixels."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, 16, 3, padding=1)
        self.down, self.up = nn.Conv2d(16, 8, 1), nn.Conv2d(8, 16, 1)
        self.map, self.smooth = nn.Conv2d(16, 1, 3, padding=1), nn.Conv2d(1, 1, 3, padding=1)

    def forward(self, x: Tensor) -> Tensor:
        x = torch.relu(self.stem(x))
        squeezed = functional.adaptive_avg_pool2d(x, 1)  # [N, C, 1, 1]
        x = x * torch.sigmoid(self.up(torch.relu(self.down(squeezed))))
        return x * torch.sigmoid(self.smooth(self.map(x)))  # [N, 1, H, W]


@pytest.mark.parametrize("mode", ["inference", "training"])
def test_01_dimensions_of_size_1_make_no_conversion(mode: Mode) -> None:
    names = "eager-channels-last inductor" if mode == "inference" else "eager-channels-last"
    diagnosis = diagnosed(SqueezeAndAttend, (2, 3, 16, 16), names, mode)
    found = [c for c in in_graphs(diagnosis) if c.source is not None]
    nominal = [c for c in found if large_strides(c)[0] == large_strides(c)[1]]
    ambiguous = [c for c in found if c.source is not None and len(c.source.memory_formats) > 1]

    assert described(nominal) == []
    assert described(ambiguous) == []
    assert above_note(diagnosis) == []
    if mode == "inference":
        assert [c.module for c in found if c.role == "entry"] == ["stem"]  # a real one is seen


def test_01_gradients_of_1x1_weights_are_told_as_a_note_at_most() -> None:
    diagnosis = diagnosed(SqueezeAndAttend, (2, 3, 16, 16), "eager-channels-last", "training")

    assert {f.severity for f in diagnosis.findings if f.code == "LD504"} <= {"note"}
    for trial in diagnosis.trials:
        real = [
            e.parameter
            for e in trial.gradient_layouts
            if not set(e.layout.memory_formats) & set(e.gradient.memory_formats)
        ]
        assert real == [], trial.name


# 2, 3, 4


class TwoConvolutions(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = nn.Conv2d(3, 16, 3, padding=1), nn.Conv2d(16, 16, 3, padding=1)

    def forward(self, x: Tensor) -> Tensor:
        return torch.relu(self.b(torch.relu(self.a(x))))


def two_convolutions() -> Diagnosis:
    return diagnosed(TwoConvolutions, (2, 3, 16, 16), "inductor")


def test_02_one_conversion_in_and_one_out_are_a_note() -> None:
    diagnosis = two_convolutions()
    activations = [c for c in in_graphs(diagnosis) if c.tensor == "activation"]

    assert [c.role for c in activations] == ["entry", "exit"]
    assert [f.severity for f in diagnosis.findings if f.code == "LD105"] == ["note"]
    assert above_note(diagnosis) == []


def test_03_the_way_back_to_eagers_output_strides_has_its_reason_and_is_no_loss() -> None:
    diagnosis = two_convolutions()
    (exit_,) = [c for c in in_graphs(diagnosis) if c.role == "exit"]
    trial = trial_of(diagnosis, "inductor")

    assert (exit_.direction, exit_.tensor) == ("to_contiguous", "activation")
    assert "keep_output_stride" in str(exit_.cause)
    assert trial.equivalence is not None
    assert trial.equivalence.output_layouts_differ is False
    assert {f.code for f in diagnosis.findings}.isdisjoint({"LD101", "LD104", "LD209"})


def test_04_weights_are_told_apart_from_the_activation_in_the_same_kernel_and_are_in_no_pair() -> None:
    trial = trial_of(two_convolutions(), "inductor")
    found = [c for graph in trial.graphs for c in graph.conversions]
    weights = [c for c in found if c.tensor == "weight"]
    (entry,) = [c for c in found if c.role == "entry"]

    assert [(c.module, c.source and c.source.shape, c.role) for c in weights] == [
        ("a", (16, 3, 3, 3), None),
        ("b", (16, 16, 3, 3), None),
    ]
    assert weights[0].kernel == entry.kernel
    assert len({entry.value, *(c.value for c in weights)}) == 3
    assert trial.redundant_pairs == ()


def test_04_a_weight_that_is_converted_there_and_back_is_no_pair() -> None:
    shape = (32, 32, 3, 3)
    graph = a_graph(
        nodes=(
            a_placeholder("x"),
            a_placeholder("w", contiguous(shape), tensor="weight"),
            a_node("a", "aten.convolution.default", ("x", "w")),
            a_node("b", "aten.convolution.default", ("a", "w")),
        ),
        output_names=("b",),
    )
    there = {"source": contiguous(shape), "target": blocked(shape, "ABcd16b16a"), "direction": "to_blocked"}
    back = {"source": there["target"], "target": there["source"], "direction": "from_blocked"}
    weights = (
        a_conversion("w to a", node="a", port="input 1", graph=graph.name, tensor="weight", **there),
        a_conversion("w back", node="a", port="output 1", graph=graph.name, tensor="gradient", **back),
        a_conversion("w to b", node="b", port="input 1", graph=graph.name, tensor="weight", **there),
    )
    values = (
        a_conversion("out of a", node="a", port="output 0", graph=graph.name),
        a_conversion(
            "into b",
            node="b",
            port="input 0",
            graph=graph.name,
            source=contiguous(),
            target=blocked(),
            direction="to_blocked",
        ),
    )

    assert redundant_pairs([graph], weights) == ()
    assert [(p.first, p.second) for p in redundant_pairs([graph], (*weights, *values))] == [("out of a", "into b")]


# 5, 6


def conversion_kernel(name: str) -> KernelEntry | None:
    """The dictionary's entry, where the name proves a conversion."""
    found = kernel_entry(name)
    return found.entry if found is not None and found.is_certain and found.entry.role == "conversion" else None


def cudnn_conversion(id: str, name: str, node: str, port: str, seconds: float) -> Conversion:
    known = conversion_kernel(name)
    assert known is not None
    formats = (contiguous(), channels_last())
    source, target = formats if known.direction == "to_channels_last" else reversed(formats)
    return a_conversion(
        id,
        kernel=name,
        op="aten::cudnn_convolution",
        node=node,
        port=port,
        graph="graph 0",
        source=source,
        target=target,
        direction=known.direction,
        seconds=seconds,
    )


def with_cudnn_conversions(channels_last_ratio: float) -> dict[str, str]:
    """Two convolutions that cuDNN runs in NHWC, a ReLU between; the ratio is that of the whole in channels_last."""
    prefix = "void cudnn::ops::"
    found = (
        cudnn_conversion("k0", f"{prefix}nchwToNhwcKernel<float>", "a", "input 0", 11e-6),
        cudnn_conversion("k1", f"{prefix}nhwcToNchwKernel<float>", "a", "output 0", 11e-6),
        cudnn_conversion("k2", f"{prefix}nchwToNhwcKernel<float>", "b", "input 0", 11e-6),
        cudnn_conversion("k3", f"{prefix}nhwcToNchwKernel<float>", "b", "output 0", 11e-6),
    )
    graph = a_graph(
        a_decision(
            a_convolution("a", channels_last=False),
            a_convolution("b", channels_last=False),
            applied=False,
            rule="config-off",
        ),
        nodes=(
            a_placeholder("x"),
            a_placeholder("w", contiguous((64, 64, 3, 3)), tensor="weight"),
            a_node("a", "aten.convolution.default", ("x", "w")),
            a_node("r", "aten.relu.default", ("a",)),
            a_node("b", "aten.convolution.default", ("r", "w")),
        ),
        output_names=("b",),
    )
    pairs = redundant_pairs([graph], found)
    assert [(pair.first, pair.second) for pair in pairs] == [("k1", "k2")]
    name = "inductor-channels-last"
    faster = channels_last_ratio > 1
    return judged(
        a_trial(graphs=(graph,), kernels=kernels(*found, seconds=124e-6), redundant_pairs=pairs),
        a_trial(name, kernels=kernels(seconds=124e-6 / channels_last_ratio)),
        subject=a_subject(**CUDA),
        comparison=a_comparison(a_ratio(name, channels_last_ratio), fastest=(name,) if faster else ("inductor",)),
        recommendation=a_recommendation(name, speedup=a_speedup(channels_last_ratio), verified=True)
        if faster
        else a_recommendation(),
    )


def test_05_cudnns_own_conversions_are_no_loss_where_the_whole_is_faster_with_them() -> None:
    assert {code for code, severity in with_cudnn_conversions(0.8).items() if severity != "note"} == set()
    assert {code for code, severity in with_cudnn_conversions(1.3).items() if severity != "note"} >= {"LD101", "LD205"}


def test_06_transposes_around_a_solver_that_has_one_layout_only_are_no_round_trip() -> None:
    cnhw = strided_layout((4, 64, 56, 56), (3136, 12544, 56, 1))
    names = ("transpose_NCHW2CNHW_V2", "transpose_CNHW2NCHW_V2")
    there, back = (conversion_kernel(name) for name in names)
    assert there is not None
    assert back is not None
    graph = a_graph(
        nodes=(
            a_placeholder("x"),
            a_placeholder("w", contiguous((64, 64, 3, 3)), tensor="weight"),
            a_node("a", "aten.convolution.default", ("x", "w")),
        ),
        output_names=("a",),
    )
    common = {"op": "aten::miopen_convolution", "node": "a", "graph": graph.name, "seconds": 40e-6}
    around = (
        a_conversion(
            "k0", kernel=names[0], port="input 0", source=contiguous(), target=cnhw, direction=there.direction, **common
        ),
        a_conversion(
            "k1", kernel=names[1], port="output 0", source=cnhw, target=contiguous(), direction=back.direction, **common
        ),
    )
    pairs = redundant_pairs([graph], around)
    trial = a_trial(graphs=(graph,), kernels=kernels(*around, seconds=400e-6), redundant_pairs=pairs)

    assert pairs == ()
    assert {c for c, s in judged(trial, subject=a_subject(**CUDA)).items() if s != "note"} == set()
    claimed = a_trial(graphs=(graph,), kernels=kernels(*around, seconds=400e-6), redundant_pairs=(a_pair("k0", "k1"),))
    assert judged(claimed, subject=a_subject(**CUDA))["LD101"] == "warning"  # it would be seen


# 7


class MovesOnly(nn.Module):
    """Operations that load and store and compute nothing; each result is an output, so that each has a kernel."""

    def __init__(self) -> None:
        super().__init__()
        self.words = nn.Embedding(11, 8)

    def forward(self, x: Tensor) -> tuple[Tensor, ...]:
        indices = torch.arange(8, device=x.device)
        return (
            functional.pad(x, (1, 1, 1, 1), mode="reflect"),
            functional.pad(x, (1, 2, 1, 2)),
            torch.cat([x, x], 1),
            torch.roll(x, 1, 2),
            x[:, :, 1:, ::2].clone(),
            x.repeat(1, 2, 1, 1),
            x[:, :1].expand(-1, 4, -1, -1).clone(),
            functional.channel_shuffle(x, 2),
            self.words(indices),
            torch.flip(x, (3,)),
        )


class MovesOnlyThatKeepChannelsLast(nn.Module):
    def forward(self, x: Tensor) -> tuple[Tensor, ...]:
        return (
            functional.pad(x, (1, 1, 1, 1), mode="reflect"),
            functional.pad(x, (1, 2, 1, 2)),
            torch.cat([x, x.clone()], 1),  # of one tensor twice, Inductor 2.13 makes a contiguous repeat
            torch.roll(x, 1, 2),
            x[:, :, 1:, ::2].clone(),
        )


def test_07_kernels_that_only_move_elements_convert_no_layout() -> None:
    diagnosis = diagnosed(MovesOnly, (2, 8, 6, 6), "eager inductor")

    assert len(trial_of(diagnosis, "inductor").graphs[0].kernel_names) >= 1
    assert flags(diagnosis) == []


def test_07_nor_do_they_on_channels_last_tensors() -> None:
    diagnosis = diagnosed(MovesOnlyThatKeepChannelsLast, (2, 8, 6, 6), "eager-channels-last inductor-channels-last")

    assert flags(diagnosis) == []
    for trial in diagnosis.trials:
        assert trial.equivalence is not None
        assert {layout.memory_formats for layout in trial.equivalence.output_layouts} == {("channels_last",)}


class Transposes(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x.permute(0, 2, 3, 1).contiguous()


def test_07_a_copy_that_changes_the_order_of_the_dimensions_is_seen() -> None:
    diagnosis = diagnosed(Transposes, (2, 8, 6, 6), "eager inductor")

    assert len(in_graphs(diagnosis, "eager")) == 1
    assert len(in_graphs(diagnosis, "inductor")) == 1


# 8


class CopiesOfManyKinds(nn.Module):
    """Bias broadcasts, casts, accumulated gradients, and updates in place as an optimizer makes them."""

    mean: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(16, 16), nn.Linear(16, 16)
        self.scale = nn.Parameter(torch.ones(2, 4, 8, 16))
        self.register_buffer("mean", torch.zeros(2, 4, 8, 16))

    def forward(self, x: Tensor) -> Tensor:
        with torch.autocast("cpu", torch.bfloat16):
            y = self.second(self.first(x).relu())
        y = self.first(y.float())  # the same weight again: its gradients are added up
        z = (y.to(torch.float16) * self.scale.to(torch.float16)).to(torch.float32)
        with torch.no_grad():
            self.mean.copy_(self.mean * 0.9 + z.detach() * 0.1)
            self.mean.lerp_(z.detach(), 0.5)
        return z + self.scale


def test_08_copies_for_bias_casts_accumulation_and_updates_are_no_conversions() -> None:
    diagnosis = diagnosed(CopiesOfManyKinds, (2, 4, 8, 16), "eager", "training")
    called = {node.target for node in trial_of(diagnosis, "eager").graphs[0].nodes}

    assert {"aten.addmm.default", "aten._to_copy.default", "aten.copy_.default"} <= called
    assert flags(diagnosis) == []


# 9


class Tokens(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x.flatten(2).transpose(1, 2)  # [N, C, H, W] -> [N, HW, C]


class ContiguousTokens(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x.flatten(2).transpose(1, 2).contiguous()


FORMATS = "eager eager-channels-last inductor inductor-channels-last"


def test_09_flatten_and_transpose_are_views_in_both_formats() -> None:
    assert flags(diagnosed(Tokens, (2, 8, 6, 6), FORMATS)) == []


def test_09_made_contiguous_they_are_a_copy_in_the_contiguous_format_only() -> None:
    diagnosis = diagnosed(ContiguousTokens, (2, 8, 6, 6), FORMATS)

    assert [len(in_graphs(diagnosis, name)) for name in FORMATS.split()] == [1, 0, 1, 0]
    assert in_graphs(diagnosis, "eager")[0].owner == "user"
    assert above_note(diagnosis) == []


# 10


class SequenceConvolution(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv1d(16, 16, 3, padding=1)

    def forward(self, x: Tensor) -> Tensor:
        return self.conv(x.transpose(1, 2))  # [B, T, C] -> [B, C, T]


def test_10_the_copy_of_a_sequence_for_conv1d_is_needed() -> None:
    diagnosis = diagnosed(SequenceConvolution, (2, 32, 16), "eager inductor")

    assert above_note(diagnosis) == []
    assert {f.code for f in diagnosis.findings}.isdisjoint({"LD101", "LD102", "LD104", "LD105", "LD201"})
    (told,) = [f.message for f in diagnosis.findings if f.code == "LD210"]
    assert "needed by the kernel, and eager makes it too: not redundant" in told
    assert all(trial.redundant_pairs == () for trial in diagnosis.trials)


# 11


class NormalizedByGroup(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.a, self.norm, self.b = nn.Conv2d(8, 16, 3), nn.GroupNorm(4, 16), nn.Conv2d(16, 8, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.b(torch.relu(self.norm(self.a(x))))


def test_11_group_norm_on_channels_last_reduces_with_strides_and_converts_nothing() -> None:
    diagnosis = diagnosed(NormalizedByGroup, (2, 8, 16, 16), "eager-channels-last inductor-channels-last")

    assert flags(diagnosis) == []


# 12


class SlowConvolution(nn.Module):
    """Below oneDNN's least size at batch 1: ATen's own slow_conv3d, which unfolds the volume."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv3d(2, 4, 3, padding=1)

    def forward(self, x: Tensor) -> Tensor:
        return torch.relu(self.conv(x))


def test_12_a_fallback_convolution_is_no_conversion() -> None:
    diagnosis = diagnosed(SlowConvolution, (1, 2, 4, 6, 6), "eager inductor")
    eager = trial_of(diagnosis, "eager")

    assert eager.kernels is not None
    assert [k.name for k in eager.kernels.kernels if k.library == "onednn"] == []  # it really is the fallback
    assert eager.kernels.conversion_count == 0
    assert flags(diagnosis) == []


def fallback(seconds: float) -> Kernel:
    return a_kernel("slow_conv3d_forward", seconds, library="aten")


def test_12_however_long_it_takes() -> None:
    trial = a_trial(kernels=kernels(seconds=1.0, kernels=(fallback(0.99), fallback(0.01)), count=2))

    assert judged(trial) == {}
    assert conversion_kernel("slow_conv3d_forward") is None
    assert conversion_kernel("void at::native::vol2col_kernel<float>") is None
    assert conversion_kernel("naive_conv_fwd_nhwc") is None


# 13


def test_13_small_differences_between_formats_are_no_fault() -> None:
    diagnosis = diagnosed(TwoConvolutions, (2, 3, 16, 16), "eager eager-channels-last")
    checked = [trial.equivalence for trial in diagnosis.trials]

    assert [c and c.status for c in checked] == ["equal", "equal"]
    assert all(c is not None and c.max_abs_error is not None and c.max_abs_error > 0 for c in checked)
    assert [f for f in diagnosis.findings if f.code == "LD402"] == []


def test_13_large_ones_are() -> None:
    different = Equivalence(status="different", max_abs_error=0.5, tolerance=1e-4, reference="float64")

    assert judged(a_trial(equivalence=different))["LD402"] in ("warning", "error")


# 14


def vetoed(rule: str, forced: float | None) -> dict[str, str]:
    decision = a_decision(
        a_convolution("a", channels_last=False),
        a_convolution("b", class_="grouped", groups=4, channels_last=False),
        applied=False,
        rule=rule,
        deciding_nodes=("b",),
    )
    name = "inductor-layout-opt-forced"
    trials = (a_trial(graphs=(a_graph(decision),)), *([a_trial(name)] if forced is not None else []))
    return judged(*trials, comparison=None if forced is None else a_comparison(a_ratio(name, forced)))


@pytest.mark.parametrize(
    ("rule", "code"),
    [
        ("grouped-convolution", "LD207"),
        ("smaller-out-channels", "LD207"),
        ("small-channels", "LD202"),
        ("dynamic-shape", "LD208"),
    ],
)
def test_14_a_veto_is_a_note_unless_going_around_it_was_measured_to_be_faster(rule: str, code: str) -> None:
    assert vetoed(rule, None) == {code: "note"}
    assert vetoed(rule, 0.05)[code] == "note"
    assert vetoed(rule, 1.0)[code] == "note"
    assert vetoed(rule, 1.4)[code] == "warning"


# 15


def tiny(seconds: float) -> dict[str, str]:
    """A round trip in the library, one in the graph's own kernels, and a breaker, in 15 ms of kernels."""
    ids = ("reorder 0", "reorder 1")
    found = tuple(a_conversion(id, seconds=seconds / 2) for id in ids)
    graph = a_graph(
        conversions=(
            a_conversion(
                "c0",
                owner="compiler",
                seconds=seconds,
                source=channels_last(),
                target=contiguous(),
                direction="to_contiguous",
            ),
        ),
        breakers=(a_breaker(conversions=("c0",), seconds=seconds),),
    )
    pair = a_pair(*ids, seconds=seconds)
    return judged(a_trial(graphs=(graph,), kernels=kernels(*found, seconds=15e-3), redundant_pairs=(pair,)))


def test_15_conversions_below_2_percent_of_the_time_are_notes() -> None:
    assert tiny(0.019 * 15e-3) == {"LD101": "note", "LD104": "note"}
    assert tiny(0.021 * 15e-3) == {"LD101": "warning", "LD104": "warning"}


# 16


class ClonesAndMutates(nn.Module):
    def forward(self, x: Tensor) -> tuple[Tensor, ...]:
        y = x.clone()
        y.mul_(2)
        x.add_(1)
        y[:, :2].copy_(x[:, 2:4])
        return y, y[:, 1:], x, x.detach().clone()


def test_16_clones_for_aliases_and_mutation_are_no_conversions() -> None:
    diagnosis = diagnosed(ClonesAndMutates, (2, 8, 6, 6), FORMATS)

    assert flags(diagnosis) == []


# 17


def test_17_float32_that_gains_nothing_from_channels_last_is_no_finding() -> None:
    names = ("inductor-channels-last", "eager-channels-last")
    graph = a_graph(a_decision(a_convolution(), a_convolution("b")))
    trials = (a_trial("eager"), a_trial(graphs=(graph,)), *(a_trial(name) for name in names))

    def above(median: float) -> set[str]:
        ratios = (a_ratio("eager", 0.9), *(a_ratio(name, median) for name in names))
        found = judged(*trials, subject=a_subject(**CUDA), comparison=a_comparison(*ratios))
        return {code for code, severity in found.items() if severity != "note"}

    assert above(0.7) == set()
    assert above(1.0) == set()
    assert above(1.3) == {"LD203", "LD205"}


# Not in the casebook's list


class Classifier(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv, self.pool, self.head = nn.Conv2d(3, 16, 3, padding=1), nn.AdaptiveAvgPool2d(2), nn.Linear(64, 10)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(torch.flatten(self.pool(torch.relu(self.conv(x))), 1))


def test_a_classifiers_flatten_is_no_breaker_since_nobody_converts_back() -> None:
    diagnosis = diagnosed(Classifier, (2, 3, 16, 16), "eager-channels-last")

    assert len(in_graphs(diagnosis)) == 1  # flatten does copy
    assert [(b.op, b.reason) for b in trial_of(diagnosis, "eager-channels-last").graphs[0].breakers] == []
    assert [f.message for f in diagnosis.findings if f.code == "LD104"] == []
