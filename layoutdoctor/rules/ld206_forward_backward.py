"""LD206: layout optimization in the forward of a training step, but not in its backward (a mismatch)."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from layoutdoctor.diagnosis import Conversion, Decision, Diagnosis, Finding, Graph, Ratio, Trial
from layoutdoctor.diagnosis.configurations import FORCED
from layoutdoctor.examination.counts import all_conversions_of, dearest_of, sum_of_known
from layoutdoctor.rules import evidence, wording
from layoutdoctor.rules.advice import (
    OFF,
    Times,
    channels_last_ways,
    is_worth_trying,
    other_cure,
    refusal,
    severity_of_gain,
)
from layoutdoctor.rules.base import Rule
from layoutdoctor.rules.decisions import UNCOUNTED, WAYS_AROUND, is_applied_in_forward
from layoutdoctor.words import count_of, joined, phrase, speed_words

# Ports of the gradients of weight and bias: the parameters' strides cause the conversion of these gradients, not the
# mismatch. The shape does not identify them: for a transposed convolution, the weight gradient's shape is permuted.
_PARAMETER_GRADIENTS = ("output 1", "output 2")


def mismatches(diagnosis: Diagnosis) -> Iterator[Finding]:
    """Yields at most one finding, for the first mismatch that converts values or whose input is not channels-last."""
    for trial in evidence.own_trials(diagnosis):
        formats = trial.configuration.input_format
        graphs = _mismatched(trial)
        if trial.configuration.layout_optimization not in ("default", "on") or not graphs:
            continue
        kept = set() if formats == "channels_last" else _kept(diagnosis)
        found = [conversion for graph in graphs for conversion in _conversions_for_backward(trial, *graph)]
        conversions = [conversion for conversion in found if _change(conversion) not in kept]
        is_given = formats == "preserve" and not evidence.inputs_not_channels_last(diagnosis)
        if not conversions and (is_given or formats == "channels_last"):
            continue
        seconds = sum_of_known(conversion.seconds for conversion in conversions if not conversion.fused)
        times = Times(diagnosis)
        gain = times.fastest((*WAYS_AROUND, *OFF))
        yield LD206.finding(
            trial.name,
            _message(trial, [card for _, card in graphs], conversions, seconds),
            _suggestion(times, trial, gain),
            severity=evidence.severity_of_cost(trial, seconds) if gain is None else severity_of_gain(gain),
            evidence=[conversion.id for conversion in conversions] or [graph.name for graph, _ in graphs],
            at=dearest_of(conversions),
            seconds=seconds,
            bytes_moved=sum_of_known(conversion.bytes_moved for conversion in conversions),
        )
        return


def _change(conversion: Conversion) -> tuple[object, ...]:
    return (conversion.node, conversion.port, conversion.source, conversion.target)


def _kept(diagnosis: Diagnosis) -> set[tuple[object, ...]]:
    """Returns the backward's conversions that the mismatch does not cause: they occur with channels_last input too."""
    other = diagnosis.measured_trial("inductor-channels-last")
    if other is None:
        return set()
    backward = [graph for graph in other.graphs if graph.direction == "backward"]
    names, ids = {graph.name for graph in backward}, {c.id for graph in backward for c in graph.conversions}
    return {_change(c) for c in all_conversions_of(other) if c.id in ids or c.graph in names}


def _mismatched(trial: Trial) -> list[tuple[Graph, Decision]]:
    """Returns the backward graphs with a mismatch; graphs with only 1-D and 3-D convolutions are left out."""
    backward = [(g, g.decision) for g in trial.graphs if g.direction == "backward" and g.decision is not None]
    off = [(graph, card) for graph, card in backward if card.convolution_count and card.applied is False]
    return [one for one in off if is_applied_in_forward(trial.graphs) and not evidence.is_of_other_ranks(one[1])]


def _conversions_for_backward(trial: Trial, graph: Graph, decision: Decision) -> list[Conversion]:
    """Returns the recorded conversions of values that a backward convolution reads, except parameter gradients."""
    own, names = {conversion.id for conversion in graph.conversions}, {c.node for c in decision.convolutions}
    return [
        conversion
        for conversion in sorted(all_conversions_of(trial), key=lambda c: c.id not in own)
        if (conversion.id in own or conversion.graph == graph.name)
        and conversion.role not in ("entry", "exit")
        and conversion.tensor in ("activation", "gradient")
        and conversion.port not in _PARAMETER_GRADIENTS
        and (conversion.node, conversion.owner) != (None, "framework")  # a copy by autograd, outside of all graphs
        and (not conversion.required_by or not names.isdisjoint(conversion.required_by))
    ]


def _message(trial: Trial, cards: Sequence[Decision], conversions: Sequence[Conversion], seconds: float | None) -> str:
    count = sum(card.convolution_count for card in cards if card.rule == UNCOUNTED)
    why = f"{count} convolution_backward are not counted (pytorch #189239)"
    if not count:
        why = f"{cards[0].rule}: {cards[0].explanation}"
    start = f"layout optimization on in the forward, off in the backward: {why}"
    if not conversions:
        return f"{start}; as far as recorded, this converts no activation or gradient"
    written = {(c.graph, c.value or c.id): c for c in conversions}.values()
    fused = sum(c.fused for c in written)
    by = f"{wording.owner_words(written)}{phrase(' ({} fused)', fused or None)}"
    words = f"{count_of(len(written), 'tensor')} converted {by}"
    cost = wording.cost_words(trial, seconds, wording.estimate_words(c for c in conversions if not c.fused))
    moved = wording.moved_words(sum_of_known(conversion.bytes_moved for conversion in conversions))
    return joined((start, joined((words, cost or moved), ", ")))


def _suggestion(times: Times, trial: Trial, gain: Ratio | None) -> str:
    """Suggests the fastest measured way around the mismatch; without one, all ways that may still help."""
    counted = "torch 2.15 counts backward convolutions"
    ways = {
        "give the model and its input channels_last, which the backward keeps": channels_last_ways(trial),
        'compile with options={"layout_optimization": False}': OFF,
        "force layout optimization in forward and backward with "
        'options={"layout_optimization": True, "force_layout_optimization": True}': (FORCED,),
    }
    every = [name for names in ways.values() for name in names]
    against = other_cure(times, trial.name, lambda cure: cure.name in every)
    if against:
        return f"{against}; {counted}"
    if gain is not None:
        best = [words for words, names in ways.items() if gain.name in names]
        return joined((*best, speed_words(gain), counted))
    left = [words for words, names in ways.items() if is_worth_trying(times, trial, names)]
    return joined((", or ".join(left) or refusal(times, trial, every), counted))


LD206 = Rule("LD206", "forward-backward-mismatch", mismatches)
