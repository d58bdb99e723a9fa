"""
This version of torch (or cuDNN) has a known fault that this model meets.

What it finds:
    Entries of a table of faults (docs/faults.md) whose versions, device and circumstances all fit: a Conv3d in half
    precision without cuDNN, upsampling between convolutions on a CPU, an output that lost its strides in a
    decomposition, as_strided or a scatter with wrong values, a forced layout optimization that fails, training on MPS,
    convolutions and matrix products that fall to slow code in half precision.

Why it costs:
    As the entry says: between a few percent and 30 times, or a wrong result.

Example:
    torch 2.9.0 with a bfloat16 Conv3d on CUDA: cuDNN is switched off for it, and a fallback takes several times the
    memory and time.

What to do:
    What the entry says; mostly another version of torch or cuDNN.

When it is fine:
    The entry was made from public reports: where this model's own measurement shows no loss, there is none. Nothing is
    said of a version, device or circumstance that was not recorded.

Source:
    Each entry names its own, in ``known_faults.json`` and on docs/faults.md, with the day on which it was read.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from datetime import date
from functools import cache
from importlib import resources
from typing import TYPE_CHECKING

import msgspec
from packaging.version import InvalidVersion, Version

from layoutdoctor.diagnosis.records import Severity
from layoutdoctor.examination.choice import is_far_off
from layoutdoctor.examination.graphs.layout_agnostic import base_name
from layoutdoctor.rules import evidence
from layoutdoctor.rules.base import document_rule
from layoutdoctor.rules.evidence import eager_of_same_formats
from layoutdoctor.rules.graph_evidence import is_convolution, output_changes
from layoutdoctor.rules.times import Times
from layoutdoctor.words import count_of, layout_words, op_words, shape_words

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterator

    from layoutdoctor.diagnosis.records import Diagnosis, Finding, FxNode, Graph, Kernel, SourceLocation

_HALF = ("bfloat16", "float16")
_PLANE, _LARGE = 2, 31
_ATEN_FALLBACK = re.compile(r"slow_conv|thnn_conv")
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
    """What of a fault is seen in a diagnosis: in words, under which configuration, and where."""

    words: str
    configuration: str | None = None
    location: SourceLocation | None = None
    module: str | None = None


class Fault(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """
    One known fault.

    Attributes:
        what: What goes wrong, in words that follow the versions.
        advice: What to do.
        source: Where it was reported.
        read: When that was read last.
        look: Which of this module's functions says what of it a diagnosis shows.
        severity: ``note`` where the diagnosis cannot show the loss itself.
        device: Device it is about; None for any.
        first_torch: From this version on, nightlies too where it ends in ``dev0``; None for any before.
        before_torch: Fixed in this version, likewise; None where no version is known to be free of it.
        first_cudnn: From this version of cuDNN on.
        before_cudnn: Fixed in this version of cuDNN.
        is_of_cudnn: Whether cuDNN's version decides as well.
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
    is_of_cudnn: bool = False


def parse_torch(text: str | None) -> Version | None:
    """
    A version of torch without what stands after ``+``; None where none was recorded, or no number stands in it.

    Args:
        text: As ``torch.__version__`` has it, such as ``"2.9.1+cu128"`` or ``"2.13.0.dev20260514"``.
    """
    try:
        version = Version((text or "").partition("+")[0])
    except InvalidVersion:
        return None
    return version if len(version.release) > 1 else None


def parse_cudnn(text: str | None) -> Version | None:
    """
    A version of cuDNN; None for none.

    Args:
        text: As torch gives it (``"91002"`` is 9.10.2, ``"8907"`` is 8.9.7), or with dots.
    """
    if text is None or not text.strip().isdecimal():
        return parse_torch(text)
    number = int(text)
    major, rest = divmod(number, 10_000 if number >= 90_000 else 1_000)
    return Version(f"{major}.{rest // 100}.{rest % 100}")


def _all_nodes(diagnosis: Diagnosis) -> list[tuple[str, Graph, FxNode]]:
    trials = evidence.own_trials(diagnosis)
    return [(trial.name, graph, node) for trial in trials for graph in trial.graphs for node in graph.nodes]


def half_precision_conv3d(diagnosis: Diagnosis) -> Sighting | None:
    """A 3-D convolution with a kernel larger than 1 in bfloat16 or float16."""
    for name, graph, node in _all_nodes(diagnosis):
        is_3d = node.layout is not None and len(node.layout.shape) == 5
        if not (is_convolution(node) and is_3d and node.dtype in _HALF):
            continue
        known = {c.node: c.weight_shape for c in graph.decision.convolutions} if graph.decision is not None else {}
        weight = known.get(node.name)
        if weight is None or any(size != 1 for size in weight[2:]):
            return Sighting(f"{node.module or node.name}, a Conv3d in {node.dtype}", name, node.location, node.module)
    return None


