"""
A conversion and a later one undo each other, and nothing between them needs the other layout.

What it finds:
    Redundant pairs: a conversion of a tensor from layout A to B and a later one of the same value from B to A, with
    nothing between (``adjacent``) or only operations that work in any layout (``through``), no consumer in between
    that needs B, and no graph output or alias that pins B. The branches of a concatenation that is written in B and
    converted back are one round trip. In a compiled training step on contiguous weights also their gradients: ATen
    lays them out channels_last at the end of ``convolution_backward``, and autograd (``AccumulateGrad``) copies them
    back into the strides of the parameters. In the baseline, one finding per kind of round trip; in any other trial,
    and in a recorded trace, one finding for all of them.

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
    torch/_inductor/graph.py, torch 2.13, describes the same two copies around a batch norm; ``AccumulateGrad`` and
    ``clone_obey_contract`` in torch/csrc/autograd.
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

from layoutdoctor.diagnosis.configurations import BASELINE
from layoutdoctor.examination.costs import Place, all_conversions_of, places_of, sum_known
from layoutdoctor.examination.graphs.layout_agnostic import CONTIGUOUS_NORMS, base_name
from layoutdoctor.rules import evidence
from layoutdoctor.rules.advice import advised, channels_last_ways, use_instead, verified_cure
from layoutdoctor.rules.base import document_rule
from layoutdoctor.rules.graph_evidence import FORCED, is_convolution_named, nodes_by_name
from layoutdoctor.rules.times import Times
from layoutdoctor.words import (
    DIRECTION_WORDS,
    GIVES_STRIDES,
    PROOF_WORDS,
    count_of,
    distinct,
    joined,
    layout_words,
    listing,
    op_words,
)

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from layoutdoctor.diagnosis.layout import Layout
    from layoutdoctor.diagnosis.records import (
        Conversion,
        ConversionDirection,
        Diagnosis,
        Finding,
        RedundantPair,
        Severity,
        Trial,
    )

_KINDS_NAMED = 3
_PROVEN = ("shapes", "grid")
# A first conversion that goes out of the layout that the library computes in, and one that goes into it.
_OUT: tuple[ConversionDirection, ...] = ("to_contiguous", "from_blocked")
_INTO: tuple[ConversionDirection, ...] = ("to_channels_last", "to_blocked")


def check(diagnosis: Diagnosis) -> Iterator[Finding]:
    """The round trips of every trial, those of the baseline first."""
    for trial in evidence.own_trials(diagnosis):
        facts = _Facts(trial)
        for pairs in _grouped(diagnosis, trial, facts):
            yield _finding(diagnosis, trial, facts, pairs)


class _Facts:
    """A trial's conversions by id and nodes by graph and name, and what a round trip is with them."""

    def __init__(self, trial: Trial) -> None:
        self.conversions = {conversion.id: conversion for conversion in all_conversions_of(trial)}
        self.nodes = {graph.name: nodes_by_name(graph) for graph in trial.graphs}

    def of(self, pairs: Sequence[RedundantPair]) -> list[Conversion]:
        """The conversions of round trips, each once."""
        return [self.conversions[id] for id in dict.fromkeys(_ids(pairs)) if id in self.conversions]

    def first(self, pair: RedundantPair) -> Conversion | None:
        return self.conversions.get(pair.first)

    def kind(self, pair: RedundantPair) -> str:
        """The layouts and what stands between: ``"contiguous -> channels_last -> contiguous around relu"``."""
        return joined((self.way(pair), self.around(pair)), " ")

    def way(self, pair: RedundantPair) -> str | None:
        """``"channels_last -> contiguous -> channels_last"``; by the first one's direction where no layout is known."""
        first, second = self.first(pair), self.conversions.get(pair.second)
        if first is None or second is None or self.concatenation(pair) is not None:
            return None
        layouts = (first.source, first.target, second.target)
        if None not in layouts:
            return " -> ".join(layout_words(layout) for layout in layouts)
        return f"{DIRECTION_WORDS[first.direction]} and back" if first.direction in (*_OUT, *_INTO) else None

    def around(self, pair: RedundantPair) -> str:
        names = [_operation_words(op) for op in pair.between]
        nothing = "with nothing between" if (self.way(pair) or "").endswith(" and back") else "back to back"
        return self.concatenation(pair) or (f"around {listing(names)}" if names else nothing)

    def concatenation(self, pair: RedundantPair) -> str | None:
        """The branches of a concatenation, its format and who wants them back; None for any other round trip."""
        first, second = self.first(pair), self.conversions.get(pair.second)
        cat = next((op for op in pair.between if base_name(op) == "cat"), None)
        if cat is None or not pair.also or first is None or second is None:
            return None
        there = [self.conversions[id] for id in (pair.first, *pair.also) if id in self.conversions]
        formats = distinct(layout_words(conversion.source) for conversion in there)
        rest = [op_words(op) for op in pair.between if op != cat]
        through = f", with {listing(rest)} between," if rest else ""
        nodes = self.nodes.get(pair.graph or second.graph or "", {})
        readers = [*second.required_by, *([second.node] if second.node is not None else [])]
        is_read = any(is_convolution_named(reader, nodes) for reader in readers)
        return (
            f"{1 + len(pair.also)} {' or '.join(formats)} branches are concatenated in {_format_words(second.source)} "
            f"at {cat.removesuffix('.default')}{through} and converted back"
            + (" for the next convolution" if is_read else "")
        )


