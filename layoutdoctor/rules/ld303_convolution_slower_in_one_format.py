"""
One convolution is much slower in one memory format than in the other.

What it finds:
    A grouped or depthwise convolution of the same problem that took at least twice as long in one format as in the
    other, by another kernel of the library, at least 200 us more, and at least 5 % of the kernel time. For a CUDA
    target that is not there: grouped convolutions that would run channels-last.

Why it costs:
    The library has a good kernel for one format only and falls back to a reference or a generic one in the other. One
    such convolution can cost what all the others gain.

Example:
    A 3x3 convolution with 32 groups, which a network has among many plain ones; in channels_last it is 20 times slower.

What to do:
    Choose the format by the time of the whole model. Where all but this one convolution gain, convert around it, or
    give it another number of groups.

When it is fine:
    The whole model is not slower for it: a warning is given only where the configuration with the slow one was measured
    to lose at least 2 % against the other, else a note. A plain convolution that is faster in one format is the usual
    case, and the same kernel in both formats differs by chance: no finding.

Source:
    torch/_inductor/graph.py, torch 2.13: a grouped convolution that "slows down 31x using channels last";
    pytorch/pytorch issues #34977 and #50036. The times are those of one
    profiled iteration, hence the wide margins.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

from layoutdoctor.examination.costs import Place
from layoutdoctor.rules import evidence
from layoutdoctor.rules import graph_evidence as decisions
from layoutdoctor.rules.advice import severity_of_gain
from layoutdoctor.rules.base import document_rule
from layoutdoctor.rules.evidence import format_pairs, node_of
from layoutdoctor.rules.times import Times
from layoutdoctor.units import format_ratio, format_seconds
from layoutdoctor.words import distinct, listing

if TYPE_CHECKING:
    from collections.abc import Iterator

    from layoutdoctor.diagnosis.records import Convolution, Diagnosis, Finding, Kernel, Trial

_LIBRARIES = ("onednn", "cudnn")
_GROUPS = re.compile(r"(?:^|_)g(\d+)(?=mb|ic)")  # g32mb4_ic256oc256_ih56..., as oneDNN writes it
_FACTOR = 2.0
_LEAST_SECONDS = 200e-6
_LEAST_SHARE = 0.05

_Key = tuple[str, str, bool]


@dataclass(frozen=True)
class _Convolutions:
    """All convolutions of one key in one trial, together."""

    trial: Trial
    kernels: tuple[Kernel, ...]
    modules: tuple[str, ...]
    groups: int

    @property
    def seconds(self) -> float:
        """Time of all of them in the profiled iteration."""
        return sum(kernel.seconds or 0.0 for kernel in self.kernels)

    @property
    def codes(self) -> frozenset[str]:
        """What the library calls the code that ran."""
        return frozenset(kernel.implementation or kernel.name for kernel in self.kernels)


def check(diagnosis: Diagnosis) -> Iterator[Finding]:
    """One finding per problem, from the first pair of configurations that shows it; for a CUDA target one in all."""
    told: set[_Key] = set()
    for first, second in format_pairs(diagnosis):
        there, here = _by_key(first), _by_key(second)
        for key in there.keys() & here.keys() - told:
            slow, fast = sorted((there[key], here[key]), key=lambda one: -one.seconds)
            is_other_kernel = len(slow.kernels) == len(fast.kernels) and slow.codes != fast.codes
            if slow.groups > 1 and is_other_kernel and _is_slower(slow, fast):
                told.add(key)
                yield _finding(diagnosis, slow, fast)
    yield from _on_target(diagnosis)


def _by_key(trial: Trial) -> dict[_Key, _Convolutions]:
    found: dict[_Key, list[tuple[Kernel, str | None]]] = {}
    for kernel in trial.kernels.kernels if trial.kernels is not None else ():
        if kernel.library not in _LIBRARIES or not _is_convolution(kernel):
            continue
        node = node_of(trial, kernel)
        module = node.module if node is not None else None
        text = kernel.problem or module
        if text is not None:
            found.setdefault((kernel.library, text, kernel.backward), []).append((kernel, module))
    return {
        key: _Convolutions(
            trial,
            tuple(kernel for kernel, _ in members),
            tuple(dict.fromkeys(module for _, module in members if module is not None)),
            _groups(trial, members),
        )
        for key, members in found.items()
    }


def _is_convolution(kernel: Kernel) -> bool:
    if kernel.library == "onednn":
        return kernel.name in ("convolution", "deconvolution")
    return "conv" in (kernel.op or "") and kernel.node is not None


def _groups(trial: Trial, members: list[tuple[Kernel, str | None]]) -> int:
    """The groups of a convolution, by oneDNN's problem text, else by the card of the graph it stands in."""
    match = _GROUPS.search(members[0][0].problem or "")
    if match is not None:
        return int(match[1])
    cards = evidence.cards_of(trial)
    modules = {module for _, module in members if module is not None}
    return max((c.groups or 1 for card in cards for c in card.convolutions if c.module in modules), default=1)