def upsampling_between_convolutions(diagnosis: Diagnosis) -> Sighting | None:
    """A bilinear or bicubic upsampling with a convolution before and after it, layout optimization applied."""
    main = evidence.main_trial(diagnosis)
    if main is None or not any(graph.decision is not None and graph.decision.applied for graph in main.graphs):
        return None
    for _, graph, node in _all_nodes(diagnosis):
        if base_name(node.target) in _UPSAMPLING and not node.backward and _is_between_convolutions(node, graph):
            place = f"{base_name(node.target)} between two convolutions"
            return Sighting(place, main.name, node.location, node.module)
    return None


def _is_between_convolutions(node: FxNode, graph: Graph) -> bool:
    above, below = {node.name}, {node.name}
    for other in reversed(graph.nodes):  # a node stands behind all that it reads
        if other.name in above:
            above.update(other.inputs)
    for other in graph.nodes:
        if not below.isdisjoint(other.inputs):
            below.add(other.name)
    convolutions = {other.name for other in graph.nodes if is_convolution(other)}
    return not convolutions.isdisjoint(above) and not convolutions.isdisjoint(below)


def strides_lost_in_decomposition(diagnosis: Diagnosis) -> Sighting | None:
    """An output with other strides than eager's, where the model pads by reflection or upsamples by the nearest."""
    change = next(output_changes(diagnosis), None)
    found = _first_of(diagnosis, _STRIDE_LOSING)
    if change is None or found is None:
        return None
    words = (
        f"output {change.number} is {layout_words(change.returned)} under {evidence.shown(change.trial.name)}, "
        f"{layout_words(change.expected)} in eager, and the model has {found.words}"
    )
    return Sighting(words, change.trial.name, found.location, found.module)


def as_strided_with_other_values(diagnosis: Diagnosis) -> Sighting | None:
    """A compiled configuration with wrong values, eager of the same formats right, in a model that calls as_strided."""
    return _wrong_values_with(diagnosis, {"as_strided"})


def scatter_with_other_values(diagnosis: Diagnosis) -> Sighting | None:
    """A compiled configuration with wrong values, eager of the same formats right, where something is added into."""
    return _wrong_values_with(diagnosis, _SCATTERS)


def _wrong_values_with(diagnosis: Diagnosis, names: Collection[str]) -> Sighting | None:
    found = _first_of(diagnosis, names)
    if found is None:
        return None
    for trial in evidence.own_trials(diagnosis):
        eager = eager_of_same_formats(diagnosis, trial)
        is_wrong = is_far_off(trial)
        if eager is not None and is_wrong and Times(diagnosis).computes_right(eager.name):
            seen = f"the model has {found.words}"
            names = evidence.shown(trial.name), evidence.shown(eager.name)
            words = f"the outputs of {names[0]} differ, those of {names[1]} do not, and {seen}"
            return Sighting(words, trial.name, found.location, found.module)
    return None


def forced_trial_failed(diagnosis: Diagnosis) -> Sighting | None:
    """A configuration with forced layout optimization that failed with an assertion about strides."""
    for trial in diagnosis.trials:
        failure = trial.failure
        if trial.configuration.layout_optimization != "forced" or failure is None:
            continue
        text = f"{failure.message} {failure.log or ''}"
        if "AssertionError" in text and "stride" in text:
            return Sighting(f"{evidence.shown(trial.name)} failed: {failure.message}", trial.name)
    return None


def training_with_layout_optimization(diagnosis: Diagnosis) -> Sighting | None:
    """A training step of a compiled model with convolutions, layout optimization applied in the forward."""
    if diagnosis.subject.mode != "training":
        return None
    for trial in evidence.own_trials(diagnosis):
        for graph in trial.graphs:
            decision = graph.decision
            if decision is not None and decision.applied and decision.convolution_count:
                count = count_of(decision.convolution_count, "convolution")
                return Sighting(f"layout optimization applied for {count}", trial.name)
    return None


def depthwise_conv1d_in_half_precision(diagnosis: Diagnosis) -> Sighting | None:
    """A 1-D convolution in float16 with as many groups as channels."""
    for trial in evidence.own_trials(diagnosis):
        for graph in trial.graphs:
            convolutions = graph.decision.convolutions if graph.decision is not None else ()
            dtypes = {node.name: node.dtype for node in graph.nodes}
            for c in convolutions:
                is_depthwise = c.rank == 1 and (c.groups or 1) > 1 and (c.weight_shape or (0, 0))[1] == 1
                if is_depthwise and dtypes.get(c.node) == "float16":
                    words = f"{c.module or c.node}, a depthwise Conv1d in float16"
                    return Sighting(words, trial.name, c.location, c.module)
    return None


def large_kernel_without_benchmark(diagnosis: Diagnosis) -> Sighting | None:
    """A 2-D convolution with a large kernel and few channels, in the caller's own settings of cuDNN."""
    for trial in evidence.own_trials(diagnosis):
        for card in evidence.cards_of(trial, with_backward=False):
            for c in card.convolutions:
                kernel = (c.weight_shape or ())[2:]
                is_large = len(kernel) == _PLANE and all(isinstance(k, int) and k >= _LARGE for k in kernel)
                if is_large and not trial.configuration.library_switches:
                    words = f"{c.module or c.node}, a kernel of {shape_words(kernel)}"
                    return Sighting(words, trial.name, c.location, c.module)
    return None


