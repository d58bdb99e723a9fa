"""
Layout optimization is on in one half of a training step and off in the other.

What it finds:
    A configuration that leaves the decision to Inductor, in training, with a forward graph in which layout optimization
    was applied and a backward graph with convolutions in which it was not; or the reverse. It counts the activations
    and gradients that are laid out anew for the backward convolutions: in compiled kernels, and inside the library.
    Gradients of weights, gradients put back into the caller's strides at the end, and what channels_last input leaves
    as it is are not among them.

Why it costs:
    What the forward saved in channels-last is brought into another layout for the backward, on each step.

Example:
    Any convolutional network with contiguous input: the backward graph holds ``convolution_backward`` only, Inductor
    counts ``convolution`` only, finds none, and leaves layout optimization off.

What to do:
    Give the model and its input channels_last, which the backward keeps; or compile with
    ``options={"layout_optimization": False}``; or force it in both, with
    ``options={"layout_optimization": True, "force_layout_optimization": True}``. A diagnosis measures all three: which
    is fastest differs from model to model.

When it is fine:
    The tensors that the backward reads are channels-last already, as with channels_last input: nothing is laid out
    anew, and there is no finding. Where the forward is off as well, there is no mismatch.

Source:
    pytorch/pytorch issue #189239 (2026-07-08): the decision counts ``aten.convolution`` only
    (``GraphLowering.decide_layout_opt``, torch 2.13); torch 2.15 counts the backward ones.
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

from layoutdoctor.examination.costs import all_conversions_of, dearest_of, sum_known
from layoutdoctor.rules import advice, evidence
from layoutdoctor.rules import graph_evidence as decisions
from layoutdoctor.rules.base import document_rule
from layoutdoctor.rules.times import Times, speed_words
from layoutdoctor.units import format_bytes
from layoutdoctor.words import be, count_of, joined, listing

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from typing import TypeGuard

    from layoutdoctor.diagnosis.records import (
        Conversion,
        Decision,
        Diagnosis,
        Finding,
        Graph,
        Ratio,
        Severity,
        Trial,
    )

_FORCED = (decisions.FORCED,)
# A library's conversion of a weight's or bias's gradient: the parameter's strides ask for it, not the decision. That of
# a transposed convolution comes with its first dimensions exchanged, and nothing says which tensor it is.
_PARAMETER_GRADIENTS = ("output 1", "output 2")


def check(diagnosis: Diagnosis) -> Iterator[Finding]:
    """One finding at most: for the first configuration with a mismatch that shows."""
    for trial in evidence.own_trials(diagnosis):
        if trial.configuration.layout_optimization not in ("default", "on"):
            continue
        graphs = _mismatched(trial)
        kept = set() if trial.configuration.input_format == "channels_last" else _kept(diagnosis)
        found = [conversion for graph in graphs for conversion in _conversions_for_backward(trial, graph)]
        conversions = [conversion for conversion in found if _change(conversion) not in kept]
        if graphs and (conversions or not _is_channels_last(diagnosis, trial)):
            yield _finding(diagnosis, trial, graphs, conversions)
            return


def _change(conversion: Conversion) -> tuple[object, ...]:
    return (conversion.node, conversion.port, conversion.source, conversion.target)


def _kept(diagnosis: Diagnosis) -> set[tuple[object, ...]]:
    """What the backward lays out anew with channels_last input as well, which is not the mismatch's doing."""
    other = diagnosis.measured_trial("inductor-channels-last")
    if other is None:
        return set()
    backward = [graph for graph in other.graphs if graph.direction == "backward"]
    names, ids = {graph.name for graph in backward}, {c.id for graph in backward for c in graph.conversions}
    return {_change(c) for c in all_conversions_of(other) if c.id in ids or c.graph in names}


def _mismatched(trial: Trial) -> list[Graph]:
    """The backward graphs that differ from what was decided in the forward."""
    decided = [g.decision.applied for g in trial.graphs if g.direction == "forward" and _has_convolutions(g.decision)]
    if not decided or None in decided:
        return []
    forward = any(decided)
    return [
        graph
        for graph in trial.graphs
        if graph.direction == "backward"
        and _has_convolutions(graph.decision)
        and graph.decision.applied is not None
        and graph.decision.applied is not forward
        and (forward or graph.decision.rule != decisions.UNCOUNTED)
    ]


def _has_convolutions(decision: Decision | None) -> TypeGuard[Decision]:
    return decision is not None and decision.convolution_count > 0 and not decisions.is_one_dimensional(decision)


