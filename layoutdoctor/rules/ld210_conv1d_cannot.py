"""
The convolutions are 1-D, and layout optimization has no format to give them.

What it finds:
    Compiled graphs with 1-D convolutions only, layout optimization left on: how many of the model's convolutions those
    are. And, where eager shows it too, the copy in front of a 1-D convolution that its kernel needs.

Why it costs:
    Nothing by itself: a 3-D tensor has no channels-last format, so neither the flag nor another input format can help.

Example:
    A ``[B, T, C]`` sequence that is transposed for a stack of Conv1d: Inductor's decision is True, no convolution
    changes, and the transposed input is copied, in eager as well.

What to do:
    A Conv2d with a height of 1 computes the same and has a channels-last format; measure it. Layout configurations
    cannot make the Conv1d faster.

When it is fine:
    Always, as long as the time is. The copy in front of the convolution is not redundant.

Source:
    pytorch/pytorch pull request #144140 ("Layout optimization in inductor does not apply to Conv1D"), where a speech
    model on an Intel GPU went from 149 to 91 ms with Conv2d in channels_last in place of Conv1d.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from layoutdoctor.examination.costs import all_conversions_of
from layoutdoctor.rules import evidence
from layoutdoctor.rules import graph_evidence as decisions
from layoutdoctor.rules.base import document_rule
from layoutdoctor.words import count_of, distinct, listing

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Sequence

    from layoutdoctor.diagnosis.records import Conversion, Convolution, Diagnosis, Finding, Trial


def check(diagnosis: Diagnosis) -> Iterator[Finding]:
    """One finding at most: for the first configuration that leaves the layouts to Inductor."""
    for trial in evidence.own_trials(diagnosis):
        if not decisions.leaves_layouts_to_inductor(trial):
            continue
        cards = evidence.cards_of(trial, with_backward=False)
        found = [c for card in cards if decisions.is_one_dimensional(card) for c in card.convolutions]
        if not found:
            continue
        count = max(len(found), sum(card.convolution_count for card in cards))
        copied = _copied_in_both(diagnosis, trial, found)
        yield RULE.finding(
            trial.name,
            _message(len(found), count) + _copy_words(copied),
            "a Conv2d with a height of 1, in channels_last, computes what a Conv1d does: measure it",
            evidence=(*(convolution.node for convolution in found), *(conversion.id for conversion in copied)),
            at=found[0],
        )
        return


def _message(found: int, count: int) -> str:
    return (
        f"{found} of {count_of(count, 'convolution')} {'is' if found == 1 else 'are'} 1-D: layout optimization cannot "
        "apply (3-D tensors have no channels-last format)"
    )


def _copy_words(conversions: Sequence[Conversion]) -> str:
    if not conversions:
        return ""
    places = distinct(conversion.module or conversion.id for conversion in conversions)
    copies, verb, them = ("the copy", "is", "it") if len(conversions) == 1 else ("copies", "are", "them")
    return (
        f"; {copies} in front of {listing(places)} {verb} needed by the kernel, and eager makes {them} too: "
        "not redundant"
    )


def _copied_in_both(diagnosis: Diagnosis, trial: Trial, convolutions: Sequence[Convolution]) -> list[Conversion]:
    """Conversions of activations in front of 1-D convolutions, where eager converts in front of one as well."""
    eager = diagnosis.measured_trial("eager")
    modules = {convolution.module for convolution in convolutions if convolution.module is not None}
    nodes = {convolution.node for convolution in convolutions}
    in_eager = _in_front_of(eager, modules, _eager_convolutions(eager, modules)) if eager is not None else []
    return _in_front_of(trial, modules, nodes) if in_eager else []


def _eager_convolutions(trial: Trial, modules: Collection[str]) -> set[str]:
    nodes = (node for graph in trial.graphs for node in graph.nodes if "conv" in node.target)
    return {n.name for n in nodes if n.module in modules or (n.layout is not None and len(n.layout.shape) == 3)}


def _in_front_of(trial: Trial, modules: Collection[str], nodes: Collection[str]) -> list[Conversion]:
    return [
        conversion
        for conversion in all_conversions_of(trial)
        if not {conversion.node, *conversion.required_by}.isdisjoint(nodes) or conversion.module in modules
        if conversion.tensor != "weight" and conversion.port != "output 0" and not _is_blocked(conversion)
    ]


def _is_blocked(conversion: Conversion) -> bool:
    """Whether a library packs or unpacks its own format, which is no copy in front of a convolution."""
    return any(layout is not None and layout.is_blocked for layout in (conversion.source, conversion.target))


RULE = document_rule("LD210", "conv1d-cannot", check, __doc__)