def small_or_grouped_on_rocm(diagnosis: Diagnosis) -> Sighting | None:
    """Layout optimization decided for small or grouped convolutions in inference, by a torch for ROCm."""
    if "rocm" not in (diagnosis.environment.torch or ""):
        return None
    for trial in evidence.own_trials(diagnosis):
        for graph in trial.graphs:
            card = graph.decision if graph.direction == "inference" else None
            some = [c for c in card.convolutions if c.class_ in ("small", "grouped")] if card and card.applied else []
            if some:
                count = count_of(len(some), "small or grouped convolution")
                return Sighting(f"layout optimization applied, {count}", trial.name, some[0].location, some[0].module)
    return None


def bfloat16_convolution_in_fallback(diagnosis: Diagnosis) -> Sighting | None:
    """A bfloat16 convolution that ATen ran itself, in the default, else in eager."""
    for name, kernel, node in _ran(diagnosis):
        if node is not None and node.dtype == "bfloat16" and _ATEN_FALLBACK.search(kernel.name):
            words = f"{node.module or node.name} in bfloat16 runs in {op_words(kernel.name)}"
            return Sighting(words, name, node.location, node.module)
    return None


def half_precision_product_in_reference(diagnosis: Diagnosis) -> Sighting | None:
    """A matrix product that oneDNN ran in its reference code, in the default, else in eager."""
    for name, kernel, node in _ran(diagnosis):
        is_reference = kernel.name in ("matmul", "inner_product") and (kernel.implementation or "").startswith("ref")
        if is_reference and (node is None or node.dtype == "float16"):
            place = Sighting(f"a {kernel.name} runs in oneDNN's {kernel.implementation}", name)
            return place if node is None else replace(place, location=node.location, module=node.module)
    return None


def _ran(diagnosis: Diagnosis) -> Iterator[tuple[str, Kernel, FxNode | None]]:
    """What ran in the default, then in eager: the configuration, the kernel, and the node where that is known."""
    for trial in evidence.main_or_eager(diagnosis):
        for kernel in trial.kernels.kernels if trial.kernels is not None else ():
            yield trial.name, kernel, evidence.node_of(trial, kernel)


def _first_of(diagnosis: Diagnosis, names: Collection[str]) -> Sighting | None:
    for trial, _, node in _all_nodes(diagnosis):
        if base_name(node.target) in names or node.called in names:
            return Sighting(base_name(node.target), trial, node.location, node.module)
    return None


_LOOKS: dict[str, Callable[[Diagnosis], Sighting | None]] = {
    look.__name__: look
    for look in (
        half_precision_conv3d,
        upsampling_between_convolutions,
        strides_lost_in_decomposition,
        as_strided_with_other_values,
        scatter_with_other_values,
        forced_trial_failed,
        training_with_layout_optimization,
        depthwise_conv1d_in_half_precision,
        large_kernel_without_benchmark,
        small_or_grouped_on_rocm,
        bfloat16_convolution_in_fallback,
        half_precision_product_in_reference,
    )
}


@cache
def known_faults() -> tuple[Fault, ...]:
    """All entries, in the order in which they are told; what could not be confirmed in its source is not among them."""
    data = (resources.files("layoutdoctor.rules") / "known_faults.json").read_bytes()
    return msgspec.json.decode(data, type=tuple[Fault, ...])


def check(diagnosis: Diagnosis) -> Iterator[Finding]:
    """One finding per entry that fits."""
    environment = diagnosis.environment
    torch, cudnn = parse_torch(environment.torch), parse_cudnn(environment.cudnn)
    for fault in known_faults():
        if not _is_in_range(fault, torch, cudnn) or fault.device not in (None, diagnosis.subject.device):
            continue
        seen = _LOOKS[fault.look](diagnosis)
        if seen is None:
            continue
        beside = f" with cuDNN {cudnn}" if fault.is_of_cudnn else ""
        yield RULE.finding(
            seen.configuration,
            f"torch {environment.torch}{beside}: {fault.what}; seen here: {seen.words} ({fault.source})",
            fault.advice,
            severity=fault.severity,
            evidence=(fault.source,),
            at=seen,
        )


def _is_in_range(fault: Fault, torch: Version | None, cudnn: Version | None) -> bool:
    """Whether the versions that decide are known and those that have the fault."""
    is_of_torch = _is_between(torch, fault.first_torch, fault.before_torch)
    return is_of_torch and (not fault.is_of_cudnn or _is_between(cudnn, fault.first_cudnn, fault.before_cudnn))


def _is_between(version: Version | None, first: str | None, before: str | None) -> bool:
    if version is None or (first is not None and version < Version(first)):
        return False
    return before is None or version < Version(before)


RULE = document_rule("LD301", "known-bad-version", check, __doc__)
