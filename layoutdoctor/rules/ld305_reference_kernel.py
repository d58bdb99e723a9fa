"""LD305: convolutions and products in a library's reference code, or in ATen's fallbacks."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from layoutdoctor.diagnosis import Diagnosis, Finding, Kernel, Severity, Trial
from layoutdoctor.examination.kernels.host import CONVOLUTION_BACKWARD
from layoutdoctor.examination.kernels.names import is_fallback
from layoutdoctor.rules import evidence, wording
from layoutdoctor.rules.advice import Times, refusal, severity_of_gain, severity_of_loss, use_instead
from layoutdoctor.rules.base import Rule
from layoutdoctor.rules.evidence import node_of
from layoutdoctor.words import count_of, distinct, listing, op_words, phrase, shown

_LEAST_SHARE_OF_FALLBACKS = 0.10
_REFERENCE = re.compile(r"(^|:)ref(:|$)")
_HEAVY = ("convolution", "deconvolution", "matmul", "inner_product")


def reference_kernels(diagnosis: Diagnosis) -> Iterator[Finding]:
    """Yields at most one finding, about the baseline or else eager, if reference or fallback code takes much time."""
    for trial, kernels in evidence.first_showing(evidence.main_or_eager(diagnosis), _dear_fallbacks):
        nodes = [node for kernel in kernels if (node := node_of(trial, kernel)) is not None]
        codes = distinct(f"oneDNN's {k.implementation}" if _is_reference(k) else op_words(k.name) for k in kernels)
        dtypes = listing(distinct(node.dtype for node in nodes))
        modules = listing(distinct(node.module for node in nodes))
        cost = wording.cost_words(trial, evidence.seconds_of(kernels))
        times = Times(diagnosis)
        other = times.clean_alternative(trial, _runs_other_code)
        yield LD305.finding(
            trial.name,
            f"slow reference or fallback code ({listing(codes)}): {count_of(len(kernels), 'call')}"
            f"{phrase(' in {}', dtypes)}{phrase(' ({})', modules)}, {cost}",
            _other_code(times, trial, other, has_batch_of_one=any(_is_of_one(trial, kernel) for kernel in kernels)),
            severity=_severity_of_fallbacks(times, trial, other, kernels),
            evidence=codes,
            at=next(iter(nodes), None),
            seconds=evidence.seconds_of(kernels),
        )


def _dear_fallbacks(trial: Trial) -> list[Kernel]:
    """Returns kernels in reference or fallback code, the costliest first; empty if they take too little time."""
    found = _fallbacks(trial)
    return found if evidence.takes_at_least(trial, evidence.seconds_of(found), _LEAST_SHARE_OF_FALLBACKS) else []


def _fallbacks(trial: Trial) -> list[Kernel]:
    """Returns the kernels in reference or fallback code, the costliest first."""
    # Without oneDNN's log, it is not known whether ATen's backward ran oneDNN's primitives.
    is_logged = "onednn_log" in trial.kernel_summary.sources
    found = [
        kernel
        for kernel in trial.kernel_summary.kernels
        if _is_reference(kernel) or is_fallback(kernel) or (is_logged and kernel.name == CONVOLUTION_BACKWARD)
    ]
    return sorted(found, key=lambda kernel: -(kernel.seconds or 0.0))


def _is_reference(kernel: Kernel) -> bool:
    return kernel.name in _HEAVY and _REFERENCE.search(kernel.implementation or "") is not None


def _is_of_one(trial: Trial, kernel: Kernel) -> bool:
    """Whether a kernel is ATen's convolution of a batch of one sample on a CPU."""
    node = node_of(trial, kernel)
    shape = () if node is None or node.layout is None else node.layout.shape
    return kernel.name.startswith("aten::") and len(shape) > 2 and shape[0] == 1


def _runs_other_code(one: Trial) -> bool:
    """Whether a trial spends little time in reference or fallback code; without times, whether no such code ran."""
    return not _dear_fallbacks(one) if one.kernel_seconds else bool(one.kernel_summary.kernels) and not _fallbacks(one)


def _severity_of_fallbacks(times: Times, trial: Trial, other: Trial | None, kernels: Sequence[Kernel]) -> Severity:
    severity = severity_of_loss(
        times, trial, evidence.share_of_kernels(trial, evidence.seconds_of(kernels)), _runs_other_code
    )
    if severity == "error" or any(map(_is_reference, kernels)):
        return severity
    return severity_of_gain(times.over(other.name, trial.name) if other is not None else None)


def _other_code(times: Times, trial: Trial, other: Trial | None, *, has_batch_of_one: bool) -> str:
    if other is not None:
        return use_instead(times, trial, other, "runs other code there")
    tries = ["another dtype", "another version of torch"]
    if has_batch_of_one:
        tries.insert(0, "a larger batch (torch leaves small convolutions at batch 1 to this code on purpose)")
    if times.diagnosis.subject.device == "cuda":
        tries.append("torch.backends.cudnn.benchmark = True")
    clean = [one.name for one in times.clean_trials(trial, _runs_other_code)]
    if clean:
        why = refusal(times, trial, clean) or "not timed"
        return f"other code runs in {listing(map(shown, clean))}: {why}; compare also {listing(tries)}"
    others = [one for one in evidence.own_trials(times.diagnosis) if one.name != trial.name and one.status == "ok"]
    if others and all(map(_dear_fallbacks, others)):
        return f"the layout is not the cause: compare {listing(tries)}"
    return f"compare {listing(['another memory format', *tries])}"


LD305 = Rule("LD305", "reference-kernel", reference_kernels)
