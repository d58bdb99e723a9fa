"""Finds and reports Inductor's vetoes against channels-last, for LD202, LD207 and LD208."""

from __future__ import annotations

from collections.abc import Collection, Iterator

from layoutdoctor.diagnosis import Convolution, Decision, Diagnosis, Finding, Graph, Trial
from layoutdoctor.diagnosis.answer import EQUAL, INCONCLUSIVE, SLOWER
from layoutdoctor.diagnosis.configurations import FORCED
from layoutdoctor.rules import evidence
from layoutdoctor.rules.advice import Times, other_cure, refusal, severity_of_gain
from layoutdoctor.rules.base import Rule
from layoutdoctor.rules.decisions import WAYS_AROUND, is_applied_in_forward
from layoutdoctor.words import joined, speed_words


def vetoed_graphs(diagnosis: Diagnosis, rules: Collection[str]) -> Iterator[tuple[Trial, Graph, Decision]]:
    """
    Yields, for each of Inductor's ``rules``, the first graph whose layout optimization the rule declined.

    Configurations that force layout optimization, or switch it off, are left out. Graphs with only 1-D and 3-D
    convolutions are left out, because their code is the same either way. LD206 reports a backward with another decision
    than its forward.
    """
    seen = set[str]()
    for trial in evidence.own_trials(diagnosis):
        if trial.configuration.layout_optimization not in ("default", "on"):
            continue
        for graph in trial.graphs:
            decision = graph.decision
            if decision is None or decision.applied is not False or decision.rule not in {*rules} - seen:
                continue
            is_repeated = graph.direction == "backward" and is_applied_in_forward(trial.graphs)
            if not is_repeated and not evidence.is_of_other_ranks(decision):
                seen.add(decision.rule)
                yield trial, graph, decision


def deciding_convolutions(decision: Decision) -> list[Convolution]:
    """Returns the convolutions that caused Inductor's decision."""
    return [convolution for convolution in decision.convolutions if convolution.node in decision.deciding_nodes]


def _measured_words(times: Times, trial: Trial) -> str:
    """Describes the best advisable way around a veto, or else the effect of forcing the optimization; else empty."""
    gain, forced = times.fastest(WAYS_AROUND), times.ratio(FORCED)
    if gain is not None:
        return speed_words(gain)
    known = {
        SLOWER: "the veto is right here",
        EQUAL: "the veto costs nothing here",
        INCONCLUSIVE: "the cost of the veto is not certain",
    }
    if forced is None or forced.verdict not in known:
        return "" if forced is None else refusal(times, trial, (FORCED,))
    return f"{known[forced.verdict]}: {speed_words(forced)}"


def veto_finding(
    rule: Rule, diagnosis: Diagnosis, trial: Trial, decision: Decision, message: str, advice: str = ""
) -> Finding:
    """Makes a finding at the first convolution that caused a veto; without any advice, it suggests a measurement."""
    times, deciding = Times(diagnosis), deciding_convolutions(decision)
    gain = times.fastest(WAYS_AROUND)
    against = other_cure(times, trial.name, lambda cure: cure.name in WAYS_AROUND) if gain is not None else ""
    how = f"measure the cost of the veto with --configurations all ({FORCED})"
    return rule.finding(
        trial.name,
        message,
        against
        or joined((advice, _measured_words(times, trial)))
        or (f"on the device itself, {how}" if trial.is_static else how),
        severity=severity_of_gain(gain),
        at=next(iter(deciding), None),
        evidence=decision.deciding_nodes,
    )
