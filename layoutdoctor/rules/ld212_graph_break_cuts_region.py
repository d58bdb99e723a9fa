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

from layoutdoctor.layout import CHANNELS_LAST_BY_RANK
from layoutdoctor.records import Finding
from layoutdoctor.rules import evidence, wording
from layoutdoctor.rules.base import document_rule
from layoutdoctor.units import format_bytes
from layoutdoctor.words import layout_words, listing, shape_words

if TYPE_CHECKING:
    from collections.abc import Iterator

    from layoutdoctor.layout import Layout
    from layoutdoctor.records import Conversion, Diagnosis, Graph, Trial

CODE = "LD212"
NAME = "graph-break-cuts-region"

Cut = tuple["Graph", "Graph", "Conversion", "Conversion"]


def check(diagnosis: Diagnosis) -> Iterator[Finding]:
    """
    One finding per cut, for the first configuration that has any.

    Args:
        diagnosis: Any diagnosis.
    """
    for trial in evidence.own_trials(diagnosis):
        found = [_finding(trial, cut) for cut in _cuts(trial)]
        if found:
            yield from found
            return


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
    return (
        _is_channels_last_only(exit_.source)
        and _is_channels_last_only(entry.target)
        and _is_left(exit_.target, entry.source)
    )


def _is_channels_last_only(layout: Layout | None) -> bool:
    return layout is not None and layout.memory_formats == (CHANNELS_LAST_BY_RANK.get(len(layout.shape)),)


def _is_left(left: Layout | None, found: Layout | None) -> bool:
    """Whether what one graph left is what the other found."""
    return left is not None and found is not None and left.shape == found.shape and left.stride == found.stride


def _finding(trial: Trial, cut: Cut) -> Finding:
    first, second, exit_, entry = cut
    own = [conversion for conversion in (exit_, entry) if not conversion.fused]
    seconds = evidence.sum_known(conversion.seconds for conversion in own)
    share = evidence.share_of_kernels(trial, seconds)
    return Finding(
        code=CODE,
        rule=NAME,
        severity="note" if not own else evidence.severity_of_share(share),
        configuration=trial.name,
        message=_message(trial, cut, seconds),
        suggestion="remove the break or move it out of the convolutional part (torch.compile(fullgraph=True) says "
        "where it is), or give the model and its input channels_last",
        location=exit_.location or entry.location,
        module=exit_.module or entry.module,
        seconds=seconds,
        bytes_moved=evidence.sum_bytes(conversion.bytes_moved for conversion in (exit_, entry)),
        evidence=(first.name, exit_.id, second.name, entry.id),
    )


def _message(trial: Trial, cut: Cut, seconds: float | None) -> str:
    first, second, exit_, entry = cut
    place = exit_.module or exit_.node or first.name
    shape = shape_words(exit_.source.shape) if exit_.source is not None else ""
    target = layout_words(exit_.target)
    facts = ["2 conversions"]
    moved = evidence.sum_bytes(conversion.bytes_moved for conversion in (exit_, entry))
    facts += [format_bytes(moved)] if moved is not None else []
    own = [conversion for conversion in (exit_, entry) if conversion.seconds is not None and not conversion.fused]
    cost = wording.cost_words(trial, seconds, wording.source_words(conversion.seconds_source for conversion in own))
    facts += [cost] if cost is not None else []
    fused = sum(conversion.fused for conversion in (exit_, entry))
    facts += [f"{fused} of them in a kernel that computes as well"] if fused else []
    message = (
        f"a graph break after {place} cuts a channels-last region: {shape} is converted to {target} at the end of "
        f"{first.name} and back at the start of {second.name} ({', '.join(facts)})"
    )
    if not trial.graph_break_reasons:
        return message
    why = listing(list(dict.fromkeys(trial.graph_break_reasons)), 3)
    return f"{message}; dynamo's reasons: {why}"


RULE = document_rule(CODE, NAME, check, __doc__)
