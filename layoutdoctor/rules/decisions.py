"""
Questions that the rules about Inductor's decision share: which graphs were vetoed, by what, and what that costs.

Faces the rules; pure functions of records.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from layoutdoctor.analysis.costs import may_hide_gain
from layoutdoctor.records import SLOWER, Finding
from layoutdoctor.rules import evidence, wording
from layoutdoctor.words import line_words, shape_words

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator

    from layoutdoctor.records import Convolution, Decision, Diagnosis, Graph, Severity, Trial

FORCED = "inductor-layout-opt-forced"
WAYS_AROUND = (FORCED, "inductor-channels-last")


def vetoed_graphs(diagnosis: Diagnosis, rules: Collection[str]) -> Iterator[tuple[Trial, Graph, Decision]]:
    """
    Graphs that Inductor was free to lay out and did not, by one of some of its rules; each of these rules once.

    Args:
        diagnosis: Any diagnosis.
        rules: Names as in ``Decision.rule``.

    Yields:
        The first trial with that rule, the main one first, with the graph and its decision. Left out: graphs of 1-D
        convolutions only, which have no format to decide about, and a backward that differs from its forward (LD206).
    """
    seen: set[str] = set()
    for trial in evidence.own_trials(diagnosis):
        if trial.configuration.layout_optimization not in ("default", "on"):
            continue
        for graph in trial.graphs:
            decision = graph.decision
            if decision is None or decision.applied is not False or decision.rule not in rules:
                continue
            is_repeated = graph.direction == "backward" and is_applied(trial, "forward")
            if decision.rule in seen or is_repeated or is_one_dimensional(decision):
                continue
            seen.add(decision.rule)
            yield trial, graph, decision


def is_applied(trial: Trial, direction: str) -> bool:
    """
    Whether layout optimization was applied in a graph with convolutions of that direction.

    Args:
        trial: Any trial.
        direction: ``forward``, ``backward`` or ``inference``.
    """
    decisions = (graph.decision for graph in trial.graphs if graph.direction == direction)
    return any(decision is not None and bool(decision.applied and decision.convolution_count) for decision in decisions)


def is_one_dimensional(decision: Decision) -> bool:
    """
    Whether all convolutions of a graph are 1-D, as far as was recorded, and there is one.

    Args:
        decision: The graph's decision card.
    """
    return bool(decision.convolutions) and all(convolution.rank == 1 for convolution in decision.convolutions)


def leaves_layouts_to_inductor(trial: Trial) -> bool:
    """
    Whether a configuration keeps the caller's model format and has layout optimization on, so that Inductor decides.

    Args:
        trial: Any trial.
    """
    configuration = trial.configuration
    return (
        configuration.layout_optimization in ("default", "on", "forced")
        and configuration.model_format == "preserve"
        and not configuration.inductor_options.get("freezing")
    )


def deciding_convolutions(decision: Decision) -> list[Convolution]:
    """
    The convolutions that made the rule decide as it did.

    Args:
        decision: A graph's decision card.
    """
    return [convolution for convolution in decision.convolutions if convolution.node in decision.deciding_nodes]


def channels_words(convolution: Convolution) -> str | None:
    """
    A convolution's channels and kernel: ``"192 -> 64, 3x3"``; None where not recorded.

    Args:
        convolution: One whose weight is ``[C_out, C_in / groups, ...]``, or transposed ``[C_in, C_out / groups, ...]``.
    """
    shape, groups = convolution.weight_shape, convolution.groups or 1
    if shape is None or len(shape) < 3 or convolution.is_transposed is None or not isinstance(shape[1], int):
        return None
    second = shape[1] * groups
    given, made = (shape[0], second) if convolution.is_transposed else (second, shape[0])
    return f"{given} -> {made}, {shape_words(shape[2:])}"


def convolution_words(convolution: Convolution) -> str:
    """
    A convolution by name, with what is known of it: ``"d2.0 (192 -> 64, 3x3; model.py:9, weight 64x192x3x3)"``.

    Args:
        convolution: Any convolution.
    """
    facts = [line_words(convolution.location)] if convolution.location is not None else []
    if convolution.weight_shape is not None:
        facts.append(f"weight {shape_words(convolution.weight_shape)}")
    if convolution.groups is not None and convolution.groups != 1:
        facts.append(f"{convolution.groups} groups")
    channels = channels_words(convolution)
    known = "; ".join(part for part in (channels, ", ".join(facts)) if part)
    name = convolution.module or convolution.node
    return f"{name} ({known})" if known else name


def veto_severity(diagnosis: Diagnosis) -> Severity:
    """
    ``warning`` where forcing the optimization, or going around it, was measured faster; else ``note``.

    Args:
        diagnosis: Any diagnosis.
    """
    return "note" if evidence.fastest_of(diagnosis, WAYS_AROUND) is None else "warning"


def measured_words(diagnosis: Diagnosis) -> str:
    """
    What was measured of the ways around a veto; empty where nothing was.

    Args:
        diagnosis: Any diagnosis.
    """
    if diagnosis.comparison is None:
        return ""
    gain = evidence.fastest_of(diagnosis, WAYS_AROUND)
    if gain is not None:
        return wording.speed_words(gain, diagnosis.comparison.baseline)
    forced = evidence.ratio_of(diagnosis, FORCED)
    if forced is None:
        return ""
    words = wording.speed_words(forced, diagnosis.comparison.baseline)
    if may_hide_gain(forced):
        return f"the times are too noisy to tell what the veto costs: {words}"
    return f"the veto is right here: {words}" if forced.verdict == SLOWER else f"the veto costs nothing here: {words}"


def how_to_measure(trial: Trial) -> str:
    """
    How to find out what a veto costs where that was not measured.

    Args:
        trial: The trial with the veto.
    """
    advice = f"--configurations all measures what the veto costs ({FORCED})"
    return f"on the device itself, {advice}" if trial.is_static else advice


def veto_finding(
    diagnosis: Diagnosis, trial: Trial, decision: Decision, *, code: str, rule: str, message: str
) -> Finding:
    """
    A finding about a veto, at the first convolution that decided.

    Args:
        diagnosis: The diagnosis it is in.
        trial: The trial whose graph was vetoed.
        decision: The graph's card.
        code: The rule's code.
        rule: The rule's name.
        message: What it says.
    """
    deciding = deciding_convolutions(decision)
    return Finding(
        code=code,
        rule=rule,
        severity=veto_severity(diagnosis),
        configuration=trial.name,
        message=message,
        suggestion=measured_words(diagnosis) or how_to_measure(trial),
        location=deciding[0].location if deciding else None,
        module=deciding[0].module if deciding else None,
        evidence=decision.deciding_nodes,
    )
