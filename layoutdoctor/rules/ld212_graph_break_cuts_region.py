"""
A graph break cuts a channels-last region in two, and the tensor is converted back and forth at the cut.

What it finds:
    Two compiled graphs of one direction, both with convolutions, the first of which brings a result from channels-last
    back to the caller's format at its end, and the second of which converts a tensor of the same shape to channels-last
    at its start. Only where dynamo recorded a graph break.

Why it costs:
    Inductor restores eager's strides at the end of every graph, so a region that is channels-last on both sides of a
    break is left and entered again: two conversions, each of which reads and writes the whole tensor.

Example:
    A ``print`` or ``.item()`` between two convolutional blocks, contiguous input.

What to do:
    Remove the break, or move it out of the convolutional part; ``torch.compile(fullgraph=True)`` says where it is. Or
    give the model and its input channels_last: then the tensor at the break is channels-last for everybody.

When it is fine:
    The break stands where the format changes anyway, or on one side of it there is no convolution: no finding.

Source:
    Inductor keeps the strides of what a graph returns (``keep_output_stride``, torch/_inductor/config.py, torch 2.13).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from layoutdoctor.examination.costs import Place, sum_known
from layoutdoctor.rules import evidence
from layoutdoctor.rules.advice import channels_last_ways, is_worth_trying
from layoutdoctor.rules.base import document_rule
from layoutdoctor.rules.graph_evidence import channels_last_only
from layoutdoctor.rules.times import Times
from layoutdoctor.units import format_bytes
from layoutdoctor.words import distinct, joined, layout_words, listing

if TYPE_CHECKING:
    from collections.abc import Iterator

    from layoutdoctor.diagnosis.records import Conversion, Diagnosis, Finding, Graph, Trial

Cut = tuple["Graph", "Graph", "Conversion", "Conversion"]


def check(diagnosis: Diagnosis) -> Iterator[Finding]:
    """One finding per cut, for the first configuration that has any."""
    for trial, cuts in evidence.first_showing(evidence.own_trials(diagnosis), lambda trial: list(_cuts(trial))):
        yield from (_finding(diagnosis, trial, cut) for cut in cuts)


def _cuts(trial: Trial) -> Iterator[Cut]:
    if not trial.graph_break_reasons and not any(graph.graph_breaks for graph in trial.graphs):
        return
    with_convolutions = [g for g in trial.graphs if g.decision is not None and g.decision.convolution_count]
    entered: set[tuple[str, str]] = set()
    for number, first in enumerate(with_convolutions):
        for exit_ in (c for c in first.conversions if c.role == "exit"):
            cut = _entry_after(exit_, with_convolutions[number + 1 :], first.direction, entered)
            if cut is not None:
                entered.add((cut[0].name, cut[1].id))
                yield first, cut[0], exit_, cut[1]


def _entry_after(
    exit_: Conversion, graphs: list[Graph], direction: str, entered: set[tuple[str, str]]
) -> tuple[Graph, Conversion] | None:
    for graph in graphs:
        for entry in graph.conversions:
            is_free = entry.role == "entry" and (graph.name, entry.id) not in entered
            if graph.direction == direction and is_free and _undoes(entry, exit_):
                return graph, entry
    return None


def _undoes(entry: Conversion, exit_: Conversion) -> bool:
    """Whether what one graph left is what the other found, and brings back into channels-last."""
    left, found = exit_.target, entry.source
    if left is None or found is None or left.shape != found.shape or left.stride != found.stride:
        return False
    return channels_last_only(exit_.source) is not None and channels_last_only(entry.target) is not None


def _finding(diagnosis: Diagnosis, trial: Trial, cut: Cut) -> Finding:
    first, second, exit_, entry = cut
    own = [conversion for conversion in (exit_, entry) if not conversion.fused]
    seconds = sum_known(conversion.seconds for conversion in own)
    is_open = is_worth_trying(Times(diagnosis), trial, channels_last_ways(trial))
    return RULE.finding(
        trial.name,
        _message(trial, cut, seconds),
        "remove the break or move it out of the convolutional part (torch.compile(fullgraph=True) says where it is)"
        + (", or give the model and its input channels_last" if is_open else ""),
        severity="note" if not own else evidence.severity_of_cost(trial, seconds),
        evidence=(first.name, exit_.id, second.name, entry.id),
        at=Place(exit_.module or entry.module, exit_.location or entry.location, 2, seconds),
        seconds=seconds,
        bytes_moved=sum_known(conversion.bytes_moved for conversion in (exit_, entry)),
    )


def _message(trial: Trial, cut: Cut, seconds: float | None) -> str:
    first, second, exit_, entry = cut
    place, shape = exit_.module or exit_.node or first.name, evidence.shape_of(exit_.source)
    moved = sum_known(conversion.bytes_moved for conversion in (exit_, entry))
    own = [conversion for conversion in (exit_, entry) if conversion.seconds is not None and not conversion.fused]
    fused = sum(conversion.fused for conversion in (exit_, entry))
    facts = (
        "2 conversions",
        None if moved is None else format_bytes(moved),
        evidence.cost_words(trial, seconds, evidence.source_words(conversion.seconds_source for conversion in own)),
        f"{fused} of them in a kernel that computes as well" if fused else None,
    )
    message = (
        f"a graph break after {place} cuts a channels-last region: {shape} is converted to "
        f"{layout_words(exit_.target)} at the end of {first.name} and back at the start of {second.name} "
        f"({joined(facts, ', ')})"
    )
    why = listing(distinct(trial.graph_break_reasons), 3)
    return joined((message, f"dynamo's reasons: {why}" if why else None))


RULE = document_rule("LD212", "graph-break-cuts-region", check, __doc__)
