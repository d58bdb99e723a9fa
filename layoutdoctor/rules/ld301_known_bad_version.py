"""
This version of torch (or cuDNN) has a known fault that this model meets.

What it finds:
    Entries of a table of faults whose versions, device and circumstances all fit: a Conv3d in half precision without
    cuDNN, upsampling between convolutions on a CPU, an output that lost its strides in a decomposition, as_strided with
    wrong values, a forced layout optimization that fails, training on MPS.

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
    Each entry names its own, in ``KNOWN_FAULTS``.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from packaging.version import InvalidVersion, Version

from layoutdoctor.examination.graphs.layout_agnostic import base_name
from layoutdoctor.rules import evidence
from layoutdoctor.rules.base import document_rule
from layoutdoctor.rules.evidence import eager_of_same_formats
from layoutdoctor.rules.graph_evidence import is_convolution, output_changes
from layoutdoctor.words import count_of, layout_words

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterator

    from layoutdoctor.diagnosis.records import Diagnosis, Finding, FxNode, Graph, Severity, SourceLocation

_HALF = ("bfloat16", "float16")
_UPSAMPLING = frozenset({"upsample_bilinear2d", "_upsample_bilinear2d_aa", "upsample_bicubic2d"})
_STRIDE_LOSING = frozenset(
    """
    reflection_pad2d reflection_pad3d replication_pad2d replication_pad3d upsample_nearest2d upsample_nearest3d
    _upsample_nearest_exact2d _upsample_nearest_exact3d
    """.split()
)


@dataclass(frozen=True)
class Sighting:
    """What of a fault is seen in a diagnosis: in words, under which configuration, and where."""

    words: str
    configuration: str | None = None
    location: SourceLocation | None = None
    module: str | None = None


@dataclass(frozen=True)
class Fault:
    """
    One known fault.

    Attributes:
        what: What goes wrong, in words that follow the versions.
        advice: What to do.
        source: Where it was reported.
        look: What of it a diagnosis shows; None where its circumstances are not met.
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
    look: Callable[[Diagnosis], Sighting | None]
    severity: Severity = "warning"
    device: str | None = None
    first_torch: Version | None = None
    before_torch: Version | None = None
    first_cudnn: Version | None = None
    before_cudnn: Version | None = None
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
        f"output {change.number} is {layout_words(change.returned)} under {change.trial.name}, "
        f"{layout_words(change.expected)} in eager, and the model has {found.words}"
    )
    return Sighting(words, change.trial.name, found.location, found.module)


def as_strided_with_other_values(diagnosis: Diagnosis) -> Sighting | None:
    """A compiled configuration with wrong values, eager of the same formats right, in a model that calls as_strided."""
    found = _first_of(diagnosis, {"as_strided"})
    if found is None:
        return None
    for trial in evidence.own_trials(diagnosis):
        eager = eager_of_same_formats(diagnosis, trial)
        is_wrong = evidence.has_different_outputs(diagnosis, trial.name)
        if eager is not None and is_wrong and not evidence.has_different_outputs(diagnosis, eager.name):
            words = f"the outputs of {trial.name} differ, those of {eager.name} do not, and the model has as_strided"
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
            return Sighting(f"{trial.name} failed: {failure.message}", trial.name)
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


def _first_of(diagnosis: Diagnosis, names: Collection[str]) -> Sighting | None:
    for trial, _, node in _all_nodes(diagnosis):
        if base_name(node.target) in names or node.called in names:
            return Sighting(base_name(node.target), trial, node.location, node.module)
    return None


_CONV3D_WITHOUT_CUDNN = (
    "a bfloat16 or float16 Conv3d runs without cuDNN, in a fallback that takes several times the memory and time"
)

KNOWN_FAULTS: tuple[Fault, ...] = (
    Fault(
        what=_CONV3D_WITHOUT_CUDNN,
        advice="use torch 2.9.1 or later with the package nvidia-cudnn 9.15 or later, or torch 2.8",
        # 2.9.0 switches cuDNN off from 9.8 on, whatever the version (PR #163581); reported for H200 as #168167.
        source="pytorch #166643, #163581",
        look=half_precision_conv3d,
        device="cuda",
        first_torch=Version("2.9.0.dev0"),
        before_torch=Version("2.9.1.dev0"),
        first_cudnn=Version("9.8.0"),
        is_of_cudnn=True,
    ),
    Fault(
        what=_CONV3D_WITHOUT_CUDNN,
        advice="install the package nvidia-cudnn 9.15 or later, as the release notes of torch 2.9.1 say",
        # "broken on cuDNN 9.8 - 9.14": the check that 2.9.1 has (PR #166480).
        source="pytorch 2.9.1 release notes, #166643, #168167",
        look=half_precision_conv3d,
        device="cuda",
        first_torch=Version("2.9.1.dev0"),
        before_torch=Version("2.10.0.dev0"),
        first_cudnn=Version("9.8.0"),
        before_cudnn=Version("9.15.0"),
        is_of_cudnn=True,
    ),
    Fault(
        what="upsampling between two convolutions is written in the contiguous format and converted back for the next",
        advice="use a torch with PR #169260 (2.11 or later), or measure channels_last input",
        source="pytorch #119181, PR #169260",
        look=upsampling_between_convolutions,
        severity="note",
        device="cpu",
        before_torch=Version("2.11.0.dev0"),
    ),
    Fault(
        what="padding by reflection and nearest upsampling lose channels-last when they are decomposed",
        advice="use torch 2.13 or later, or convert the output where it is needed",
        source="pytorch #179442, #183770, #183771",
        look=strides_lost_in_decomposition,
        before_torch=Version("2.13.0"),
    ),
    Fault(
        what="as_strided reads other elements than in eager where the compiler lays its input out anew",
        advice="use torch 2.13 or later, or replace as_strided by indexing",
        source="pytorch #174963",
        look=as_strided_with_other_values,
        before_torch=Version("2.13.0"),
    ),
    Fault(
        what="forcing layout optimization can fail with a stride assertion",
        advice="do not force it: the other configurations are not affected",
        source="pytorch #184014",
        look=forced_trial_failed,
        severity="note",
    ),
    Fault(
        what="on MPS the backward of a 2-D convolution is up to 30 times slower in channels_last, the forward faster",
        advice='for training, compile with options={"layout_optimization": False} on this torch; '
        "PR #193623 (August 2026) fixes the kernel, so measure again with a later one",
        source="pytorch #192551, #193349",
        look=training_with_layout_optimization,
        device="mps",
        before_torch=Version("2.14.0.dev0"),
    ),
)
"""In the order in which they are told; what could not be confirmed in the source is not in here."""


def check(diagnosis: Diagnosis) -> Iterator[Finding]:
    """One finding per entry that fits."""
    environment = diagnosis.environment
    torch, cudnn = parse_torch(environment.torch), parse_cudnn(environment.cudnn)
    for fault in KNOWN_FAULTS:
        if not _is_in_range(fault, torch, cudnn) or fault.device not in (None, diagnosis.subject.device):
            continue
        seen = fault.look(diagnosis)
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


def _is_between(version: Version | None, first: Version | None, before: Version | None) -> bool:
    return version is not None and (first is None or version >= first) and (before is None or version < before)


RULE = document_rule("LD301", "known-bad-version", check, __doc__)
