"""LD302, LD303 and LD305: kernels that are slower in one format, or than other code."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

from layoutdoctor.examination.costs import Place, sum_of_known
from layoutdoctor.examination.graphs.conversions import tensor_bytes
from layoutdoctor.examination.graphs.layout_agnostic import strided_norms
from layoutdoctor.examination.kernels.host import CONVOLUTION_BACKWARD
from layoutdoctor.examination.kernels.names import is_fallback
from layoutdoctor.rules import evidence, wording
from layoutdoctor.rules.advice import (
    Times,
    refusal,
    severity_of_gain,
    severity_of_loss,
    use_instead,
)
from layoutdoctor.rules.base import Rule
from layoutdoctor.rules.decisions import convolution_words
from layoutdoctor.rules.evidence import kernels_of, node_of, takes_at_least
from layoutdoctor.units import format_bytes, format_ratio, format_seconds
from layoutdoctor.words import (
    ONEDNN_LOG,
    count_of,
    distinct,
    joined,
    layout_words,
    listing,
    op_words,
    shape_words,
    shown,
)

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from layoutdoctor.diagnosis.answer import Finding, Severity
    from layoutdoctor.diagnosis.diagnosis import Diagnosis
    from layoutdoctor.diagnosis.graph import Convolution
    from layoutdoctor.diagnosis.kernel import Kernel
    from layoutdoctor.diagnosis.trial import Trial


# --------------------------------------------------------------------------- LD302: a batch norm reads another layout
def batch_norms(diagnosis: Diagnosis) -> Iterator[Finding]:
    """One finding at most: for the first configuration of a contiguous model that has such a batch norm."""
    counts = diagnosis.subject.parameter_formats
    inputs_are = all("contiguous_format" in tensor.memory_formats for tensor in diagnosis.subject.inputs)
    if not inputs_are or counts.get("contiguous_format", 0) < max(counts.values(), default=0):
        return
    trials = (t for t in evidence.own_trials(diagnosis) if not evidence.is_channels_last(t))
    for trial, found in evidence.first_showing(
        trials, lambda t: [n for graph in t.graphs for n in strided_norms(graph)]
    ):
        first = found[0]
        norm, layout = first.norm, first.layout
        seconds = sum_of_known(kernel.seconds for kernel in kernels_of(trial) if kernel.node == norm.name)
        shape, words = shape_words(layout.shape), layout_words(layout)
        tensor = f"{words} tensor ({shape})" if layout.memory_formats else f"tensor of {shape} with {words}"
        message = (
            f"the batch norm {norm.module or norm.name} reads a {tensor} (made by {op_words(first.maker.target)}"
            f"{', transposed' if first.is_turned else ''}), though model and input are contiguous, so another kernel "
            "runs"
        )
        more = f"{len(found) - 1} more like it" if len(found) > 1 else None
        moved = tensor_bytes(layout, first.dtype, first.dtype)
        copy = f" of {format_bytes(moved)}, read and written" if moved is not None else ""
        yield LD302.finding(
            trial.name,
            joined((joined((message, wording.cost_words(trial, seconds)), ": "), more)),
            f"time it in both formats; .contiguous() before it costs a copy{copy}, so measure",
            evidence=[seen.norm.name for seen in found],
            at=norm,
            seconds=seconds,
        )


LD302 = Rule("LD302", "strided-batch-norm-input", batch_norms)

# ---------------------------------------------------------------------- LD303: a grouped convolution in another kernel
_GROUPS = re.compile(r"(?:^|_)g(\d+)(?=mb|ic)")  # g32mb4_ic256oc256_ih56..., as oneDNN writes it
_SLOWER_CONVOLUTION = 2.0
_LEAST_SECONDS = 200e-6
_LEAST_SHARE_OF_CONVOLUTION = 0.05

_Problem = tuple[str, str, bool]  # library, problem or module, whether in the backward


@dataclass(frozen=True)
class _Convolutions:
    """All convolutions of one problem in one trial, together."""

    trial: Trial
    kernels: list[Kernel]

    @property
    def modules(self) -> list[str]:
        nodes = (node_of(self.trial, kernel) for kernel in self.kernels)
        return distinct(node.module for node in nodes if node is not None)

    @property
    def seconds(self) -> float:
        return _sum(self.kernels)

    @property
    def codes(self) -> list[str]:
        return distinct(kernel.implementation or kernel.name for kernel in self.kernels)

    @property
    def groups(self) -> int:
        """By oneDNN's problem text, else by the card of the graph."""
        match = _GROUPS.search(self.kernels[0].problem or "")
        known = [c.groups or 1 for c in evidence.convolutions_of(self.trial.graphs) if c.module in self.modules]
        return int(match[1]) if match is not None else max(known, default=1)

    def words(self) -> str:
        return f"{format_seconds(self.seconds)} in {shown(self.trial.name)} ({listing(self.codes)})"