def _conversions_for_backward(trial: Trial, graph: Graph) -> list[Conversion]:
    """Where a backward convolution reads the converted value, as far as it was recorded who does."""
    own = {conversion.id for conversion in graph.conversions}
    names = {c.node for c in graph.decision.convolutions} if graph.decision is not None else set()
    return [
        conversion
        for conversion in sorted(all_conversions_of(trial), key=lambda c: c.id not in own)
        if (conversion.id in own or conversion.graph == graph.name)
        and conversion.role not in ("entry", "exit")
        and conversion.tensor in ("activation", "gradient")
        and not _is_of_parameter(conversion)
        and (not conversion.required_by or not names.isdisjoint(conversion.required_by))
    ]


def _is_of_parameter(conversion: Conversion) -> bool:
    """Whether it is the gradient of a parameter, also one that autograd copies outside of all graphs."""
    is_outside = conversion.node is None and conversion.owner == "framework"
    return is_outside or conversion.port in _PARAMETER_GRADIENTS


def _is_channels_last(diagnosis: Diagnosis, trial: Trial) -> bool:
    is_given = trial.configuration.input_format == "preserve" and not evidence.inputs_not_channels_last(diagnosis)
    return is_given or trial.configuration.input_format == "channels_last"


def _finding(diagnosis: Diagnosis, trial: Trial, graphs: Sequence[Graph], conversions: Sequence[Conversion]) -> Finding:
    seconds = sum_known(conversion.seconds for conversion in conversions if not conversion.fused)
    times = Times(diagnosis)
    gain = times.fastest((*decisions.WAYS_AROUND, *advice.OFF))
    return RULE.finding(
        trial.name,
        f"{_mismatch_words(trial, graphs)}; {_cost_words(trial, conversions, seconds)}",
        _suggestion(times, trial, gain),
        severity=advice.severity_of_gain(gain) if gain is not None else _severity(trial, conversions, seconds),
        evidence=[conversion.id for conversion in conversions] or [graph.name for graph in graphs],
        at=dearest_of(conversions),
        seconds=seconds,
        bytes_moved=sum_known(conversion.bytes_moved for conversion in conversions),
    )


def _severity(trial: Trial, conversions: Sequence[Conversion], seconds: float | None) -> Severity:
    return evidence.severity_of_cost(trial, seconds) if conversions else "note"


def _mismatch_words(trial: Trial, graphs: Sequence[Graph]) -> str:
    cards = [graph.decision for graph in graphs if graph.decision is not None]
    if not decisions.is_applied(trial, "forward"):
        return f"layout optimization is off in the forward and on in the backward: {cards[0].explanation}"
    start = "layout optimization is on in the forward and off in the backward"
    uncounted = [card for card in cards if card.rule == decisions.UNCOUNTED]
    if not uncounted:
        return f"{start}, by {cards[0].rule}: {cards[0].explanation}"
    count = sum(card.convolution_count for card in uncounted)
    return (
        f"{start}: Inductor counts 0 convolutions there, its {count} convolution_backward {be(count)} not counted "
        "(pytorch #189239)"
    )


def _cost_words(trial: Trial, conversions: Sequence[Conversion], seconds: float | None) -> str:
    if not conversions:
        return "no conversion of an activation or gradient was seen to follow from it"
    written = {(c.graph, c.value or c.id): c for c in conversions}.values()
    owners = Counter(conversion.owner for conversion in written)
    parts = [f"{count} by the {owner}" for owner, count in sorted(owners.items())]
    fused = sum(conversion.fused for conversion in written)
    by = listing(parts) + (f", {fused} of them in kernels that compute as well" if fused else "")
    words = f"{count_of(len(written), 'tensor')} {be(len(conversions))} laid out anew for them ({by})"
    moved = sum_known(conversion.bytes_moved for conversion in conversions)
    own = [conversion for conversion in conversions if conversion.seconds is not None and not conversion.fused]
    cost = evidence.cost_words(trial, seconds, evidence.source_words(conversion.seconds_source for conversion in own))
    return joined((words, None if moved is None else format_bytes(moved), cost), ", ")


def _suggestion(times: Times, trial: Trial, gain: Ratio | None) -> str:
    """The fastest way around it; else what was not tried or may help."""
    counted = "torch 2.15 counts backward convolutions"
    ways = {
        "give the model and its input channels_last, which the backward keeps": advice.channels_last_ways(trial),
        'compile with options={"layout_optimization": False}': advice.OFF,
        'force it in both with options={"layout_optimization": True, "force_layout_optimization": True}': _FORCED,
    }
    every = [name for names in ways.values() for name in names]
    against = advice.other_cure(times, trial, lambda cure: cure.name in every)
    if against is not None:
        return f"{against}; {counted}"
    if gain is not None:
        best = [words for words, names in ways.items() if gain.name in names]
        measured = speed_words(gain, times.baseline)
        return joined((*best, measured, counted))
    left = [words for words, names in ways.items() if advice.is_worth_trying(times, trial, names)]
    return joined((", or ".join(left) or advice.refusal(times, trial, every), counted))


RULE = document_rule("LD206", "forward-backward-mismatch", check, __doc__)
