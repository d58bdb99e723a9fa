"""The known faults of torch, cuDNN and oneDNN that LD301 reports, each with the function that looks for it."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass
from datetime import date

from layoutdoctor.diagnosis import Convolution, Diagnosis, FxNode, Graph, Kernel, Severity, Trial
from layoutdoctor.examination.advice.choice import is_far_off
from layoutdoctor.examination.graphs.layout_agnostic import base_name
from layoutdoctor.rules import evidence
from layoutdoctor.rules.advice import Times
from layoutdoctor.rules.base import Placed
from layoutdoctor.rules.evidence import eager_of_same_formats, runs_convolution
from layoutdoctor.rules.outputs import output_changes
from layoutdoctor.words import count_of, layout_words, op_words, shape_words, shown


@dataclass(frozen=True)
class Sighting:
    """An occurrence of a fault in a diagnosis: its description, its configuration and its place."""

    words: str
    configuration: str
    at: Placed | None = None


Look = Callable[[Diagnosis], Iterator[Sighting]]
"""Function that looks for a fault in a diagnosis. It does not compare versions."""


@dataclass(frozen=True, kw_only=True)
class Fault:
    """
    One known fault; an instance decorates the function that looks for the fault.

    Attributes:
        what: Description of the fault; findings print it behind the versions.
        read: Day on which the source was read last.
        severity: Severity of the finding; ``note`` if the diagnosis cannot show the loss itself.
        device: Type of the device that the fault needs; None for any.
        first_torch: First torch with the fault; ``dev0`` includes its nightlies. None if all older versions have it.
        before_torch: First torch without the fault; ``dev0`` includes its nightlies. None if no such torch is known.
        first_cudnn: First cuDNN with the fault; None if the version of cuDNN does not matter.
    """

    what: str
    advice: str
    source: str
    read: date
    severity: Severity = "warning"
    device: str | None = None
    first_torch: str | None = None
    before_torch: str | None = None
    first_cudnn: str | None = None
    before_cudnn: str | None = None

    def __call__(self, look: Look) -> Look:
        """Adds the fault, with the function that looks for it, to the known faults."""
        KNOWN_FAULTS[self] = look
        return look


KNOWN_FAULTS: dict[Fault, Look] = {}
"""All known faults, each with the function that looks for it."""


def _nodes(diagnosis: Diagnosis) -> Iterator[tuple[Trial, Graph, FxNode]]:
    for trial in evidence.own_trials(diagnosis):
        yield from ((trial, graph, node) for graph in trial.graphs for node in graph.nodes)


def _convolutions(diagnosis: Diagnosis) -> Iterator[tuple[Trial, Graph, Convolution]]:
    for trial in evidence.own_trials(diagnosis):
        for graph in trial.graphs:
            yield from ((trial, graph, c) for c in evidence.convolutions_of([graph]))


def _calls(diagnosis: Diagnosis, names: Collection[str]) -> Iterator[tuple[Trial, FxNode]]:
    for trial, _, node in _nodes(diagnosis):
        if base_name(node.target) in names or node.called in names:
            yield trial, node


_HALF = ("bfloat16", "float16")


@Fault(
    what="a bfloat16 or float16 Conv3d may compute wrong values without an error, as reported for 1x16x124x1282x722",
    advice="compare with float32; use torch 2.9.1 or later with the package nvidia-cudnn 9.15 or later",
    source="pytorch #163539, PR #163581, PR #166480",
    read=date(2026, 11, 27),
    severity="note",
    device="cuda",
    before_torch="2.9.0.dev0",
    first_cudnn="9.8.0",
    before_cudnn="9.15.0",
)
@Fault(
    what="a bfloat16 or float16 Conv3d runs without cuDNN, in a fallback that takes several times the memory and time",
    advice="install the package nvidia-cudnn 9.15 or later, as the release notes of torch 2.9.1 say",
    source="pytorch 2.9.1 release notes, #166643, #168167",
    read=date(2026, 11, 22),
    device="cuda",
    first_torch="2.9.1.dev0",
    before_torch="2.10.0.dev0",
    first_cudnn="9.8.0",
    before_cudnn="9.15.0",
)
@Fault(
    what="a bfloat16 or float16 Conv3d runs without cuDNN, in a fallback that takes several times the memory and time",
    advice="use torch 2.9.1 or later with the package nvidia-cudnn 9.15 or later",
    source="pytorch #166643, #163581",
    read=date(2026, 11, 22),
    device="cuda",
    first_torch="2.9.0.dev0",
    before_torch="2.9.1.dev0",
    first_cudnn="9.8.0",
)
def half_precision_conv3d(diagnosis: Diagnosis) -> Iterator[Sighting]:
    """Finds a 3-D convolution in bfloat16 or float16 whose kernel is larger than 1, or not recorded."""
    for trial, graph, node in _nodes(diagnosis):
        is_3d = node.layout is not None and len(node.layout.shape) == 5
        if runs_convolution(node) and is_3d and node.dtype in _HALF:
            weight = {c.node: c.weight_shape for c in evidence.convolutions_of([graph])}.get(node.name)
            if weight is None or any(size != 1 for size in weight[2:]):
                yield Sighting(f"{node.module or node.name}, a Conv3d in {node.dtype}", trial.name, node)


_UPSAMPLING = frozenset({"upsample_bilinear2d", "_upsample_bilinear2d_aa", "upsample_bicubic2d"})


@Fault(
    what="upsampling between two convolutions returns contiguous, and its result is converted back for the second",
    advice="use a torch with PR #169260 (2.11 or later), or measure channels_last input",
    source="pytorch #119181, PR #169260",
    read=date(2026, 11, 21),
    severity="note",
    device="cpu",
    before_torch="2.11.0.dev0",
)
def upsampling_between_convolutions(diagnosis: Diagnosis) -> Iterator[Sighting]:
    """Finds bilinear or bicubic upsampling between convolutions, if the baseline has layout optimization on."""
    main = evidence.main_trial(diagnosis)
    if main is None or not any(card.applied for card in main.decisions):
        return
    for graph in main.graphs:
        for node in graph.nodes:
            if base_name(node.target) in _UPSAMPLING and not node.backward and _is_between_convolutions(node, graph):
                yield Sighting(f"{base_name(node.target)} between two convolutions", main.name, node)


def _is_between_convolutions(node: FxNode, graph: Graph) -> bool:
    above, below = {node.name}, {node.name}
    for other in reversed(graph.nodes):  # a node comes after all nodes that it reads
        if other.name in above:
            above.update(other.inputs)
    for other in graph.nodes:
        if not below.isdisjoint(other.inputs):
            below.add(other.name)
    convolutions = {other.name for other in graph.nodes if runs_convolution(other)}
    return not convolutions.isdisjoint(above) and not convolutions.isdisjoint(below)


_STRIDE_LOSING = frozenset(
    """
    reflection_pad2d reflection_pad3d replication_pad2d replication_pad3d upsample_nearest2d upsample_nearest3d
    _upsample_nearest_exact2d _upsample_nearest_exact3d
    """.split()
)


@Fault(
    what="non-constant padding and nearest upsampling lose channels-last when decomposed",
    advice="use torch 2.13 or later, or convert the output for its readers",
    source="pytorch #179442, #183770, #183771",
    read=date(2026, 11, 21),
    before_torch="2.13.0",
)
def strides_lost_in_decomposition(diagnosis: Diagnosis) -> Iterator[Sighting]:
    """Finds an output with other strides than eager's, in a model with non-constant padding or nearest upsampling."""
    for change in output_changes(diagnosis):
        for _, node in _calls(diagnosis, _STRIDE_LOSING):
            words = (
                f"output {change.number} is {layout_words(change.returned)} under {shown(change.trial.name)}, "
                f"{layout_words(change.expected)} in eager ({base_name(node.target)})"
            )
            yield Sighting(words, change.trial.name, node)