def _ids(pairs: Sequence[RedundantPair]) -> list[str]:
    return [id for pair in pairs for id in (pair.first, *pair.also, pair.second)]


def _operation_words(name: str) -> str:
    """An operation or, where none was recorded, a kernel, without where it stands in torch's sources."""
    return op_words(base_name(name)).replace("(anonymous namespace)::", "").removeprefix("at::native::")


def _format_words(layout: Layout | None) -> str:
    words = layout_words(layout)
    return "contiguous_format" if words == "contiguous" else words


def _grouped(diagnosis: Diagnosis, trial: Trial, facts: _Facts) -> list[Sequence[RedundantPair]]:
    """By kind, the costliest first, where graphs prove what the trial of today does; else all as one."""
    pairs = trial.redundant_pairs
    if not pairs or trial is not evidence.main_trial(diagnosis) or evidence.is_trace(trial):
        return [pairs] if pairs else []
    kinds: dict[str, list[RedundantPair]] = {}
    for pair in pairs:
        kinds.setdefault(facts.kind(pair), []).append(pair)
    return sorted(kinds.values(), key=_cost, reverse=True)


def _cost(pairs: Sequence[RedundantPair]) -> tuple[float, int]:
    return (sum_known(pair.seconds for pair in pairs) or 0.0, sum_known(pair.bytes_moved for pair in pairs) or 0)


def _finding(diagnosis: Diagnosis, trial: Trial, facts: _Facts, pairs: Sequence[RedundantPair]) -> Finding:
    found = places_of(Place(p.module, p.location, 1, p.seconds, p.bytes_moved or 0) for p in pairs)
    return RULE.finding(
        trial.name,
        _message(trial, facts, pairs, found),
        _suggestion(diagnosis, trial, facts, pairs),
        severity=_severity(diagnosis, trial, facts),
        at=found[0] if found else None,
        seconds=sum_known(pair.seconds for pair in pairs),
        bytes_moved=sum_known(pair.bytes_moved for pair in pairs),
        evidence=_ids(pairs),
    )


def _severity(diagnosis: Diagnosis, trial: Trial, facts: _Facts) -> Severity:
    """Judged over all round trips of the trial: many small ones are a loss together. Mere order makes none."""
    if evidence.is_trace(trial):
        proven = [pair for pair in trial.redundant_pairs if pair.confidence in _PROVEN]
        return evidence.severity_of_cost(trial, sum_known(pair.seconds for pair in proven))
    if _is_worth_it(diagnosis, trial, facts):
        return "note"
    seconds = sum_known(pair.seconds for pair in trial.redundant_pairs)
    severity = evidence.severity_of_cost(trial, seconds)
    cure = verified_cure(diagnosis)
    if severity == "note" or cure is None or not Times(diagnosis).is_baseline(trial.name):
        return severity
    return "error" if _is_clean(cure) else severity


