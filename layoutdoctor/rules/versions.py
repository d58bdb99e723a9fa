"""
LD301: this version of torch, cuDNN or oneDNN has a known fault that the model meets.

The faults are in ``known_faults.json``, and ``docs/faults.md`` shows them. Each names the function that looks for it.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from datetime import date
from functools import cache
from importlib import resources
from typing import TYPE_CHECKING

import msgspec
from packaging.version import InvalidVersion, Version

from layoutdoctor.diagnosis.answer import Severity
from layoutdoctor.examination.choice import is_far_off
from layoutdoctor.examination.graphs.layout_agnostic import base_name
from layoutdoctor.rules import evidence
from layoutdoctor.rules.advice import Times
from layoutdoctor.rules.base import Rule
from layoutdoctor.rules.evidence import eager_of_same_formats, is_convolution
from layoutdoctor.rules.outputs import output_changes
from layoutdoctor.words import count_of, layout_words, op_words, shape_words, shown

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator

    from layoutdoctor.diagnosis.answer import Finding
    from layoutdoctor.diagnosis.diagnosis import Diagnosis
    from layoutdoctor.diagnosis.graph import Convolution, FxNode, Graph
    from layoutdoctor.diagnosis.kernel import Kernel
    from layoutdoctor.diagnosis.trial import Trial
    from layoutdoctor.rules.base import Placed

_HALF = ("bfloat16", "float16")
_LARGE_KERNEL = 31
_ATEN_FALLBACK = re.compile(r"slow_conv|thnn_conv")
_CONVOLUTION_TEMPLATE = re.compile(r"triton_(?:tem_fused_\w*convolution|convolution[23]d(?!_bwd))")
_WEIGHT_GRADIENT = "triton_convolution2d_bwd_weight"
_SM_100 = re.compile(r"\bG?B[12]00\b")
_UPSAMPLING = frozenset({"upsample_bilinear2d", "_upsample_bilinear2d_aa", "upsample_bicubic2d"})
_STRIDE_LOSING = frozenset(
    """
    reflection_pad2d reflection_pad3d replication_pad2d replication_pad3d upsample_nearest2d upsample_nearest3d
    _upsample_nearest_exact2d _upsample_nearest_exact3d
    """.split()
)
_SCATTERS = frozenset(
    """
    index_put index_put_ _unsafe_index_put index_add scatter scatter_add scatter_reduce
    max_pool2d_with_indices_backward _low_memory_max_pool_offsets_to_indices
    """.split()
)


@dataclass(frozen=True)
class Sighting:
    """A fault as it shows in a diagnosis: in words, under which configuration, and where."""

    words: str
    configuration: str
    at: Placed | None = None


class Fault(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """
    One known fault.

    Attributes:
        what: The fault, in words that follow the versions.
        read: When the source was read last.
        look: The function of this module that finds it in a diagnosis.
        severity: ``note`` if the diagnosis cannot show the loss itself.
        first_torch: From this version on, nightlies too if it ends in ``dev0``; None for any before.
        before_torch: Fixed in this version, likewise; None if no version is known to be free of it.
        first_cudnn: From this version of cuDNN on; None if that does not matter.
    """

    what: str
    advice: str
    source: str
    read: date
    look: str
    severity: Severity = "warning"
    device: str | None = None
    first_torch: str | None = None
    before_torch: str | None = None
    first_cudnn: str | None = None
    before_cudnn: str | None = None


@cache
def known_faults() -> tuple[Fault, ...]:
    """All faults, in the order in which they are reported."""
    data = (resources.files("layoutdoctor.rules") / "known_faults.json").read_bytes()
    return msgspec.json.decode(data, type=tuple[Fault, ...])


def faults_of_versions(diagnosis: Diagnosis) -> Iterator[Finding]:
    """One finding per fault whose versions, device and circumstances all fit."""
    environment = diagnosis.environment
    torch, cudnn = parse_torch(environment.torch), parse_cudnn(environment.cudnn)
    for fault in known_faults():
        is_of_cudnn = fault.first_cudnn is not None
        fits = fault.device in (None, diagnosis.subject.device)
        fits = fits and _is_between(torch, fault.first_torch, fault.before_torch)
        fits = fits and (not is_of_cudnn or _is_between(cudnn, fault.first_cudnn, fault.before_cudnn))
        seen = next(globals()[fault.look](diagnosis), None) if fits else None
        if seen is None:
            continue
        beside = f" with cuDNN {cudnn}" if is_of_cudnn else ""
        yield LD301.finding(
            seen.configuration,
            f"torch {environment.torch}{beside}: {fault.what}; seen here: {seen.words} ({fault.source})",
            fault.advice,
            severity=fault.severity,
            evidence=(fault.source,),
            at=seen.at,
        )


LD301 = Rule("LD301", "known-bad-version", faults_of_versions)


def _is_between(version: Version | None, first: str | None, before: str | None) -> bool:
    if version is None or (first is not None and version < Version(first)):
        return False
    return before is None or version < Version(before)


def parse_torch(text: str | None) -> Version | None:
    """A version such as ``"2.9.1+cu128"`` or ``"2.13.0.dev20260514"``, without its ``+`` part; None if it is none."""
    try:
        version = Version((text or "").partition("+")[0])
    except InvalidVersion:
        return None
    return version if len(version.release) > 1 else None


def parse_cudnn(text: str | None) -> Version | None:
    """A version of cuDNN, with dots or as torch gives it: ``"91002"`` is 9.10.2, ``"8907"`` is 8.9.7."""
    if text is None or not text.strip().isdecimal():
        return parse_torch(text)
    number = int(text)
    major, rest = divmod(number, 10_000 if number >= 90_000 else 1_000)
    return Version(f"{major}.{rest // 100}.{rest % 100}")


# ------------------------------------------------------------------------------------- what looks for a fault, by name
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


def half_precision_conv3d(diagnosis: Diagnosis) -> Iterator[Sighting]:
    """A 3-D convolution with a kernel larger than 1 in bfloat16 or float16."""
    for trial, graph, node in _nodes(diagnosis):
        is_3d = node.layout is not None and len(node.layout.shape) == 5
        if is_convolution(node) and is_3d and node.dtype in _HALF:
            weight = {c.node: c.weight_shape for c in evidence.convolutions_of([graph])}.get(node.name)
            if weight is None or any(size != 1 for size in weight[2:]):
                yield Sighting(f"{node.module or node.name}, a Conv3d in {node.dtype}", trial.name, node)


def upsampling_between_convolutions(diagnosis: Diagnosis) -> Iterator[Sighting]:
    """A bilinear or bicubic upsampling with a convolution before and after it, layout optimization applied."""
    main = evidence.main_trial(diagnosis)
    if main is None or not any(card.applied for card in evidence.cards_of(main.graphs)):
        return
    for _, graph, node in _nodes(diagnosis):
        if base_name(node.target) in _UPSAMPLING and not node.backward and _is_between_convolutions(node, graph):
            yield Sighting(f"{base_name(node.target)} between two convolutions", main.name, node)


def _is_between_convolutions(node: FxNode, graph: Graph) -> bool:
    above, below = {node.name}, {node.name}
    for other in reversed(graph.nodes):  # a node comes after all that it reads
        if other.name in above:
            above.update(other.inputs)
    for other in graph.nodes:
        if not below.isdisjoint(other.inputs):
            below.add(other.name)
    convolutions = {other.name for other in graph.nodes if is_convolution(other)}
    return not convolutions.isdisjoint(above) and not convolutions.isdisjoint(below)


def strides_lost_in_decomposition(diagnosis: Diagnosis) -> Iterator[Sighting]:
    """An output with other strides than eager's, in a model that pads by reflection or upsamples by the nearest."""
    for change in output_changes(diagnosis):
        for _, node in _calls(diagnosis, _STRIDE_LOSING):
            words = (
                f"output {change.number} is {layout_words(change.returned)} under {shown(change.trial.name)}, "
                f"{layout_words(change.expected)} in eager, and the model has {base_name(node.target)}"
            )
            yield Sighting(words, change.trial.name, node)