@Fault(
    what="as_strided reads other elements than in eager if the compiler gives its input another layout",
    advice="use torch 2.13 or later, or replace as_strided by indexing",
    source="pytorch #174963",
    read=date(2026, 11, 21),
    severity="error",
    before_torch="2.13.0",
)
def as_strided_with_other_values(diagnosis: Diagnosis) -> Iterator[Sighting]:
    """Finds wrong values in a compiled configuration, but not in eager mode, of a model that calls as_strided."""
    return _wrong_values_with(diagnosis, {"as_strided"})


_SCATTERS = frozenset(
    """
    index_put index_put_ _unsafe_index_put index_add scatter scatter_add scatter_reduce
    max_pool2d_with_indices_backward _low_memory_max_pool_offsets_to_indices
    """.split()
)


@Fault(
    what="generated CPU code may read a buffer before an index_put, a scatter or a pooling's backward added to it",
    advice=(
        "use torch 2.14 or later, which has PR #185873; until then use the fastest configuration with right outputs"
    ),
    source="pytorch #185509, PR #185873",
    read=date(2026, 11, 23),
    severity="error",
    device="cpu",
    before_torch="2.14.0.dev0",
)
def scatter_with_other_values(diagnosis: Diagnosis) -> Iterator[Sighting]:
    """Finds wrong values in a compiled configuration, but not in eager mode, of a model that writes at indices."""
    return _wrong_values_with(diagnosis, _SCATTERS)


