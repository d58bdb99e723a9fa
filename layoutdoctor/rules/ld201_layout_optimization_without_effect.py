"""
Inductor reports layout optimization as applied, and nothing came of it.

What it finds:
    A compiled graph with convolutions whose decision is "applied" though none of them was made channels-last; or a
    model with convolutions whose generated code is the same with layout optimization on and off. Where the tensors were
    in channels_last_3d before, it counts those that the compiler brought back to the contiguous format, and says
    whether it converts fewer with the optimization off. Graphs of 1-D convolutions only are LD210.

Why it costs:
    Nothing by itself, unless the compiler brings channels_last_3d tensors back. But the flag says that the layouts were
    taken care of, so nobody looks further, and the library goes on converting around each convolution.

Example:
    A stack of Conv3d: the decision is True, 0 of 4 convolutions are made channels-last, and on a CPU oneDNN does the
    same 7 conversions of activations with the flag on and off. With channels_last_3d input and weights it does none.

What to do:
    If the compiler converts fewer tensors with it off, as for a channels_last_3d model under autocast, switch it off:
    ``torch.compile(model, options={"layout_optimization": False})``. Other Conv3d: convert the parameters and the input
    to ``torch.channels_last_3d`` by hand, and measure; ``Module.to(memory_format=torch.channels_last)`` raises on a 5-D
    parameter, so convert them by rank.

When it is fine:
    The model is given in channels-last already, so there was nothing left to do; or the weights are frozen: packed
    convolutions choose channels-last themselves, whatever the flag says.

Source:
    torch/_inductor/kernel/conv.py, torch 2.13: ``if V.graph.layout_opt and ndim == 2``. The decision itself counts
    convolutions of every rank (``GraphLowering.decide_layout_opt``, torch/_inductor/graph.py). That the compiler's
    shape inference for convolutions dropped channels_last_3d is pytorch/pytorch issue #177277.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from layoutdoctor.diagnosis.records import INCONCLUSIVE
from layoutdoctor.examination.costs import sum_known
from layoutdoctor.rules import evidence
from layoutdoctor.rules import graph_evidence as decisions
from layoutdoctor.rules.advice import OFF, SWITCH_OFF, advised, other_cure, severity_of_gain
from layoutdoctor.rules.base import document_rule
from layoutdoctor.rules.times import Times, ratio_words, speed_words
from layoutdoctor.units import format_bytes
from layoutdoctor.words import count_of

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from layoutdoctor.diagnosis.records import Conversion, Convolution, Decision, Diagnosis, Finding, Trial

_OFF = OFF[0]
_CHANNELS_LAST_3D = ("channels_last_3d",)


def check(diagnosis: Diagnosis) -> Iterator[Finding]:
    """One finding at most: for the first configuration that leaves the layouts to Inductor."""
    same = [trial for trial in diagnosis.trials if trial.status == "same_as"]
    for trial in (*evidence.own_trials(diagnosis), *same):
        if not decisions.leaves_layouts_to_inductor(trial):
            continue
        idle = [decision for decision in _applied_decisions(trial) if _is_idle(decision)]
        convolutions = [convolution for decision in idle for convolution in decision.convolutions]
        if idle:
            count = sum(decision.convolution_count for decision in idle)
            message = f"layout optimization applied, 0 of {count_of(count, 'convolution')} made channels-last"
            message += _reason(diagnosis, trial, convolutions) + _returned_words(diagnosis, trial)
            yield _finding(diagnosis, trial, message, convolutions)
            return
        if _applied_decisions(trial) and _is_same_without(diagnosis, trial):
            message = "layout optimization applied, but the generated code is the same without it"
            yield _finding(diagnosis, trial, message, convolutions)
            return


def _applied_decisions(trial: Trial) -> list[Decision]:
    cards = [card for card in evidence.cards_of(trial) if card.applied and card.convolution_count]
    return [card for card in cards if not decisions.is_one_dimensional(card)]


def _is_idle(decision: Decision) -> bool:
    """Whether no convolution was made channels-last, though not all were so already."""
    already = bool(decision.convolutions) and all(convolution.channels_last for convolution in decision.convolutions)
    return decision.channels_last_convolution_count == 0 and not already


def _reason(diagnosis: Diagnosis, trial: Trial, convolutions: Sequence[Convolution]) -> str:
    ranks = sorted({convolution.rank or 0 for convolution in convolutions})  # 0: not recorded
    if not ranks or 0 in ranks or 2 in ranks:
        return ""
    words = " or ".join(f"{rank}-D" for rank in ranks)
    counts = len(_converted(trial)), _count_without(diagnosis, trial)
    toggling = ", so toggling layout_optimization changes nothing" if counts[0] == 0 or counts[0] == counts[1] else ""
    return f": all are {words} and Inductor's rule covers 2-D only{toggling}"


def _returned_words(diagnosis: Diagnosis, trial: Trial) -> str:
    """What the compiler brings back from channels_last_3d, with the caller's layouts or with channels_last input."""
    where, conversions = _returned_of(diagnosis, trial)
    moved = sum_known(conversion.bytes_moved for conversion in conversions)
    size = f", {format_bytes(moved)}" if moved is not None else ""
    count = count_of(len(conversions), "tensor")
    words = f"the compiler brings {count} from channels_last_3d back to contiguous{size}"
    if conversions and where is trial and _is_cured_by_off(diagnosis, trial):
        left = _count_without(diagnosis, trial)
        converts = f"{left} of {len(_converted(trial))}" if left else "none"
        words += f"; with it off ({evidence.shown(_OFF)}) it converts {converts}"
    return f"; under {evidence.shown(where.name)} {words}" if conversions else ""


