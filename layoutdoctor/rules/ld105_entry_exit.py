"""LD105: conversions at the edges of a channels-last graph."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from layoutdoctor.diagnosis import Conversion, Diagnosis, Finding, Graph
from layoutdoctor.diagnosis.layout import CHANNELS_LAST_BY_RANK
from layoutdoctor.rules import evidence, wording
from layoutdoctor.rules.advice import Times, channels_last_ways, unless_refuted
from layoutdoctor.rules.base import Rule
from layoutdoctor.words import count_of, distinct, joined, phrase


def entries_and_exits(diagnosis: Diagnosis) -> Iterator[Finding]:
    """Yields at most one finding, about the baseline; no finding if channels_last input is faster (LD205)."""
    trial, times = evidence.main_trial(diagnosis), Times(diagnosis)
    if trial is None or times.fastest(evidence.CHANNELS_LAST_CONFIGURATIONS) is not None:
        return
    graphs = [graph for graph in trial.graphs if _converts_at_its_edges_only(graph)]
    found = [c for graph in graphs for c in _activations(graph) if c.role == "exit" or _is_for_convolution(graph, c)]
    if not found:
        return
    count = sum(_channels_last_count(graph) for graph in graphs)
    weights = sum(c.tensor == "weight" and c.direction != "none" for graph in graphs for c in graph.conversions)
    often = "in each step" if diagnosis.subject.mode == "training" else "in each call, unless weights are frozen"
    parts = []
    if any(c.role == "entry" for c in found):
        tensors = evidence.inputs_not_channels_last(diagnosis)
        wanted = " or ".join(distinct(CHANNELS_LAST_BY_RANK[len(tensor.shape)] for tensor in tensors))
        advice = f"a {wanted or 'channels_last'} input saves the conversion at the entry"
        parts.append(unless_refuted(times, trial, channels_last_ways(trial), advice))
    if any(c.role == "exit" for c in found):
        parts.append(
            "the conversion at the exit restores eager's strides (keep_output_stride, pytorch PR #102376); it is "
            "needed unless the reader takes channels_last"
        )
    facts = (
        f"{_count_words(found, 'entry')} at the entry",
        f"{_count_words(found, 'exit')} at the exit",
        wording.conversion_cost_words(trial, found),
    )
    region = f"channels-last region of {count_of(count, 'convolution')}: {joined(facts, ', ')}"
    message = joined((region, f"{count_of(weights, 'weight conversion')} {often}" if weights else None))
    yield LD105.finding(trial.name, message, joined(parts), conversions=found, at=found[0])


def _converts_at_its_edges_only(graph: Graph) -> bool:
    """Whether a forward graph has channels-last convolutions and converts no activation in the interior."""
    roles = {conversion.role for conversion in _activations(graph)}
    return graph.direction != "backward" and _channels_last_count(graph) > 0 and roles <= {"entry", "exit"}


def _is_for_convolution(graph: Graph, conversion: Conversion) -> bool:
    """Whether an input is converted for a convolution, not only for other operations; True if no reader is known."""
    nodes, readers = evidence.nodes_by_name(graph), conversion.required_by
    return not readers or any(evidence.runs_convolution_named(name, nodes) for name in readers)


def _channels_last_count(graph: Graph) -> int:
    return sum(bool(c.channels_last) and not c.is_backward for c in evidence.convolutions_of([graph]))


def _activations(graph: Graph) -> list[Conversion]:
    return [c for c in graph.conversions if c.tensor == "activation" and c.direction != "none"]


def _count_words(found: Sequence[Conversion], role: str) -> str:
    """Counts conversions: ``"1 conversion"``, ``"2 conversions (1 fused)"``, ``"none"``."""
    written = {(c.graph, c.value or c.id): c for c in found if c.role == role}.values()
    fused = sum(c.fused for c in written)
    remark = " (fused)" if fused == len(written) else phrase(" ({} fused)", fused or None)
    return f"{count_of(len(written), 'conversion')}{remark}" if written else "none"


LD105 = Rule("LD105", "entry-exit-conversion", entries_and_exits)