def _wrong_values_with(diagnosis: Diagnosis, names: Collection[str]) -> Iterator[Sighting]:
    for _, node in _calls(diagnosis, names):
        for trial in evidence.own_trials(diagnosis):
            eager = eager_of_same_formats(diagnosis, trial)
            if eager is not None and is_far_off(trial) and Times(diagnosis).computes_right(eager.name):
                words = f"{shown(trial.name)} gives wrong outputs, {shown(eager.name)} right ones"
                yield Sighting(f"{words}; the graph has {base_name(node.target)}", trial.name, node)


@Fault(
    what="forcing layout optimization can fail with a stride assertion",
    advice="do not force layout optimization: it fails only if forced",
    source="pytorch #184014",
    read=date(2026, 11, 21),
    severity="note",
)
def forced_trial_failed(diagnosis: Diagnosis) -> Iterator[Sighting]:
    """Finds a configuration with forced layout optimization that failed with an assertion about strides."""
    for trial in diagnosis.trials:
        if trial.configuration.layout_optimization == "forced" and trial.failure is not None:
            text = f"{trial.failure.message} {trial.failure.log or ''}"
            if "AssertionError" in text and "stride" in text:
                yield Sighting(f"{shown(trial.name)} failed: {trial.failure.message}", trial.name)


@Fault(
    what="on MPS the backward of a 2-D convolution is up to 30 times slower in channels_last; its forward is faster",
    advice=(
        'for training, compile with options={"layout_optimization": False} on this torch; PR #193623 (August '
        "2026) fixes the kernel: measure again with a later torch"
    ),
    source="pytorch #192551, #193349",
    read=date(2026, 11, 21),
    device="mps",
    before_torch="2.14.0.dev0",
)
def training_with_layout_optimization(diagnosis: Diagnosis) -> Iterator[Sighting]:
    """Finds a training step of a compiled model with convolutions, with layout optimization on."""
    for trial in evidence.own_trials(diagnosis) if diagnosis.subject.mode == "training" else ():
        for card in trial.decisions:
            if card.applied and card.convolution_count:
                count = count_of(card.convolution_count, "convolution")
                yield Sighting(f"layout optimization applied for {count}", trial.name)


@Fault(
    what="a depthwise Conv1d in float16, not in bfloat16, is slower than in torch 2.7",
    advice="compare bfloat16, or torch 2.7; the report was not confirmed by others yet",
    source="pytorch #170138",
    read=date(2026, 11, 22),
    severity="note",
    device="cuda",
    first_torch="2.8.0",
)
def depthwise_conv1d_in_half_precision(diagnosis: Diagnosis) -> Iterator[Sighting]:
    """Finds a 1-D convolution in float16 with as many groups as channels."""
    for trial, graph, c in _convolutions(diagnosis):
        dtypes = {node.name: node.dtype for node in graph.nodes}
        is_depthwise = c.rank == 1 and (c.groups or 1) > 1 and (c.weight_shape or (0, 0))[1] == 1
        if is_depthwise and dtypes.get(c.node) == "float16":
            yield Sighting(f"{c.module or c.node}, a depthwise Conv1d in float16", trial.name, c)


_LARGE_KERNEL = 31