def as_strided_with_other_values(diagnosis: Diagnosis) -> Iterator[Sighting]:
    """A compiled configuration with wrong values, eager of the same formats right, in a model that calls as_strided."""
    return _wrong_values_with(diagnosis, {"as_strided"})


def scatter_with_other_values(diagnosis: Diagnosis) -> Iterator[Sighting]:
    """The same in a model that adds into a tensor at indices."""
    return _wrong_values_with(diagnosis, _SCATTERS)


def _wrong_values_with(diagnosis: Diagnosis, names: Collection[str]) -> Iterator[Sighting]:
    for _, node in _calls(diagnosis, names):
        for trial in evidence.own_trials(diagnosis):
            eager = eager_of_same_formats(diagnosis, trial)
            if eager is not None and is_far_off(trial) and Times(diagnosis).computes_right(eager.name):
                words = f"the outputs of {shown(trial.name)} differ, those of {shown(eager.name)} do not"
                yield Sighting(f"{words}, and the model has {base_name(node.target)}", trial.name, node)


def forced_trial_failed(diagnosis: Diagnosis) -> Iterator[Sighting]:
    """A configuration with forced layout optimization that failed with an assertion about strides."""
    for trial in diagnosis.trials:
        if trial.configuration.layout_optimization == "forced" and trial.failure is not None:
            text = f"{trial.failure.message} {trial.failure.log or ''}"
            if "AssertionError" in text and "stride" in text:
                yield Sighting(f"{shown(trial.name)} failed: {trial.failure.message}", trial.name)


