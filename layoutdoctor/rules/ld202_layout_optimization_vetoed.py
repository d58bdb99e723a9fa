"""
Inductor decided against channels-last, because of one of its rules.

What it finds:
    A compiled graph with convolutions, layout optimization left on, whose decision is "not applied": the rule that
    decided, and each convolution that made it decide so. Each rule is told once, in the first configuration with it.

Why it costs:
    The decision is one for the whole graph: one grouped convolution keeps all the others in the contiguous format,
    and the library converts around each. In the backward alone it sets the two halves of a training step against each
    other: what the forward saved in channels-last is laid out anew.

Example:
    A U-Net in training: one 3x3 convolution from 192 to 64 channels, and the whole network stays contiguous.

What to do:
    Measure what the veto costs: ``inductor-layout-opt-forced`` overrides it, ``inductor-channels-last`` goes around
    it. Symbolic sizes: where the image size is fixed, compile with ``dynamic=False``.

When it is fine:
    Often: the rules come from measurements on NVIDIA GPUs, where a grouped convolution in channels-last can be 30
    times slower. It is a warning only where forcing, or channels_last input, was measured to be faster.

Source:
    ``GraphLowering.decide_layout_opt``, torch/_inductor/graph.py, torch 2.13. That a backward graph is judged by its
    forward convolutions, of which it has none, is pytorch/pytorch issue #189239; torch 2.15 counts the backward ones.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from layoutdoctor.records import SLOWER, Finding
from layoutdoctor.rules import evidence, wording
from layoutdoctor.rules.base import document_rule

if TYPE_CHECKING:
    from collections.abc import Iterator

    from layoutdoctor.records import Convolution, Decision, Diagnosis, Graph, Trial

CODE = "LD202"
NAME = "layout-optimization-vetoed"

_FORCED = "inductor-layout-opt-forced"
_WAYS_AROUND = (_FORCED, "inductor-channels-last")
_NO_VETO = ("config-off", "no-convolution", "set-from-outside", "not-recorded")
_BACKWARD_RULE = "only-backward-convolutions"
_CONVOLUTIONS_NAMED = 6


def check(diagnosis: Diagnosis) -> Iterator[Finding]:
    """
    One finding per rule and direction of graph.

    Args:
        diagnosis: Any diagnosis.
    """
    seen: set[tuple[str, str]] = set()
    for trial in evidence.own_trials(diagnosis):
        if trial.configuration.layout_optimization not in ("default", "on"):
            continue
        for graph in trial.graphs:
            decision = graph.decision
            if decision is None or not _is_vetoed(trial, decision):
                continue
            if (graph.direction, decision.rule) not in seen:
                seen.add((graph.direction, decision.rule))
                yield _finding(diagnosis, trial, graph, decision)


def _is_vetoed(trial: Trial, decision: Decision) -> bool:
    if decision.applied is not False or decision.rule in _NO_VETO:
        return False
    # Without layout optimization in the forward, a backward without it is no mismatch: the forward's rule says why.
    return decision.rule != _BACKWARD_RULE or _is_applied_in_forward(trial)


def _is_applied_in_forward(trial: Trial) -> bool:
    decisions = (graph.decision for graph in trial.graphs if graph.direction == "forward")
    return any(decision is not None and bool(decision.applied) for decision in decisions)


def _finding(diagnosis: Diagnosis, trial: Trial, graph: Graph, decision: Decision) -> Finding:
    deciding = [c for c in decision.convolutions if c.node in decision.deciding_nodes]
    return Finding(
        code=CODE,
        rule=NAME,
        severity="note" if evidence.fastest_of(diagnosis, _WAYS_AROUND) is None else "warning",
        configuration=trial.name,
        message=_message(graph, decision, deciding),
        suggestion=_suggestion(diagnosis, decision),
        location=deciding[0].location if deciding else None,
        module=deciding[0].module if deciding else None,
        evidence=decision.deciding_nodes,
    )


def _message(graph: Graph, decision: Decision, deciding: list[Convolution]) -> str:
    if decision.rule == _BACKWARD_RULE:
        return (
            "layout optimization applied in the forward but not in the backward: Inductor does not count its "
            f"{wording.count_of(decision.convolution_count, 'backward convolution')} (pytorch issue #189239), "
            "so what the forward saved in channels-last is laid out anew"
        )
    where = {"inference": "", "forward": " in the forward", "backward": " in the backward"}[graph.direction]
    message = f"layout optimization vetoed{where} by {decision.rule}: {decision.explanation}"
    if not deciding:
        return message
    names = [_convolution_words(convolution) for convolution in deciding]
    return f"{message}; decided by {wording.listing(names, _CONVOLUTIONS_NAMED)}"


def _convolution_words(convolution: Convolution) -> str:
    facts = [str(convolution.location)] if convolution.location is not None else []
    if convolution.weight_shape is not None:
        facts.append(f"weight {wording.shape_words(convolution.weight_shape)}")
    if convolution.groups is not None and convolution.groups != 1:
        facts.append(f"{convolution.groups} groups")
    name = convolution.module or convolution.node
    return f"{name} ({', '.join(facts)})" if facts else name


def _suggestion(diagnosis: Diagnosis, decision: Decision) -> str:
    measured = _measured_words(diagnosis)
    if decision.rule == _BACKWARD_RULE:
        return (
            "give the model and its input channels_last, which the backward keeps, or compile with "
            'options={"layout_optimization": False}; torch 2.15 counts backward convolutions' + measured
        )
    if decision.rule == "dynamic-shape":
        return "where the image size is fixed, compile with dynamic=False" + measured
    if measured:
        return measured.removeprefix("; ")
    return f"--configurations all measures what the veto costs ({_FORCED})"


def _measured_words(diagnosis: Diagnosis) -> str:
    if diagnosis.comparison is None:
        return ""
    gain = evidence.fastest_of(diagnosis, _WAYS_AROUND)
    if gain is not None:
        return f"; {wording.speed_words(gain, diagnosis.comparison.baseline)}"
    forced = evidence.ratio_of(diagnosis, _FORCED)
    if forced is None:
        return ""
    words = wording.speed_words(forced, diagnosis.comparison.baseline)
    return (
        f"; the veto is right here: {words}" if forced.verdict == SLOWER else f"; the veto costs nothing here: {words}"
    )


RULE = document_rule(CODE, NAME, check, __doc__)
