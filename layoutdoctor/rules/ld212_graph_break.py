"""LD212: a graph break that cuts a channels-last region."""

from __future__ import annotations

from collections.abc import Iterator

from layoutdoctor.diagnosis import Conversion, Diagnosis, Finding, Graph, Trial
from layoutdoctor.examination.counts import Hotspot, sum_of_known
from layoutdoctor.rules import evidence, wording
from layoutdoctor.rules.advice import Times, channels_last_ways, is_worth_trying
from layoutdoctor.rules.base import Rule
from layoutdoctor.rules.evidence import channels_last_only
from layoutdoctor.words import distinct, joined, layout_words, listing

# Two graphs, the conversion at the first graph's exit, and the conversion at the second graph's entry.
_Cut = tuple["Graph", "Graph", "Conversion", "Conversion"]


def graph_breaks(diagnosis: Diagnosis) -> Iterator[Finding]:
    """Yields one finding per cut, for the first configuration that has a cut."""
    for trial, cuts in evidence.first_showing(evidence.own_trials(diagnosis), lambda trial: list(_cuts(trial))):
        is_open = is_worth_trying(Times(diagnosis), trial, channels_last_ways(trial))
        for first, second, exit_, entry in cuts:
            both = (exit_, entry)
            own = [conversion for conversion in both if not conversion.fused]
            seconds, moved = sum_of_known(c.seconds for c in own), sum_of_known(c.bytes_moved for c in both)
            cost = wording.cost_words(trial, seconds, wording.estimate_words(own)) or wording.moved_words(moved)
            fused = f"{2 - len(own)} of 2 conversions fused" if len(own) < 2 else None
            why = listing(distinct(trial.graph_break_reasons), 1)
            region = (
                f"graph break after {exit_.module or exit_.node or first.name} in a channels-last region: "
                f"{wording.shape_of(exit_.source)} converted to {layout_words(exit_.target)} at the end of "
                f"{first.name} and back in {second.name}"
            )
            message = joined((region, cost, fused), ", ")
            yield LD212.finding(
                trial.name,
                joined((message, f"dynamo: {why}" if why else None)),
                "remove the break or move it out of the convolutional part (torch.compile(fullgraph=True) shows where "
                "it is)" + (", or give the model and its input channels_last" if is_open else ""),
                severity=evidence.severity_of_cost(trial, seconds),
                evidence=(first.name, exit_.id, second.name, entry.id),
                at=Hotspot(exit_.module or entry.module, exit_.location or entry.location),
                seconds=seconds,
                bytes_moved=moved,
            )


def _cuts(trial: Trial) -> Iterator[_Cut]:
    """Yields pairs: a conversion at a graph's end, and the conversion at a later graph's start that undoes it."""
    if not trial.graph_break_reasons and not any(graph.graph_breaks for graph in trial.graphs):
        return
    graphs = [g for g in trial.graphs if g.decision is not None and g.decision.convolution_count]
    entered = set[tuple[str, str]]()
    for number, first in enumerate(graphs):
        later = [graph for graph in graphs[number + 1 :] if graph.direction == first.direction]
        for exit_ in (c for c in first.conversions if c.role == "exit"):
            entries = ((graph, c) for graph in later for c in graph.conversions if _undoes(c, exit_))
            cut = next(((graph, c) for graph, c in entries if (graph.name, c.id) not in entered), None)
            if cut is not None:
                entered.add((cut[0].name, cut[1].id))
                yield first, cut[0], exit_, cut[1]


def _undoes(entry: Conversion, exit_: Conversion) -> bool:
    """Whether a conversion at a graph's entry restores the channels-last layout that ``exit_`` converted."""
    left, found = exit_.target, entry.source
    if entry.role != "entry" or left is None or found is None:
        return False
    ends = channels_last_only(exit_.source), channels_last_only(entry.target)
    return (left.shape, left.stride) == (found.shape, found.stride) and None not in ends


LD212 = Rule("LD212", "graph-break-cuts-region", graph_breaks)
