"""LD305: convolutions and products in a library's reference code, or in ATen's fallbacks."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence

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
        is_other = _spends_less(trial, kernels)
        other = times.clean_alternative(trial, is_other)
        yield LD305.finding(
            trial.name,
            f"slow reference or fallback code ({listing(codes)}): {count_of(len(kernels), 'call')}"
            f"{phrase(' in {}', dtypes)}{phrase(' ({})', modules)}, {cost}",
            _other_code(
                times, trial, other, is_other, has_batch_of_one=any(_is_of_one(trial, kernel) for kernel in kernels)
            ),
            severity=_severity_of_fallbacks(times, trial, other, kernels, is_other),
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


def _spends_less(trial: Trial, kernels: Sequence[Kernel]) -> Callable[[Trial], bool]:
    """Returns a test of another trial: it has at most two thirds of the calls, and spends half of the time there."""

    def is_other(one: Trial) -> bool:
        found = _fallbacks(one)
        is_faster = bool(one.kernel_seconds) and 2 * evidence.seconds_of(found) <= evidence.seconds_of(kernels)
        is_less = not found or (is_faster and 3 * len(found) <= 2 * len(kernels))
        return bool(one.kernel_summary.kernels) and is_less

    return is_other


def _severity_of_fallbacks(
    times: Times, trial: Trial, other: Trial | None, kernels: Sequence[Kernel], is_other: Callable[[Trial], bool]
) -> Severity:
    severity = severity_of_loss(times, trial, evidence.share_of_kernels(trial, evidence.seconds_of(kernels)), is_other)
    if severity == "error" or any(map(_is_reference, kernels)):
        return severity
    return severity_of_gain(times.over(other.name, trial.name) if other is not None else None)


def _other_code(
    times: Times, trial: Trial, other: Trial | None, is_other: Callable[[Trial], bool], *, has_batch_of_one: bool
) -> str:
    if other is not None:
        left = phrase("has only {}", _fallbacks(other), lambda calls: count_of(len(calls), "such call"))
        return use_instead(times, trial, other, left or "runs other code there")
    tries = ["another dtype", "another version of torch"]
    if has_batch_of_one:
        tries.insert(0, "a larger batch (torch leaves small convolutions at batch 1 to this code on purpose)")
    if times.diagnosis.subject.device == "cuda":
        tries.append("torch.backends.cudnn.benchmark = True")
    clean = [one.name for one in times.clean_trials(trial, is_other)]
    if clean:
        why = refusal(times, trial, clean) or f"their times were not compared with {shown(trial.name)}"
        return f"other code runs in {listing(map(shown, clean))}: {why}; compare also {listing(tries)}"
    others = [one for one in evidence.own_trials(times.diagnosis) if one.name != trial.name and one.status == "ok"]
    if others and all(map(_dear_fallbacks, others)):
        return f"the layout is not the cause: compare {listing(tries)}"
    return f"compare {listing(['another memory format', *tries])}"


LD305 = Rule("LD305", "reference-kernel", reference_kernels)