def _is_slower(slow: _Convolutions, fast: _Convolutions) -> bool:
    share = evidence.share_of_kernels(slow.trial, slow.seconds)
    is_large = share is not None and share >= _LEAST_SHARE and slow.seconds - fast.seconds >= _LEAST_SECONDS
    return is_large and 0 < fast.seconds <= slow.seconds / _FACTOR


def _finding(diagnosis: Diagnosis, slow: _Convolutions, fast: _Convolutions) -> Finding:
    kernel = slow.kernels[0]
    node = node_of(slow.trial, kernel)
    modules = slow.modules or fast.modules
    ratio = format_ratio(slow.seconds / fast.seconds)
    count = f"{len(slow.kernels)} calls, " if len(slow.kernels) > 1 else ""
    backward = "backward, " if kernel.backward else ""
    name = listing(list(modules)) if modules else "a convolution"
    problem = f", {kernel.problem}" if kernel.problem else ""
    return RULE.finding(
        slow.trial.name,
        f"{name} ({count}{backward}{slow.groups} groups{problem}) takes {_time_words(slow)} and {_time_words(fast)}: "
        f"{ratio} slower, in profiled iterations",
        "choose the format by the time of the whole model; a fallback kernel (ref, gemm:ref, naive) is the "
        "usual cause, so convert around this layer or change its groups where the rest gains",
        severity=severity_of_gain(Times(diagnosis).over(fast.trial.name, slow.trial.name)),
        at=Place(modules[0] if modules else None, node.location if node is not None else None, 1, None),
        evidence=(slow.trial.name, fast.trial.name),
        seconds=slow.seconds - fast.seconds,
    )


def _time_words(convolutions: _Convolutions) -> str:
    codes = distinct(kernel.implementation or kernel.name for kernel in convolutions.kernels)
    return f"{format_seconds(convolutions.seconds)} in {evidence.shown(convolutions.trial.name)} ({listing(codes)})"


def _on_target(diagnosis: Diagnosis) -> Iterator[Finding]:
    """For a CUDA device that is not there: what cannot be measured here, but is known to happen."""
    if not (diagnosis.subject.target or "").startswith("cuda"):
        return
    static = (trial for trial in evidence.own_trials(diagnosis) if trial.is_static)
    for trial, grouped in evidence.first_showing(static, _grouped):
        names = listing([decisions.convolution_words(convolution) for convolution in grouped])
        yield RULE.finding(
            trial.name,
            f"{names} would run channels-last with more than one channel per group: "
            "cuDNN's grouped kernels can be some 30 times slower in channels_last (pytorch #34977)",
            "measure it on the device itself, with layout optimization on and off",
            evidence=[convolution.node for convolution in grouped],
            at=grouped[0],
        )


def _grouped(trial: Trial) -> list[Convolution]:
    """The grouped convolutions that would run channels-last."""
    convolutions = [c for card in evidence.cards_of(trial) for c in card.convolutions]
    return [c for c in convolutions if c.class_ == "grouped" and c.channels_last]


RULE = document_rule("LD303", "convolution-slower-in-one-format", check, __doc__)
