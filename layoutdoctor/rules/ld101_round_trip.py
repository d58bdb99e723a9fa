"""LD101: conversions that undo each other."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence

from layoutdoctor.diagnosis import Conversion, Diagnosis, Finding, RedundantPair, Severity, Trial
from layoutdoctor.diagnosis.configurations import BASELINE, FORCED
from layoutdoctor.examination.counts import all_conversions_of, parts_of_pairs, places_of, sum_of_known
from layoutdoctor.examination.graphs.layout_agnostic import CONTIGUOUS_NORMS, base_name
from layoutdoctor.rules import evidence, wording
from layoutdoctor.rules.advice import Times, advised, channels_last_ways, severity_of_loss, use_instead
from layoutdoctor.rules.base import Rule
from layoutdoctor.words import (
    DIRECTION_WORDS,
    PROOF_WORDS,
    count_of,
    distinct,
    joined,
    layout_words,
    listing,
    op_words,
    phrase,
)

# Directions of a round trip's first conversion: out of channels_last or a blocked layout, or into such a layout.
_OUT = ("to_contiguous", "from_blocked")
_INTO = ("to_channels_last", "to_blocked")


def round_trips(diagnosis: Diagnosis) -> Iterator[Finding]:
    """Yields one finding per trial; for a model's baseline, one per kind (layouts, operations), the costliest first."""
    main, times = evidence.main_trial(diagnosis), Times(diagnosis)
    for trial in evidence.own_trials(diagnosis):
        facts = _Facts(trial)
        kinds: dict[str, list[RedundantPair]] = {}
        is_trace = evidence.is_trace(trial)
        for pair in trial.redundant_pairs:
            kind = joined(facts.words(pair), " ") if trial is main and not is_trace else ""
            kinds.setdefault(kind, []).append(pair)
        for pairs in sorted(kinds.values(), key=lambda p: (facts.seconds(p) or 0.0, facts.bytes(p) or 0), reverse=True):
            yield LD101.finding(
                trial.name,
                _message(facts, pairs),
                _suggestion(times, facts, pairs),
                severity=_severity(times, facts),
                at=next(iter(places_of(pairs)), None),
                seconds=facts.seconds(pairs),
                bytes_moved=facts.bytes(pairs),
                evidence=_ids(pairs),
            )


class _Facts:
    """A trial's conversions by id, its nodes by graph and name, and round trips in words."""

    def __init__(self, trial: Trial) -> None:
        self.trial = trial
        self.conversions = {conversion.id: conversion for conversion in all_conversions_of(trial)}
        self.nodes = {graph.name: evidence.nodes_by_name(graph) for graph in trial.graphs}

    def of(self, pairs: Sequence[RedundantPair]) -> list[Conversion]:
        """Returns the conversions of round trips, each once."""
        return [self.conversions[id] for id in dict.fromkeys(_ids(pairs)) if id in self.conversions]

    def parts(self, pairs: Sequence[RedundantPair]) -> Sequence[RedundantPair | Conversion]:
        """Splits round trips into parts whose costs add up: a conversion that two of them share counts once."""
        return parts_of_pairs(pairs, self.of(pairs))

    def seconds(self, pairs: Sequence[RedundantPair]) -> float | None:
        return sum_of_known(part.seconds for part in self.parts(pairs))

    def bytes(self, pairs: Sequence[RedundantPair]) -> int | None:
        return sum_of_known(part.bytes_moved for part in self.parts(pairs))

    def firsts(self, pairs: Sequence[RedundantPair]) -> list[Conversion]:
        return [self.conversions[pair.first] for pair in pairs if pair.first in self.conversions]

    def words(self, pair: RedundantPair) -> tuple[str, str]:
        """
        Names a pair's layouts, and the operations between its conversions: ``"around relu"``.

        The layouts are ``"contiguous -> blocked a -> contiguous"``, or ``"to blocked and back"`` if only the first
        direction is known, else empty. They are empty for a concatenation too, because its words name the layouts.
        """
        first, second = self.conversions.get(pair.first), self.conversions.get(pair.second)
        names = [op_words(base_name(op)).replace("(anonymous namespace)::", "") for op in pair.between]
        around = phrase("around {}", listing(name.removeprefix("at::native::") for name in names)) or "back to back"
        if first is None or second is None:
            return "", around
        if pair.also and any(base_name(op) == "cat" for op in pair.between):
            return "", self._concatenation(pair, second)
        layouts = (first.source, first.target, second.target)
        if None not in layouts:
            return " -> ".join(map(layout_words, layouts)), around
        if first.direction not in (*_OUT, *_INTO):
            return "", around
        return f"{DIRECTION_WORDS[first.direction]} and back", around if names else "with nothing between"

    def _concatenation(self, pair: RedundantPair, second: Conversion) -> str:
        """Describes a concatenation inside a round trip by branches, format and reader."""
        there = [self.conversions[id] for id in (pair.first, *pair.also) if id in self.conversions]
        formats = distinct(layout_words(conversion.source) for conversion in there)
        cat = next(op for op in pair.between if base_name(op) == "cat")
        through = phrase(" with {}", [op_words(op) for op in pair.between if op != cat], listing)
        nodes = self.nodes.get(pair.graph or second.graph or "", {})
        readers = [*second.required_by, *([second.node] if second.node is not None else [])]
        is_read = any(evidence.runs_convolution_named(reader, nodes) for reader in readers)
        joint = layout_words(second.source)
        return (
            f"concatenation of {1 + len(pair.also)} {' or '.join(formats)} branches, written in {joint}{through} and "
            f"converted back{' for the next convolution' if is_read else ''}"
        )

    def kind_words(self, pairs: Sequence[RedundantPair]) -> str:
        """Names the layouts and the operations between; of different operations, the most frequent and their count."""
        words = [self.words(pair) for pair in pairs]
        ways = wording.named_counts((way, 1) for way, _ in words)
        ((around, count), *others) = Counter(around for _, around in words).most_common()
        return joined((ways, f"{count} {around}"), ", ") if others else joined((ways, around), " ")