def _is_worth_it(diagnosis: Diagnosis, trial: Trial, facts: _Facts) -> bool:
    """Whether a library made them all, and every trial without them that was measured is slower: they pay."""
    is_library = {c.owner for c in facts.of(trial.redundant_pairs)} == {"library"}
    return is_library and Times(diagnosis).is_worth_it(trial, _is_clean)


def _is_clean(trial: Trial) -> bool:
    return trial.kernels is not None and not trial.redundant_pairs


def _message(trial: Trial, facts: _Facts, pairs: Sequence[RedundantPair], found: Sequence[Place]) -> str:
    shapes = evidence.on_shapes(pair.tensor_shape for pair in pairs)
    costs = joined((_cost_words(trial, facts, pairs), evidence.moved_words(_sum_bytes(pairs))), ", ")
    if not evidence.is_trace(trial):
        returned = sum(conversion.cause == GIVES_STRIDES for conversion in facts.of(pairs))
        tensor = "gradients of weights, which autograd copies back" if returned == len(pairs) else None
        owners = evidence.owner_words(facts.of(pairs))
        what = joined((tensor, _kind_words(facts, pairs), shapes, costs, owners), ", ")
        return f"{count_of(len(pairs), 'round trip')}: {what}"
    dearest, norms = evidence.dearest_words(found), _group_norm_words(pairs)
    return joined((_proof_words(pairs), _kind_words(facts, pairs), shapes, costs, dearest, norms))


def _sum_bytes(pairs: Sequence[RedundantPair]) -> int | None:
    return sum_known(pair.bytes_moved for pair in pairs)


def _cost_words(trial: Trial, facts: _Facts, pairs: Sequence[RedundantPair]) -> str | None:
    """Their time; where it is from is said unless all of it is from the kernel list, which is nothing but measured."""
    seconds = sum_known(pair.seconds for pair in pairs)
    own, source = None, None
    if {conversion.owner for conversion in facts.of(pairs)} == {"library"}:
        own = evidence.convolution_share_words(trial, seconds)
    if any(pair.evidence != "kernels" for pair in pairs):
        source = evidence.source_words(pair.seconds_source for pair in pairs if pair.seconds is not None)
    exposed = sum_known(pair.exposed_seconds for pair in pairs)
    return evidence.cost_words(trial, seconds, own, source, exposed_seconds=exposed)


def _proof_words(pairs: Sequence[RedundantPair]) -> str:
    """How many, and what proves them: ``"3 round trips: 2 with shapes ... and 1 by the order ..."``."""
    counts: Counter[str] = Counter(pair.confidence or "order" for pair in pairs)
    known = [(counts[confidence], words) for confidence, words in PROOF_WORDS.items() if counts[confidence]]
    total = count_of(len(pairs), "round trip")
    if len(known) == 1:
        return f"{total} {known[0][1]}"
    return f"{total}: {listing([f'{count} {words}' for count, words in known])}"


def _kind_words(facts: _Facts, pairs: Sequence[RedundantPair]) -> str:
    """Which way, and around what, the most frequent first; how often each where there are several."""
    ways = evidence.named_counts((facts.way(pair), 1) for pair in pairs)
    counts = Counter(facts.around(pair) for pair in pairs)
    if len(counts) == 1:
        return joined((ways, *counts), " ")
    around = [f"{count} {words}" for words, count in counts.most_common(_KINDS_NAMED)]
    if len(counts) > _KINDS_NAMED:
        around.append(count_of(len(counts) - _KINDS_NAMED, "more kind"))
    return joined((ways, ", ".join(around)), ": ")


def _has_contiguous_norm(pair: RedundantPair) -> bool:
    return any(name in CONTIGUOUS_NORMS for name in pair.between)