def slower_convolutions(diagnosis: Diagnosis) -> Iterator[Finding]:
    """One finding per problem, from the first pair of configurations that shows it; for a CUDA target one in all."""
    seen = set[_Problem]()
    for first, second in evidence.format_pairs(diagnosis, "inductor", "eager"):
        there, here = _by_problem(first), _by_problem(second)
        for key in there.keys() & here.keys() - seen:
            slow, fast = sorted((there[key], here[key]), key=lambda one: -one.seconds)
            is_other_kernel = len(slow.kernels) == len(fast.kernels) and set(slow.codes) != set(fast.codes)
            is_large = takes_at_least(slow.trial, slow.seconds, _LEAST_SHARE_OF_CONVOLUTION)
            is_slower = 0 < fast.seconds <= min(slow.seconds / _SLOWER_CONVOLUTION, slow.seconds - _LEAST_SECONDS)
            if slow.groups > 1 and is_other_kernel and is_large and is_slower:
                seen.add(key)
                yield _convolution_finding(diagnosis, slow, fast)
    if (diagnosis.subject.target or "").startswith("cuda"):
        yield from _on_target(diagnosis)


def _by_problem(trial: Trial) -> dict[_Problem, _Convolutions]:
    found: dict[_Problem, _Convolutions] = {}
    for kernel in kernels_of(trial):
        node = node_of(trial, kernel)
        is_cudnn = kernel.library == "cudnn" and "conv" in (kernel.op or "") and kernel.node is not None
        is_onednn = kernel.library == "onednn" and kernel.name in ("convolution", "deconvolution")
        text = kernel.problem or (node.module if node is not None else None)
        if text is not None and (is_onednn or is_cudnn):
            key = (kernel.library or "", text, kernel.backward)
            found.setdefault(key, _Convolutions(trial, [])).kernels.append(kernel)
    return found


def _convolution_finding(diagnosis: Diagnosis, slow: _Convolutions, fast: _Convolutions) -> Finding:
    kernel, modules = slow.kernels[0], slow.modules or fast.modules
    node = node_of(slow.trial, kernel)
    facts = (
        f"{len(slow.kernels)} calls" if len(slow.kernels) > 1 else None,
        "backward" if kernel.backward else None,
        f"{slow.groups} groups",
        kernel.problem,
    )
    return LD303.finding(
        slow.trial.name,
        f"{listing(modules) or 'a convolution'} ({joined(facts, ', ')}) takes {slow.words()} and {fast.words()}: "
        f"{format_ratio(slow.seconds / fast.seconds)} slower, in profiled iterations",
        "choose the format by the time of the whole model; a fallback kernel (ref, gemm:ref, naive) is the "
        "usual cause, so convert around this layer or change its groups where the rest gains",
        severity=severity_of_gain(Times(diagnosis).over(fast.trial.name, slow.trial.name)),
        at=Place(next(iter(modules), None), node.location if node is not None else None),
        evidence=(slow.trial.name, fast.trial.name),
        seconds=slow.seconds - fast.seconds,
    )


def _on_target(diagnosis: Diagnosis) -> Iterator[Finding]:
    """For a CUDA device that is not there: a loss that cannot be measured here, but is known to happen."""
    static = (trial for trial in evidence.own_trials(diagnosis) if trial.is_static)
    for trial, grouped in evidence.first_showing(static, _grouped_in_channels_last):
        names = listing([convolution_words(convolution) for convolution in grouped])
        yield LD303.finding(
            trial.name,
            f"{names} would run channels-last with more than one channel per group: "
            "cuDNN's grouped kernels can be some 30 times slower in channels_last (pytorch #34977)",
            "measure it on the device itself, with layout optimization on and off",
            evidence=[convolution.node for convolution in grouped],
            at=grouped[0],
        )


def _grouped_in_channels_last(trial: Trial) -> list[Convolution]:
    return [c for c in evidence.convolutions_of(trial.graphs) if c.class_ == "grouped" and c.channels_last]


LD303 = Rule("LD303", "convolution-slower-in-one-format", slower_convolutions)

# ------------------------------------------------------------------------------- LD305: reference code and fallbacks
_LEAST_SHARE_OF_FALLBACKS = 0.10
_REFERENCE = re.compile(r"(^|:)ref(:|$)")
_HEAVY = ("convolution", "deconvolution", "matmul", "inner_product")