@Fault(
    what="cuDNN's heuristic may choose code several times slower than its best for a large kernel",
    advice="try torch.backends.cudnn.benchmark = True, which is said to help",
    source="pytorch #146096",
    read=date(2026, 11, 22),
    severity="note",
    device="cuda",
    first_torch="2.4.0",
)
def large_kernel_without_benchmark(diagnosis: Diagnosis) -> Iterator[Sighting]:
    """Finds a 2-D convolution with a large kernel, in a configuration that does not change cuDNN's settings."""
    for trial, graph, c in _convolutions(diagnosis):
        kernel = (c.weight_shape or ())[2:]
        is_large = len(kernel) == 2 and all(isinstance(size, int) and size >= _LARGE_KERNEL for size in kernel)
        if is_large and graph.direction != "backward" and not trial.configuration.library_switches:
            yield Sighting(f"{c.module or c.node}, a kernel of {shape_words(kernel)}", trial.name, c)


@Fault(
    what=(
        "in inference Inductor decides by constants measured on NVIDIA: channels_last slows small convolutions on "
        "MI300 (gfx942) and speeds up even grouped ones on MI355 (gfx950)"
    ),
    advice="compare inductor-layout-opt-on and inductor-layout-opt-off on this GPU",
    source="pytorch PR #187606",
    read=date(2026, 11, 24),
    severity="note",
    device="cuda",
)
def small_or_grouped_on_rocm(diagnosis: Diagnosis) -> Iterator[Sighting]:
    """Finds layout optimization of small or grouped convolutions in inference, with a torch for ROCm."""
    for trial in evidence.own_trials(diagnosis) if "rocm" in (diagnosis.environment.torch or "") else ():
        for graph in trial.graphs:
            card = graph.decision if graph.direction == "inference" else None
            some = [c for c in card.convolutions if c.class_ in ("small", "grouped")] if card and card.applied else []
            if some:
                count = count_of(len(some), "small or grouped convolution")
                yield Sighting(f"layout optimization applied, {count}", trial.name, some[0])


_CONVOLUTION_TEMPLATE = re.compile(r"triton_(?:tem_fused_\w*convolution|convolution[23]d(?!_bwd))")


@Fault(
    what="max-autotune's Triton template may give wrong values for a convolution with a kernel larger than 1x1",
    advice="use torch 2.13 or later, which has PR #183989, or TORCHINDUCTOR_MAX_AUTOTUNE_CONV_BACKENDS=ATEN",
    source="pytorch #173068, PR #183989",
    read=date(2026, 11, 27),
    device="cuda",
    before_torch="2.13.0.dev20260523",
)
def convolution_in_triton_template(diagnosis: Diagnosis) -> Iterator[Sighting]:
    """Finds a kernel of Inductor's convolution templates, unless all convolutions are known to be 1x1."""
    for trial in evidence.own_trials(diagnosis):
        shapes = [c.weight_shape for c in trial.convolutions]
        name = next((k.name for k in trial.kernel_summary.kernels if _CONVOLUTION_TEMPLATE.match(k.name)), None)
        if name is not None and not (shapes and all(shape and {*shape[2:]} <= {1} for shape in shapes)):
            yield Sighting(f"{name} ran", trial.name)


_WEIGHT_GRADIENT = "triton_convolution2d_bwd_weight"
_SM_100 = re.compile(r"\bG?B[12]00\b")


@Fault(
    what="on B100 and B200 max-autotune's Triton kernel for the gradient of a weight reads beyond its input",
    advice="use torch 2.14 or later, which has PR #187372, or TORCHINDUCTOR_MAX_AUTOTUNE_BWD_WEIGHT_CONV_BACKENDS=ATEN",
    source="pytorch #187081, PR #187372",
    read=date(2026, 11, 27),
    severity="error",
    device="cuda",
    first_torch="2.13.0.dev0",
    before_torch="2.14.0",
)
def weight_gradient_in_triton_template(diagnosis: Diagnosis) -> Iterator[Sighting]:
    """Finds Inductor's template for the gradient of a weight, as a kernel or in a failure, on a GPU of sm_100."""
    for trial in diagnosis.trials if _SM_100.search(diagnosis.environment.device_name or "") else ():
        said = f"{trial.failure.message} {trial.failure.log or ''}" if trial.failure is not None else ""
        if any(_WEIGHT_GRADIENT in text for text in (said, *(kernel.name for kernel in trial.kernel_summary.kernels))):
            yield Sighting(f"{_WEIGHT_GRADIENT} in {shown(trial.name)}", trial.name)


