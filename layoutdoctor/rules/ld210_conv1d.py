"""LD210: convolutions that are all 1-D."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence

from layoutdoctor.diagnosis import Conversion, Convolution, Decision, Diagnosis, Finding, Trial
from layoutdoctor.examination.counts import all_conversions_of
from layoutdoctor.rules import evidence
from layoutdoctor.rules.base import Rule
from layoutdoctor.rules.decisions import are_products, is_one_dimensional, leaves_layouts_to_inductor
from layoutdoctor.words import count_of, distinct, joined, listing


def one_dimensional(diagnosis: Diagnosis) -> Iterator[Finding]:
    """Yields at most one finding, for the first trial with a graph of 1-D convolutions and layout optimization on."""

    def one_dimensional_cards(trial: Trial) -> list[Decision]:
        return [card for card in evidence.cards_of(evidence.forward_graphs(trial)) if is_one_dimensional(card)]

    trials = (trial for trial in evidence.own_trials(diagnosis) if leaves_layouts_to_inductor(trial))
    for trial, cards in evidence.first_showing(trials, one_dimensional_cards):
        found = [convolution for card in cards for convolution in card.convolutions]
        if are_products(diagnosis, trial, found):
            return
        every = sum(card.convolution_count for card in evidence.cards_of(evidence.forward_graphs(trial)))
        copied = _copied_in_both(diagnosis, trial, found)
        places = listing(distinct(conversion.module or conversion.id for conversion in copied))
        message = (
            f"1-D convolution, whose 3-D tensors have no channels-last format: {len(found)} of "
            f"{count_of(every, 'convolution')}",
            f"not redundant: the copy in front of {places}, which the kernel needs and eager makes too"
            if copied
            else None,
        )
        yield LD210.finding(
            trial.name,
            joined(message),
            "a Conv2d with a height of 1, in channels_last, computes the same as a Conv1d: measure it",
            evidence=(*(convolution.node for convolution in found), *(conversion.id for conversion in copied)),
            at=found[0],
        )


def _copied_in_both(diagnosis: Diagnosis, trial: Trial, convolutions: Sequence[Convolution]) -> list[Conversion]:
    """Returns conversions of inputs of 1-D convolutions; empty unless eager mode converts such an input too."""
    eager = diagnosis.measured_trial("eager")
    if eager is None:
        return []
    modules = {convolution.module for convolution in convolutions if convolution.module is not None}
    nodes = [node for graph in eager.graphs for node in graph.nodes]
    called = {n.name for n in nodes if "conv" in n.target and n.layout is not None and len(n.layout.shape) == 3}
    in_front = _in_front_of(trial, modules, {convolution.node for convolution in convolutions})
    return in_front if _in_front_of(eager, modules, called) else []


def _in_front_of(trial: Trial, modules: Collection[str], nodes: Collection[str]) -> list[Conversion]:
    """Returns conversions in front of convolutions, except those to and from a library's blocked format."""
    return [
        conversion
        for conversion in all_conversions_of(trial)
        if not {conversion.node, *conversion.required_by}.isdisjoint(nodes) or conversion.module in modules
        if conversion.tensor != "weight"
        and conversion.port != "output 0"
        and not any(layout is not None and layout.is_blocked for layout in (conversion.source, conversion.target))
    ]


LD210 = Rule("LD210", "conv1d-cannot", one_dimensional)
