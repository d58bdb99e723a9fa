"""LD305 and LD308: time that goes to code made for every case, or to memory that the system gives again."""

from __future__ import annotations

import re
import statistics
from typing import TYPE_CHECKING

from layoutdoctor.examination.choice import KEEPS_MEMORY
from layoutdoctor.examination.costs import Place
from layoutdoctor.examination.kernels.host import CONVOLUTION_BACKWARD
from layoutdoctor.examination.kernels.names import is_fallback
from layoutdoctor.rules import evidence, wording
from layoutdoctor.rules.advice import severity_of_gain, use_instead, verified_cure
from layoutdoctor.rules.base import Rule
from layoutdoctor.rules.times import Times, alternative_words
from layoutdoctor.rules.wording import shown
from layoutdoctor.units import format_significant
from layoutdoctor.words import ONEDNN_LOG, count_of, distinct, listing, op_words

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from layoutdoctor.diagnosis.answer import Finding, Severity
    from layoutdoctor.diagnosis.diagnosis import Diagnosis
    from layoutdoctor.diagnosis.graph import FxNode
    from layoutdoctor.diagnosis.kernel import Kernel
    from layoutdoctor.diagnosis.trial import Trial

# ------------------------------------------------------------------------------- LD305: reference code and fallbacks
_LEAST_SHARE = 0.10
_REFERENCE = re.compile(r"(^|:)ref(:|$)")
_HEAVY = ("convolution", "deconvolution", "matmul", "inner_product")


def reference_kernels(diagnosis: Diagnosis) -> Iterator[Finding]:
    """One finding at most."""
    for trial, kernels in evidence.first_showing(evidence.main_or_eager(diagnosis), _dear_fallbacks):
        nodes = [evidence.node_of(trial, kernel) for kernel in kernels]
        codes = distinct(_code(kernel) for kernel in kernels)
        dtypes = listing(distinct(node.dtype for node in nodes if node is not None))
        modules = distinct(node.module for node in nodes if node is not None)
        dearest = next((node for node in nodes if node is not None), None)
        where = f" ({listing(modules)})" if modules else ""
        times = Times(diagnosis)
        other = times.clean_alternative(trial, _runs_other_code)
        yield LD305.finding(
            trial.name,
            f"{count_of(len(kernels), 'call')}{where}{f' in {dtypes}' if dtypes else ''} "
            f"{'runs' if len(kernels) == 1 else 'run'} in code that is not made to be fast ({listing(codes)}): "
            f"{wording.cost_words(trial, _seconds(kernels))}",
            _suggestion(times, trial, other, has_batch_of_one=any(map(_is_of_one, kernels, nodes))),
            severity=_severity(times, trial, other, is_reference=any(map(_is_reference, kernels))),
            evidence=codes,
            at=Place(modules[0] if modules else None, dearest.location if dearest is not None else None, 1, None),
            seconds=_seconds(kernels),
        )


def _dear_fallbacks(trial: Trial) -> list[Kernel]:
    """The dearest first; none if they take too little together."""
    # Without oneDNN's log its primitives may run in there.
    is_logged = trial.kernels is not None and ONEDNN_LOG in trial.kernels.sources
    found = [
        kernel
        for kernel in evidence.kernels_of(trial)
        if _is_reference(kernel) or is_fallback(kernel) or (is_logged and kernel.name == CONVOLUTION_BACKWARD)
    ]
    found.sort(key=lambda kernel: -(kernel.seconds or 0.0))
    return found if evidence.takes_at_least(trial, _seconds(found), _LEAST_SHARE) else []


def _seconds(kernels: Sequence[Kernel]) -> float:
    return sum(kernel.seconds or 0.0 for kernel in kernels)


def _is_reference(kernel: Kernel) -> bool:
    return kernel.name in _HEAVY and _REFERENCE.search(kernel.implementation or "") is not None


def _code(kernel: Kernel) -> str:
    """``oneDNN's ref:any``, or the name of the operation."""
    return f"oneDNN's {kernel.implementation}" if _is_reference(kernel) else op_words(kernel.name)


def _is_of_one(kernel: Kernel, node: FxNode | None) -> bool:
    """Whether ATen convolves a batch of one sample on a CPU."""
    shape = () if node is None or node.layout is None else node.layout.shape
    return kernel.name.startswith("aten::") and len(shape) > 2 and shape[0] == 1


def _runs_other_code(one: Trial) -> bool:
    return one.kernels is not None and bool(one.kernels.seconds) and not _dear_fallbacks(one)


def _severity(times: Times, trial: Trial, other: Trial | None, *, is_reference: bool) -> Severity:
    cure = verified_cure(times.diagnosis)
    if cure is not None and times.is_baseline(trial.name) and _runs_other_code(cure):
        return "error"
    if is_reference:
        return "warning"
    return severity_of_gain(times.over(other.name, trial.name) if other is not None else None)


def _suggestion(times: Times, trial: Trial, other: Trial | None, *, has_batch_of_one: bool) -> str:
    if other is not None:
        return use_instead(times, trial, other, "runs other code there")
    tries = ["another dtype", "another version of torch"]
    if has_batch_of_one:
        tries.insert(0, "a larger batch (small convolutions at batch 1 are left to this code on purpose)")
    if times.diagnosis.subject.device == "cuda":
        tries.append("torch.backends.cudnn.benchmark = True")
    clean = times.clean_trials(trial, _runs_other_code)
    if clean:
        measured = listing(distinct(alternative_words(times, trial, one) or None for one in clean)) or "not timed"
        names = listing([shown(one.name) for one in clean])
        verb = "runs" if len(clean) == 1 else "run"
        return f"{names} {verb} other code there: {measured}; compare also {listing(tries)}"
    others = [one for one in evidence.own_trials(times.diagnosis) if one.name != trial.name and one.status == "ok"]
    if others and all(map(_dear_fallbacks, others)):
        return f"it is not the layout: compare {listing(tries)}"
    return f"compare {listing(['another memory format', *tries])}"


LD305 = Rule("LD305", "reference-kernel", reference_kernels)

# --------------------------------------------------------------------------------- LD308: memory that is given back
_LEAST_FACTOR = 1.05
_WARNING_FACTOR = 1.10
_SETTINGS = " ".join(f"{name}={value}" for name, value in KEEPS_MEMORY.items())


def memory_given_back(diagnosis: Diagnosis) -> Iterator[Finding]:
    """One finding at most, about the default and the recommended configuration."""
    advice = diagnosis.recommendation
    chosen = diagnosis.measured_trial(advice.configuration) if advice is not None and advice.configuration else None
    factors, extra = {}, {}
    for trial in (diagnosis.baseline, chosen):
        measured = trial.measurement if trial is not None else None
        if trial is not None and measured is not None and measured.unkept_seconds:
            unkept = statistics.median(measured.unkept_seconds)
            factors[trial.name], extra[trial.name] = unkept / measured.median_seconds, unkept - measured.median_seconds
    name = max(factors, key=lambda name: factors[name], default=None)
    if name is not None and factors[name] >= _LEAST_FACTOR:
        takes = listing(
            f"{shown(one)} takes {format_significant(factor)} times as long" for one, factor in factors.items()
        )
        yield LD308.finding(
            name,
            f"{takes} in a fresh process whose allocator gives memory back to the system (glibc's default)",
            f"start the process with {_SETTINGS} in its environment",
            severity="warning" if factors[name] >= _WARNING_FACTOR else "note",
            seconds=extra[name],
        )


LD308 = Rule("LD308", "memory-given-back", memory_given_back)