@Fault(
    what="Inductor may fuse nearest upsampling into a group norm, which then reads in strides, up to 6 times slower",
    advice="measure with TORCHINDUCTOR_LOOP_REINDEXING_AFTER_FUSION=0, or use torch 2.14",
    source="pytorch #189488, PR #191349",
    read=date(2026, 11, 27),
    severity="note",
    device="cuda",
    first_torch="2.14.0.dev0",
    before_torch="2.14.0",
)
def upsampling_before_group_norm(diagnosis: Diagnosis) -> Iterator[Sighting]:
    """Finds nearest upsampling, a group norm (decomposed, also another norm) and a convolution in a compiled graph."""
    for trial in evidence.own_trials(diagnosis):
        for graph in trial.graphs if trial.configuration.backend == "inductor" else ():
            named = {base_name(node.target): node for node in graph.nodes}
            up = named.get("upsample_nearest2d", named.get("_unsafe_index"))
            if (
                up is not None
                and named.keys() & {"native_group_norm", "var_mean"}
                and any(map(runs_convolution, graph.nodes))
            ):
                yield Sighting("nearest upsampling and a norm in one graph", trial.name, up)


@Fault(
    what=(
        "the backward of a channels_last convolution with a kernel or an image of 1x1 may give a wrong weight gradient"
    ),
    advice="train this model in the contiguous format on an Intel GPU until PR #190773 is in torch",
    source="pytorch PR #190773",
    read=date(2026, 11, 27),
    device="xpu",
)
def training_of_unit_convolution(diagnosis: Diagnosis) -> Iterator[Sighting]:
    """Finds a training step in channels_last with a 2-D convolution whose kernel is 1x1."""
    for trial, _, c in _convolutions(diagnosis) if diagnosis.subject.mode == "training" else ():
        if trial.configuration.model_format == "channels_last" and (c.weight_shape or ())[2:] == (1, 1):
            yield Sighting(f"{c.module or c.node}, a kernel of 1x1 in channels_last", trial.name, c)


_ATEN_FALLBACK = re.compile(r"slow_conv|thnn_conv")


@Fault(
    what=(
        "a bfloat16 convolution does not run in oneDNN, as reported for processors without AVX-512, and is tens of"
        " times slower than in float32"
    ),
    advice="run this model in float32 on this processor, or on one with AVX-512",
    source="pytorch #183815",
    read=date(2026, 11, 22),
    device="cpu",
)
def bfloat16_convolution_in_fallback(diagnosis: Diagnosis) -> Iterator[Sighting]:
    """Finds a bfloat16 convolution that ATen ran itself, in the baseline, else in eager mode."""
    for trial, kernel, node in _ran(diagnosis):
        if node is not None and node.dtype == "bfloat16" and _ATEN_FALLBACK.search(kernel.name):
            words = f"{node.module or node.name} in bfloat16 runs in {op_words(kernel.name)}"
            yield Sighting(words, trial.name, node)


@Fault(
    what="oneDNN 3.12.3 runs float16 matrix products in its reference code, up to a thousand times slower",
    advice="use bfloat16 or float32 on a CPU, or torch 2.13",
    source="pytorch #193951",
    read=date(2026, 11, 22),
    device="cpu",
    first_torch="2.14.0.dev20260805",
)
def half_precision_product_in_reference(diagnosis: Diagnosis) -> Iterator[Sighting]:
    """Finds a float16 matrix product, or one of unknown dtype, that oneDNN ran in its reference code."""
    for trial, kernel, node in _ran(diagnosis):
        is_reference = kernel.name in ("matmul", "inner_product") and (kernel.implementation or "").startswith("ref")
        if is_reference and (node is None or node.dtype == "float16"):
            yield Sighting(f"a {kernel.name} runs in oneDNN's {kernel.implementation}", trial.name, node)


def _ran(diagnosis: Diagnosis) -> Iterator[tuple[Trial, Kernel, FxNode | None]]:
    for trial in evidence.main_or_eager(diagnosis):
        yield from ((trial, kernel, evidence.node_of(trial, kernel)) for kernel in trial.kernel_summary.kernels)