def _group_norm_words(pairs: Sequence[RedundantPair]) -> str | None:
    """How many go through a group norm that would convert by itself if the library did not."""
    count = sum(map(_has_contiguous_norm, pairs))
    if not count:
        return None
    which = "all of them go" if count == len(pairs) else f"{count} of them {'goes' if count == 1 else 'go'}"
    return f"{which} through a group norm that runs in contiguous_format only"


def _suggestion(diagnosis: Diagnosis, trial: Trial, facts: _Facts, pairs: Sequence[RedundantPair]) -> str:
    times = Times(diagnosis)
    other = times.clean_alternative(trial, _is_clean)
    if other is not None:
        return use_instead(times, trial, other, "has no round trip")
    if evidence.is_trace(trial):
        return _untried_suggestion(facts, pairs)
    firsts = [first for pair in trial.redundant_pairs if (first := facts.first(pair)) is not None]
    if firsts and all(c.owner == "library" and c.direction == "to_channels_last" for c in firsts):
        without = "eager" if trial.configuration.backend == "eager" else BASELINE
        ways = (without,) if evidence.is_channels_last(trial) else ()
        advice = "leave channels_last away, for these layers or for the whole model"
        return advised(times, trial, ways, f"the library computes contiguous here: {advice}")
    if any(place.code and ".contiguous()" in place.code for p in trial.redundant_pairs if (place := p.location)):
        return "remove the .contiguous() between the layers, so that they hand on the layout they have"
    if trial.configuration.input_format != "channels_last":
        advice = "give the model and its input channels_last, so that the layers between hand the layout on"
        return advised(times, trial, channels_last_ways(trial), advice)
    if trial.configuration.layout_optimization == "off":
        advice = "leave Inductor's layout optimization on, so that the layers between hand the layout on"
        return advised(times, trial, ("inductor-channels-last",), advice)
    if _is_vetoed(trial):
        advice = (
            'compile with options={"force_layout_optimization": True}, so that Inductor writes what stands between in '
            "channels_last as well, and measure it (--configurations all)"
        )
        return advised(times, trial, (FORCED,), advice)
    return "model and input are channels_last already: look at the operation in front, which returns another layout"


def _is_vetoed(trial: Trial) -> bool:
    """Whether Inductor decided against layout optimization in a graph that has a pair."""
    names = {pair.graph for pair in trial.redundant_pairs}
    return any(g.decision is not None and g.decision.applied is False for g in trial.graphs if g.name in names)


def _untried_suggestion(facts: _Facts, pairs: Sequence[RedundantPair]) -> str:
    """By what the library wants, as the dearer way round says: there is no other run to compare with."""
    out, back = (_weight(facts, pairs, directions) for directions in (_OUT, _INTO))
    if out == back:
        return f"nothing was tried here: {evidence.try_words(None)}"
    if back > out:
        return f"the library computes contiguous here: {evidence.try_words('torch.contiguous_format')}"
    wanted = evidence.channels_last_words(len(pair.tensor_shape) for pair in pairs if pair.tensor_shape)
    norms = (
        "; around a group norm that is not enough in eager: it converts its input itself, unless torch.compile or a "
        "group norm for channels_last takes its place"
        if any(map(_has_contiguous_norm, pairs))
        else ""
    )
    firsts = [first for pair in pairs if (first := facts.first(pair)) is not None]
    return f"nothing was tried here: {evidence.try_words(wanted)}{norms}{evidence.miopen_words(firsts)}"


def _weight(
    facts: _Facts, pairs: Sequence[RedundantPair], directions: Sequence[ConversionDirection]
) -> tuple[float, int]:
    """Time, then number, of the pairs whose first conversion goes one of these ways."""
    own = [pair for pair in pairs if (first := facts.first(pair)) and first.direction in directions]
    return (sum_known(pair.seconds for pair in own) or 0.0, len(own))


RULE = document_rule("LD101", "round-trip-conversion", check, __doc__)