def training_with_layout_optimization(diagnosis: Diagnosis) -> Iterator[Sighting]:
    """A training step of a compiled model with convolutions, layout optimization applied."""
    for trial in evidence.own_trials(diagnosis) if diagnosis.subject.mode == "training" else ():
        for card in evidence.cards_of(trial.graphs):
            if card.applied and card.convolution_count:
                count = count_of(card.convolution_count, "convolution")
                yield Sighting(f"layout optimization applied for {count}", trial.name)


def depthwise_conv1d_in_half_precision(diagnosis: Diagnosis) -> Iterator[Sighting]:
    """A 1-D convolution in float16 with as many groups as channels."""
    for trial, graph, c in _convolutions(diagnosis):
        dtypes = {node.name: node.dtype for node in graph.nodes}
        is_depthwise = c.rank == 1 and (c.groups or 1) > 1 and (c.weight_shape or (0, 0))[1] == 1
        if is_depthwise and dtypes.get(c.node) == "float16":
            yield Sighting(f"{c.module or c.node}, a depthwise Conv1d in float16", trial.name, c)


def large_kernel_without_benchmark(diagnosis: Diagnosis) -> Iterator[Sighting]:
    """A 2-D convolution with a large kernel, in the caller's own settings of cuDNN."""
    for trial, graph, c in _convolutions(diagnosis):
        kernel = (c.weight_shape or ())[2:]
        is_large = len(kernel) == 2 and all(isinstance(size, int) and size >= _LARGE_KERNEL for size in kernel)
        if is_large and graph.direction != "backward" and not trial.configuration.library_switches:
            yield Sighting(f"{c.module or c.node}, a kernel of {shape_words(kernel)}", trial.name, c)


def small_or_grouped_on_rocm(diagnosis: Diagnosis) -> Iterator[Sighting]:
    """Layout optimization decided for small or grouped convolutions in inference, by a torch for ROCm."""
    for trial in evidence.own_trials(diagnosis) if "rocm" in (diagnosis.environment.torch or "") else ():
        for graph in trial.graphs:
            card = graph.decision if graph.direction == "inference" else None
            some = [c for c in card.convolutions if c.class_ in ("small", "grouped")] if card and card.applied else []
            if some:
                count = count_of(len(some), "small or grouped convolution")
                yield Sighting(f"layout optimization applied, {count}", trial.name, some[0])


