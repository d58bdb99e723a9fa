"""LD303: a grouped convolution that runs in a slower kernel in one of the formats."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

from layoutdoctor.diagnosis import Convolution, Diagnosis, Finding, Kernel, Trial
from layoutdoctor.examination.counts import Hotspot
from layoutdoctor.rules import evidence
from layoutdoctor.rules.advice import Times, severity_of_gain
from layoutdoctor.rules.base import Rule
from layoutdoctor.rules.decisions import convolution_words
from layoutdoctor.rules.evidence import node_of, takes_at_least
from layoutdoctor.units import format_ratio, format_seconds
from layoutdoctor.words import count_of, distinct, joined, listing, shown

_GROUPS = re.compile(r"(?:^|_)g(\d+)(?=mb|ic)")  # g32mb4_ic256oc256_ih56..., as oneDNN writes it
_SLOWER_CONVOLUTION = 2.0
_LEAST_SECONDS = 200e-6
_LEAST_SHARE_OF_CONVOLUTION = 0.05

_Problem = tuple[str, str, bool]  # library, sizes or else module, whether in the backward


@dataclass(frozen=True)
class _Convolutions:
    """The calls of one problem in one trial: convolutions with equal sizes, or of one module if sizes are unknown."""

    trial: Trial
    kernels: list[Kernel]

    @property
    def modules(self) -> list[str]:
        nodes = (node_of(self.trial, kernel) for kernel in self.kernels)
        return distinct(node.module for node in nodes if node is not None)

    @property
    def seconds(self) -> float:
        return evidence.seconds_of(self.kernels)

    @property
    def codes(self) -> list[str]:
        return distinct(kernel.implementation or kernel.name for kernel in self.kernels)

    @property
    def groups(self) -> int:
        """The number of groups, from oneDNN's problem text, or else from the graph's layout decision."""
        match = _GROUPS.search(self.kernels[0].problem or "")
        known = [c.groups or 1 for c in self.trial.convolutions if c.module in self.modules]
        return int(match[1]) if match is not None else max(known, default=1)

    def words(self) -> str:
        return f"{format_seconds(self.seconds)} in {shown(self.trial.name)} ({listing(self.codes)})"


def slower_convolutions(diagnosis: Diagnosis) -> Iterator[Finding]:
    """Yields one finding per grouped convolution that one format slows; at most one for an absent CUDA device."""
    seen = set[_Problem]()
    for first, second in evidence.format_pairs(diagnosis):
        there, here = _by_problem(first), _by_problem(second)
        for key in [key for key in there if key in here and key not in seen]:
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
    for kernel in trial.kernel_summary.kernels:
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
        count_of(len(slow.kernels), "call") if len(slow.kernels) > 1 else None,
        "backward" if kernel.backward else None,
        f"{slow.groups} groups" if modules else kernel.problem,
    )
    name = f"{joined(('grouped convolution', listing(modules, 2)), ' ')} ({joined(facts, ', ')})"
    ratio = f"{format_ratio(slow.seconds / fast.seconds)} slower in profiled iterations"
    return LD303.finding(
        slow.trial.name,
        f"{name}: {slow.words()}, {fast.words()}, {ratio}",
        "choose the format by the time of the whole model; the usual cause is a fallback kernel (ref, gemm:ref, "
        "naive): if the rest of the model gains, convert around this layer or change its groups",
        severity=severity_of_gain(Times(diagnosis).over(fast.trial.name, slow.trial.name)),
        at=Hotspot(next(iter(modules), None), node.location if node is not None else None),
        evidence=(slow.trial.name, fast.trial.name),
        seconds=slow.seconds - fast.seconds,
    )


def _on_target(diagnosis: Diagnosis) -> Iterator[Finding]:
    """Yields a finding about a known loss that cannot be measured, because the CUDA device is not there."""

    def grouped_in_channels_last(trial: Trial) -> list[Convolution]:
        return [c for c in trial.convolutions if c.class_ == "grouped" and c.channels_last]

    static = (trial for trial in evidence.own_trials(diagnosis) if trial.is_static)
    for trial, grouped in evidence.first_showing(static, grouped_in_channels_last):
        names = listing([convolution_words(convolution) for convolution in grouped], 2)
        yield LD303.finding(
            trial.name,
            f"channels_last for convolutions with several channels per group: {names}; cuDNN's kernels for them can be "
            "some 30 times slower (pytorch #34977)",
            "measure it on the device itself, with layout optimization on and off",
            evidence=[convolution.node for convolution in grouped],
            at=grouped[0],
        )


LD303 = Rule("LD303", "convolution-slower-in-one-format", slower_convolutions)
