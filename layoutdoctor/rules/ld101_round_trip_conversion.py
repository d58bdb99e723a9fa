"""
A conversion and a later one undo each other, and nothing between them needs the other layout.

What it finds:
    Redundant pairs: a conversion of a tensor from layout A to B and a later one of the same value from B to A, with
    nothing between (``adjacent``) or only operations that work in any layout (``through``), no consumer in between
    that needs B, and no graph output or alias that pins B. The branches of a concatenation that is written in B and
    converted back are one round trip. In the baseline, one finding per kind of round trip; in any other trial, and in
    a recorded trace, one finding for all of them.

    No trace says which tensor a kernel reads, so there each round trip says what speaks for it. ``shapes``: by the
    recorded arguments, the first convolution's output and the second one's input have the same sizes, and nothing but
    operations that work in either format ran between; where the first one keeps the sizes of its input, one of these
    has to have taken a value of them. ``grid``: shapes were not recorded, but both kernels were launched with
    the same grid, which the library derives from the size of the tensor, rounded up. ``order``: the kernels follow one
    another that way, and nothing more. What can still be wrong: what the second one converts may be a sibling of the
    same shape, such as the other branch of a residual block; and what reads the value in between without a kernel of
    its own, or keeps it for later, is not seen. A group norm counts as working in either format, and the finding says
    where it is one that on a GPU makes its input contiguous.

Why it costs:
    Each conversion reads and writes the whole tensor: 2 x element count x element size, in bytes. The pair moves
    four times the tensor and leaves what was there. On a CPU, oneDNN does this inside the convolution: a profiler
    shows no kernel for it.

Example:
    A contiguous model on a CPU with layout optimization off: each convolution converts its input to ``aBcd16b`` and
    its output back, and between two convolutions stands only a batch norm and a ReLU. Or: four channels_last branches
    that ``torch.cat`` writes in contiguous_format, for a convolution that converts the result back.

What to do:
    Let the layers between hand the layout on: give the model and its input channels_last, or keep Inductor's layout
    optimization on. Where the code itself calls ``.contiguous()`` between two channels_last layers, remove it. After a
    trace, in which one configuration ran, record the other memory format as well, or diagnose the model.

When it is fine:
    The pair costs less than 2 % of the kernel time (then this is a note), or the configuration it is in is not used.
    A single conversion at the entry and one at the exit of a graph are no round trip. In a trace: where little of it
    was exposed, other kernels ran meanwhile, and without it the run ends hardly sooner. What the order of kernels
    alone suggests is never more than a note.

Source:
    oneDNN, "Understanding Memory Formats": layout propagation; ``GraphLowering.find_nodes_prefer_channels_last`` in
    torch/_inductor/graph.py, torch 2.13, describes the same two copies around a batch norm.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from layoutdoctor.analysis.layout_agnostic import base_name
from layoutdoctor.records import Finding
from layoutdoctor.rules import evidence, wording
from layoutdoctor.rules.base import document_rule
from layoutdoctor.rules.graph_evidence import is_convolution_named, nodes_by_name
from layoutdoctor.rules.recorded import recorded_trial
from layoutdoctor.rules.recorded_round_trips import recorded_finding
from layoutdoctor.units import format_bytes
from layoutdoctor.words import count_of, layout_words, listing, op_words, shape_words

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from layoutdoctor.layout import Layout
    from layoutdoctor.records import Conversion, Diagnosis, FxNode, RedundantPair, Severity, Trial

CODE = "LD101"
NAME = "round-trip-conversion"

_KINDS_NAMED = 3
_SHAPES_NAMED = 3


def check(diagnosis: Diagnosis) -> Iterator[Finding]:
    """
    The round trips of every trial, those of the baseline first; those of a trace as one.

    Args:
        diagnosis: Any diagnosis.
    """
    recorded = recorded_trial(diagnosis)
    if recorded is not None:
        found = recorded_finding(recorded, CODE, NAME)
        yield from () if found is None else (found,)
        return
    for trial in evidence.own_trials(diagnosis):
        if trial.redundant_pairs:
            for pairs in _grouped(diagnosis, trial):
                yield _finding(diagnosis, trial, pairs)


def _grouped(diagnosis: Diagnosis, trial: Trial) -> list[tuple[RedundantPair, ...]]:
    """By kind, the costliest first, in the trial the user has today; all as one in any other."""
    if trial is not evidence.main_trial(diagnosis):
        return [trial.redundant_pairs]
    by_kind = _by_kind(trial, trial.redundant_pairs)
    return sorted(by_kind.values(), key=_cost, reverse=True)


def _by_kind(trial: Trial, pairs: Sequence[RedundantPair]) -> dict[str, tuple[RedundantPair, ...]]:
    conversions = {conversion.id: conversion for conversion in evidence.all_conversions_of(trial)}
    nodes = {graph.name: nodes_by_name(graph) for graph in trial.graphs}
    kinds: dict[str, list[RedundantPair]] = {}
    for pair in pairs:
        kind = _concatenation(nodes, pair, conversions) or _kind(pair, conversions)
        kinds.setdefault(kind, []).append(pair)
    return {kind: tuple(members) for kind, members in kinds.items()}


def _kind(pair: RedundantPair, conversions: dict[str, Conversion]) -> str:
    """The layouts and what stands between: ``"contiguous -> channels_last -> contiguous around relu"``."""
    around = f"around {listing([op_words(op) for op in pair.between])}" if pair.between else "back to back"
    first, second = conversions.get(pair.first), conversions.get(pair.second)
    if first is None or second is None:
        return around
    return f"{' -> '.join(layout_words(x) for x in (first.source, first.target, second.target))} {around}"


def _concatenation(
    nodes: dict[str, dict[str, FxNode]], pair: RedundantPair, conversions: dict[str, Conversion]
) -> str | None:
    """The branches of a concatenation, its format and who wants them back; None for any other round trip."""
    first, second = conversions.get(pair.first), conversions.get(pair.second)
    cat = next((op for op in pair.between if base_name(op) == "cat"), None)
    if cat is None or not pair.also or first is None or second is None:
        return None
    formats = list(dict.fromkeys(layout_words(conversions[id].source) for id in _there(pair, conversions)))
    rest = [op_words(op) for op in pair.between if op != cat]
    through = f", with {listing(rest)} between," if rest else ""
    return (
        f"{1 + len(pair.also)} {' or '.join(formats)} branches are concatenated in {_format_words(second.source)} at "
        f"{cat.removesuffix('.default')}{through} and converted back{_reader_words(nodes, pair, second)}"
    )


def _there(pair: RedundantPair, conversions: dict[str, Conversion]) -> list[str]:
    return [id for id in (pair.first, *pair.also) if id in conversions]


def _format_words(layout: Layout | None) -> str:
    words = layout_words(layout)
    return "contiguous_format" if words == "contiguous" else words


def _reader_words(nodes: dict[str, dict[str, FxNode]], pair: RedundantPair, back: Conversion) -> str:
    """Who reads what was converted back, where that is a convolution."""
    own = nodes.get(pair.graph or back.graph or "", {})
    readers = [*back.required_by, *([back.node] if back.node is not None else [])]
    return " for the next convolution" if any(is_convolution_named(reader, own) for reader in readers) else ""


def _cost(pairs: Sequence[RedundantPair]) -> tuple[float, int]:
    return (
        evidence.sum_known(pair.seconds for pair in pairs) or 0.0,
        evidence.sum_bytes(pair.bytes_moved for pair in pairs) or 0,
    )


def _finding(diagnosis: Diagnosis, trial: Trial, pairs: Sequence[RedundantPair]) -> Finding:
    worst = max(pairs, key=lambda pair: _cost([pair]))
    return Finding(
        code=CODE,
        rule=NAME,
        severity=_severity(diagnosis, trial),
        configuration=trial.name,
        message=_message(trial, pairs),
        suggestion=_suggestion(diagnosis, trial),
        location=worst.location,
        module=worst.module,
        seconds=evidence.sum_known(pair.seconds for pair in pairs),
        bytes_moved=evidence.sum_bytes(pair.bytes_moved for pair in pairs),
        evidence=tuple(dict.fromkeys(id for pair in pairs for id in (pair.first, *pair.also, pair.second))),
    )


def _severity(diagnosis: Diagnosis, trial: Trial) -> Severity:
    """Judged over all round trips of the trial: many small ones are a loss together."""
    seconds = evidence.sum_known(pair.seconds for pair in trial.redundant_pairs)
    severity = evidence.severity_of_share(evidence.share_of_kernels(trial, seconds))
    if _is_worth_it(diagnosis, trial):
        return "note"
    if severity == "note" or not evidence.is_baseline(diagnosis, trial.name):
        return severity
    cure = evidence.verified_cure(diagnosis)
    return "error" if cure is not None and _is_clean(cure) else severity


def _is_worth_it(diagnosis: Diagnosis, trial: Trial) -> bool:
    """Whether a library made them all, and every trial without them that was measured is slower: they pay."""
    ids = {id for pair in trial.redundant_pairs for id in (pair.first, *pair.also, pair.second)}
    owners = {c.owner for c in evidence.all_conversions_of(trial) if c.id in ids}
    others = [other for other in evidence.own_trials(diagnosis) if other is not trial and _is_clean(other)]
    ratios = [evidence.ratio_of(diagnosis, other.name) for other in others]
    is_measured = any(ratio is not None for ratio in ratios) or any(
        evidence.is_baseline(diagnosis, other.name) for other in others
    )
    return owners == {"library"} and is_measured and evidence.clean_alternative(diagnosis, trial, _is_clean) is None


def _is_clean(trial: Trial) -> bool:
    return trial.kernels is not None and not trial.redundant_pairs


def _message(trial: Trial, pairs: Sequence[RedundantPair]) -> str:
    kinds = sorted(_by_kind(trial, pairs).items(), key=lambda item: _cost(item[1]), reverse=True)
    named = [name for name, _ in kinds[:_KINDS_NAMED]]
    if len(kinds) > _KINDS_NAMED:
        named.append(f"{len(kinds) - _KINDS_NAMED} more kinds")
    shapes = list(dict.fromkeys(shape_words(pair.tensor_shape) for pair in pairs if pair.tensor_shape))
    places = [f"on {listing(shapes, _SHAPES_NAMED)}"] if shapes else []
    return f"{count_of(len(pairs), 'round trip')}: {', '.join(['; '.join(named), *places, *_costs(trial, pairs)])}"


def _costs(trial: Trial, pairs: Sequence[RedundantPair]) -> list[str]:
    """What they took, what they moved, and who ran them, as far as recorded."""
    costs: list[str] = []
    cost = wording.cost_words(trial, evidence.sum_known(pair.seconds for pair in pairs), _source_words(pairs))
    if cost is not None:
        costs.append(cost)
    moved = evidence.sum_bytes(pair.bytes_moved for pair in pairs)
    if moved is not None:
        costs.append(f"{format_bytes(moved)} moved")
    ids = {id for pair in pairs for id in (pair.first, *pair.also, pair.second)}
    owners = sorted({conversion.owner for conversion in evidence.all_conversions_of(trial) if conversion.id in ids})
    if owners:
        costs.append(f"inserted by the {listing(owners)}")
    return costs


def _source_words(pairs: Sequence[RedundantPair]) -> str | None:
    """Whether the cost is measured; nothing where all of it is from the kernel list, which is nothing but measured."""
    if all(pair.evidence == "kernels" for pair in pairs):
        return None
    return wording.source_words(pair.seconds_source for pair in pairs if pair.seconds is not None)


def _suggestion(diagnosis: Diagnosis, trial: Trial) -> str:
    other = evidence.clean_alternative(diagnosis, trial, _is_clean)
    if other is not None:
        return f"use {other.name}: it has no round trip; {wording.alternative_words(diagnosis, trial, other)}"
    if _computes_contiguous(trial):
        return "the library computes contiguous here: leave channels_last away, for these layers or for the whole model"
    if any(place.code and ".contiguous()" in place.code for p in trial.redundant_pairs if (place := p.location)):
        return "remove the .contiguous() between the layers, so that they hand on the layout they have"
    if trial.configuration.input_format == "channels_last" and trial.configuration.layout_optimization == "off":
        return "leave Inductor's layout optimization on, so that the layers between hand the layout on"
    if trial.configuration.input_format == "channels_last" and _is_vetoed(trial):
        return (
            'compile with options={"force_layout_optimization": True}, so that Inductor writes what stands between in '
            "channels_last as well, and measure it (--configurations all)"
        )
    if trial.configuration.input_format == "channels_last":
        return "model and input are channels_last already: look at the operation in front, which returns another layout"
    return "give the model and its input channels_last, so that the layers between hand the layout on"


def _computes_contiguous(trial: Trial) -> bool:
    """Whether every round trip begins with a library that hands on a contiguous result in channels_last."""
    firsts = {pair.first for pair in trial.redundant_pairs}
    own = [conversion for conversion in evidence.all_conversions_of(trial) if conversion.id in firsts]
    return bool(own) and all(c.owner == "library" and c.direction == "to_channels_last" for c in own)


def _is_vetoed(trial: Trial) -> bool:
    """Whether Inductor decided against layout optimization in a graph that has a pair."""
    names = {pair.graph for pair in trial.redundant_pairs}
    decisions = [graph.decision for graph in trial.graphs if graph.name in names and graph.decision is not None]
    return any(decision.applied is False for decision in decisions)


RULE = document_rule(CODE, NAME, check, __doc__)