def convolution_in_triton_template(diagnosis: Diagnosis) -> Iterator[Sighting]:
    """A kernel of Inductor's convolution templates, unless every convolution of its trial has a kernel of 1x1."""
    for trial in evidence.own_trials(diagnosis):
        shapes = [c.weight_shape for c in evidence.convolutions_of(trial.graphs)]
        name = next((k.name for k in evidence.kernels_of(trial) if _CONVOLUTION_TEMPLATE.match(k.name)), None)
        if name is not None and not (shapes and all(shape and {*shape[2:]} <= {1} for shape in shapes)):
            yield Sighting(f"{name} ran", trial.name)


def weight_gradient_in_triton_template(diagnosis: Diagnosis) -> Iterator[Sighting]:
    """Inductor's template for the gradient of a weight, run or named by a failure, on a GPU of sm_100."""
    for trial in diagnosis.trials if _SM_100.search(diagnosis.environment.device_name or "") else ():
        said = f"{trial.failure.message} {trial.failure.log or ''}" if trial.failure is not None else ""
        if any(_WEIGHT_GRADIENT in text for text in (said, *(kernel.name for kernel in evidence.kernels_of(trial)))):
            yield Sighting(f"{_WEIGHT_GRADIENT} in {shown(trial.name)}", trial.name)


def upsampling_before_group_norm(diagnosis: Diagnosis) -> Iterator[Sighting]:
    """Nearest upsampling, a group norm and a convolution in one compiled graph, decomposed or not."""
    for trial in evidence.own_trials(diagnosis):
        for graph in trial.graphs if trial.configuration.backend == "inductor" else ():
            named = {base_name(node.target): node for node in graph.nodes}
            up = named.get("upsample_nearest2d", named.get("_unsafe_index"))
            if (
                up is not None
                and named.keys() & {"native_group_norm", "var_mean"}
                and any(map(is_convolution, graph.nodes))
            ):
                yield Sighting("nearest upsampling and a group norm in one graph", trial.name, up)


def training_of_unit_convolution(diagnosis: Diagnosis) -> Iterator[Sighting]:
    """A training step in channels_last with a 2-D convolution whose kernel is 1x1."""
    for trial, _, c in _convolutions(diagnosis) if diagnosis.subject.mode == "training" else ():
        if trial.configuration.model_format == "channels_last" and (c.weight_shape or ())[2:] == (1, 1):
            yield Sighting(f"{c.module or c.node}, a kernel of 1x1 in channels_last", trial.name, c)


def bfloat16_convolution_in_fallback(diagnosis: Diagnosis) -> Iterator[Sighting]:
    """A bfloat16 convolution that ATen ran itself, in the default, else in eager."""
    for trial, kernel, node in _ran(diagnosis):
        if node is not None and node.dtype == "bfloat16" and _ATEN_FALLBACK.search(kernel.name):
            words = f"{node.module or node.name} in bfloat16 runs in {op_words(kernel.name)}"
            yield Sighting(words, trial.name, node)


def half_precision_product_in_reference(diagnosis: Diagnosis) -> Iterator[Sighting]:
    """A matrix product that oneDNN ran in its reference code, in the default, else in eager."""
    for trial, kernel, node in _ran(diagnosis):
        is_reference = kernel.name in ("matmul", "inner_product") and (kernel.implementation or "").startswith("ref")
        if is_reference and (node is None or node.dtype == "float16"):
            yield Sighting(f"a {kernel.name} runs in oneDNN's {kernel.implementation}", trial.name, node)


def _ran(diagnosis: Diagnosis) -> Iterator[tuple[Trial, Kernel, FxNode | None]]:
    for trial in evidence.main_or_eager(diagnosis):
        yield from ((trial, kernel, evidence.node_of(trial, kernel)) for kernel in evidence.kernels_of(trial))