def _converted(trial: Trial) -> list[Conversion]:
    """What the compiler converts of its own accord in each call."""
    found = [c for graph in trial.graphs for c in graph.conversions]
    return [c for c in found if c.owner == "compiler" and c.direction != "none"]


def _count_without(diagnosis: Diagnosis, trial: Trial) -> int | None:
    """How many tensors the compiler converts with layout optimization off; None where that was not recorded."""
    off = diagnosis.measured_trial(_OFF)
    is_known = off is not None and off.status == "ok" and len(off.graphs) == len(trial.graphs)
    return len(_converted(off)) if off is not None and is_known else None


def _is_cured_by_off(diagnosis: Diagnosis, trial: Trial) -> bool:
    left = _count_without(diagnosis, trial)
    return left is not None and left < len(_converted(trial))


def _returned_of(diagnosis: Diagnosis, trial: Trial) -> tuple[Trial, list[Conversion]]:
    others = (diagnosis.measured_trial(name) for name in evidence.CHANNELS_LAST_CONFIGURATIONS)
    trials = [candidate for candidate in (trial, *others) if candidate is not None]
    found = [(t, [c for graph in t.graphs for c in graph.conversions if _is_returned(c)]) for t in trials]
    return next((pair for pair in found if pair[1]), (trial, []))


def _is_returned(conversion: Conversion) -> bool:
    source, target = conversion.source, conversion.target
    if source is None or target is None or conversion.owner != "compiler" or conversion.role == "exit":
        return False
    return source.memory_formats == _CHANNELS_LAST_3D and "contiguous_format" in target.memory_formats


def _is_same_without(diagnosis: Diagnosis, trial: Trial) -> bool:
    off = diagnosis.find_trial(_OFF)
    return off is not None and (off.same_as == trial.name or trial.same_as == off.name)


def _finding(diagnosis: Diagnosis, trial: Trial, message: str, convolutions: Sequence[Convolution]) -> Finding:
    ways = OFF if _is_cured_by_off(diagnosis, trial) else evidence.CHANNELS_LAST_CONFIGURATIONS
    gain = Times(diagnosis).fastest(ways)
    return RULE.finding(
        trial.name,
        message,
        _suggestion(diagnosis, trial, {convolution.rank for convolution in convolutions}),
        severity=severity_of_gain(gain),
        evidence=[convolution.node for convolution in convolutions],
        at=convolutions[0] if convolutions else None,
    )


def _suggestion(diagnosis: Diagnosis, trial: Trial, ranks: set[int | None]) -> str | None:
    if _is_cured_by_off(diagnosis, trial):
        return advised(Times(diagnosis), trial, OFF, SWITCH_OFF)
    wanted = "channels_last_3d" if ranks == {3} else "channels_last"
    if diagnosis.subject.parameter_formats.keys() == {wanted}:
        if not _returned_of(diagnosis, trial)[1]:
            return None  # already there is what the flag cannot do
        return "compare with eager, where no compiler brings tensors back to contiguous (pytorch #177277)"
    advice = f"convert the parameters and the input to torch.{wanted} by hand"
    times = Times(diagnosis)
    gain = times.fastest(evidence.CHANNELS_LAST_CONFIGURATIONS)
    against = other_cure(times, trial, lambda cure: cure.input_format == "channels_last")
    if gain is not None and against is not None:
        return against
    by_hand = evidence.CHANNELS_LAST_CONFIGURATIONS[0]
    measured = gain or times.ratio(by_hand)
    if measured is None:
        return f"{advice}, and measure: the flag will not do it"
    if measured.verdict == INCONCLUSIVE and times.is_advisable(by_hand, times.baseline):
        return f"{advice}: {evidence.shown(by_hand)} measured {ratio_words(measured)}"
    words = speed_words(measured, times.baseline)
    return f"{advice}: {words}" if gain is not None else f"nothing to gain by hand either: {words}"


RULE = document_rule("LD201", "layout-optimization-without-effect", check, __doc__)