def _ids(pairs: Sequence[RedundantPair]) -> list[str]:
    return [id for pair in pairs for id in (pair.first, *pair.also, pair.second)]


def _is_clean(trial: Trial) -> bool:
    return trial.kernels is not None and not trial.redundant_pairs


def _severity(times: Times, facts: _Facts) -> Severity:
    """Judges all round trips of the trial together, because many small round trips may be a loss."""
    trial, pairs = facts.trial, facts.trial.redundant_pairs
    if evidence.is_trace(trial):
        # The order of kernels alone proves nothing.
        return evidence.severity_of_cost(trial, facts.seconds([p for p in pairs if p.confidence in ("shapes", "grid")]))
    if {c.owner for c in facts.of(pairs)} == {"library"} and times.is_worth_it(trial, _is_clean):
        return "note"
    return severity_of_loss(times, trial, evidence.share_of_kernels(trial, facts.seconds(pairs)), _is_clean)


def _message(facts: _Facts, pairs: Sequence[RedundantPair]) -> str:
    trial, conversions = facts.trial, facts.of(pairs)
    returned = sum(conversion.purpose == "gradient_strides" for conversion in conversions)
    cost = wording.conversion_cost_words(trial, facts.parts(pairs))
    shapes = wording.on_shapes(pair.tensor_shape for pair in pairs)
    total = count_of(len(pairs), "round trip")
    if evidence.is_trace(trial):
        start = joined((f"{total}{_proof_words(pairs)}: {facts.kind_words(pairs)}", shapes), ", ")
        return joined((start, cost))
    gradients = "gradients of weights, which autograd copies back" if returned == len(pairs) else None
    parts = (gradients, facts.kind_words(pairs), shapes, cost, wording.owner_words(conversions))
    return f"{total}: {joined(parts, ', ')}"


def _proof_words(pairs: Sequence[RedundantPair]) -> str:
    """Says how the pairs were proved. Of several proofs, it names the weakest, with the number of its pairs."""
    proofs = [pair.confidence or "graph" for pair in pairs]
    weakest = [proof for proof in PROOF_WORDS if proof in proofs][-1]
    words = PROOF_WORDS[weakest]
    return f" known {words}" if len({*proofs}) == 1 else f", {proofs.count(weakest)} known {words}"


def _suggestion(times: Times, facts: _Facts, pairs: Sequence[RedundantPair]) -> str:
    trial = facts.trial
    other = times.clean_alternative(trial, _is_clean)
    if other is not None:
        return use_instead(times, trial, other, "has no round trip")
    if evidence.is_trace(trial):
        return _untried_suggestion(facts, pairs)
    firsts, ways = facts.firsts(pairs), channels_last_ways(trial)
    decided = [(graph.name, graph.decision) for graph in trial.graphs if graph.decision is not None]
    vetoed = {name for name, card in decided if card.applied is False and not evidence.is_of_other_ranks(card)}
    if firsts and all(c.owner == "library" and c.direction == "to_channels_last" for c in firsts):
        without = "eager" if trial.configuration.backend == "eager" else BASELINE
        ways = (without,) if evidence.is_channels_last(trial) else ()
        advice = (
            "the library computes in contiguous format here: avoid channels_last, for these layers or the whole model"
        )
    elif any(place.code and ".contiguous()" in place.code for pair in pairs if (place := pair.location)):
        return "remove the .contiguous() between the layers, so that the layout is kept between them"
    elif trial.configuration.input_format != "channels_last":
        advice = "give the model and its input channels_last, so that the layers between keep the layout"
    elif trial.configuration.layout_optimization == "off":
        ways = ("inductor-channels-last",)
        advice = "leave Inductor's layout optimization on, so that the layers between keep the layout"
    elif not vetoed.isdisjoint(pair.graph for pair in pairs):
        ways = (FORCED,)
        advice = (
            'compile with options={"force_layout_optimization": True}, so that Inductor writes the values between the '
            "two conversions in channels_last too, and measure it (--configurations all)"
        )
    else:
        return (
            "model and input are channels_last already; look at the operation before the round trip: its result has "
            "another layout"
        )
    return advised(times, trial, ways, advice)


def _untried_suggestion(facts: _Facts, pairs: Sequence[RedundantPair]) -> str:
    """Suggests, for a trace, the format to record next; the direction of the costlier round trips decides."""
    weights = []
    for directions in (_OUT, _INTO):
        own = [p for p in pairs if p.first in facts.conversions and facts.conversions[p.first].direction in directions]
        weights.append((facts.seconds(own) or 0.0, len(own)))
    out, into = weights
    if out == into:
        return f"no other format was measured: {wording.try_words(None)}"
    if into > out:
        return f"the library computes in contiguous format here: {wording.try_words('torch.contiguous_format')}"
    ranks = {len(pair.tensor_shape) for pair in pairs if pair.tensor_shape}
    tried = wording.try_words(wording.channels_last_words(ranks), is_of_one_rank=len(ranks) == 1)
    has_norm = any(name in CONTIGUOUS_NORMS for pair in pairs for name in pair.between)
    norms = "; in eager mode a group norm computes only in contiguous format and converts its input" if has_norm else ""
    return f"no other format was measured: {tried}{norms}{wording.miopen_words(facts.firsts(pairs))}"


LD101 = Rule("LD101", "round-trip-conversion", round_trips)