def reference_kernels(diagnosis: Diagnosis) -> Iterator[Finding]:
    """One finding at most."""
    for trial, kernels in evidence.first_showing(evidence.main_or_eager(diagnosis), _dear_fallbacks):
        nodes = [node for kernel in kernels if (node := node_of(trial, kernel)) is not None]
        codes = distinct(f"oneDNN's {k.implementation}" if _is_reference(k) else op_words(k.name) for k in kernels)
        dtypes = listing(distinct(node.dtype for node in nodes))
        modules = listing(distinct(node.module for node in nodes))
        where, times = f" ({modules})" if modules else "", Times(diagnosis)
        other = times.clean_alternative(trial, _runs_other_code)
        yield LD305.finding(
            trial.name,
            f"{count_of(len(kernels), 'call')}{where}{f' in {dtypes}' if dtypes else ''} "
            f"{'runs' if len(kernels) == 1 else 'run'} in code that is not made to be fast ({listing(codes)}): "
            f"{wording.cost_words(trial, _sum(kernels))}",
            _other_code(times, trial, other, has_batch_of_one=any(_is_of_one(trial, kernel) for kernel in kernels)),
            severity=_severity_of_fallbacks(times, trial, other, kernels),
            evidence=codes,
            at=next(iter(nodes), None),
            seconds=_sum(kernels),
        )


def _dear_fallbacks(trial: Trial) -> list[Kernel]:
    """None if they take too little together."""
    found = _fallbacks(trial)
    return found if evidence.takes_at_least(trial, _sum(found), _LEAST_SHARE_OF_FALLBACKS) else []


def _fallbacks(trial: Trial) -> list[Kernel]:
    """The dearest first."""
    # Without oneDNN's log its primitives may run in there.
    is_logged = trial.kernels is not None and ONEDNN_LOG in trial.kernels.sources
    found = [
        kernel
        for kernel in evidence.kernels_of(trial)
        if _is_reference(kernel) or is_fallback(kernel) or (is_logged and kernel.name == CONVOLUTION_BACKWARD)
    ]
    return sorted(found, key=lambda kernel: -(kernel.seconds or 0.0))


def _sum(kernels: Sequence[Kernel]) -> float:
    return sum(kernel.seconds or 0.0 for kernel in kernels)


def _is_reference(kernel: Kernel) -> bool:
    return kernel.name in _HEAVY and _REFERENCE.search(kernel.implementation or "") is not None


def _is_of_one(trial: Trial, kernel: Kernel) -> bool:
    """Whether ATen convolves a batch of one sample on a CPU."""
    node = node_of(trial, kernel)
    shape = () if node is None or node.layout is None else node.layout.shape
    return kernel.name.startswith("aten::") and len(shape) > 2 and shape[0] == 1


def _runs_other_code(one: Trial) -> bool:
    """Without times, as where they are not reliable, none of its kernels may be one of these."""
    return not _dear_fallbacks(one) if one.kernel_seconds else bool(kernels_of(one)) and not _fallbacks(one)


def _severity_of_fallbacks(times: Times, trial: Trial, other: Trial | None, kernels: Sequence[Kernel]) -> Severity:
    severity = severity_of_loss(times, trial, evidence.share_of_kernels(trial, _sum(kernels)), _runs_other_code)
    if severity == "error" or any(map(_is_reference, kernels)):
        return severity
    return severity_of_gain(times.over(other.name, trial.name) if other is not None else None)


def _other_code(times: Times, trial: Trial, other: Trial | None, *, has_batch_of_one: bool) -> str:
    if other is not None:
        return use_instead(times, trial, other, "runs other code there")
    tries = ["another dtype", "another version of torch"]
    if has_batch_of_one:
        tries.insert(0, "a larger batch (small convolutions at batch 1 are left to this code on purpose)")
    if times.diagnosis.subject.device == "cuda":
        tries.append("torch.backends.cudnn.benchmark = True")
    clean = [one.name for one in times.clean_trials(trial, _runs_other_code)]
    if clean:
        why = refusal(times, trial, clean) or "not timed"
        return f"other code runs in {listing(map(shown, clean))}: {why}; compare also {listing(tries)}"
    others = [one for one in evidence.own_trials(times.diagnosis) if one.name != trial.name and one.status == "ok"]
    if others and all(map(_dear_fallbacks, others)):
        return f"it is not the layout: compare {listing(tries)}"
    return f"compare {listing(['another memory format', *tries])}"


LD305 = Rule("LD305", "reference-kernel", reference_kernels)
