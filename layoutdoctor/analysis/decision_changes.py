"""
Which graphs Inductor decided otherwise, and which of their convolutions it classed or laid out otherwise.

Faces ``model_comparison``; pure functions of records.
"""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING

from layoutdoctor.comparison_records import ConvolutionChange, DecisionChange, GraphDecision

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from layoutdoctor.records import Convolution, Decision, Trial


def decision_changes(old: Trial | None, new: Trial | None) -> tuple[DecisionChange, ...]:
    """
    The graphs of one configuration that have a decision card in both, where the cards differ.

    Args:
        old: The trial of the earlier diagnosis; None where it is not there.
        new: That of the later one.
    """
    if old is None or new is None:
        return ()
    before = {graph.name: graph.decision for graph in old.graphs}
    changes = (
        _decision_change(graph.name, once, graph.decision)
        for graph in new.graphs
        if (once := before.get(graph.name)) is not None and graph.decision is not None
    )
    return tuple(change for change in changes if change.old != change.new or change.convolutions)


def _decision_change(name: str, old: Decision, new: Decision) -> DecisionChange:
    return DecisionChange(
        graph=name, old=_card(old), new=_card(new), convolutions=tuple(_convolution_changes(old, new))
    )


def _card(decision: Decision) -> GraphDecision:
    return GraphDecision(
        applied=decision.applied,
        rule=decision.rule,
        channels_last_convolution_count=decision.channels_last_convolution_count,
        convolution_count=decision.convolution_count,
    )


def _convolution_changes(old: Decision, new: Decision) -> Iterator[ConvolutionChange]:
    before = _by_place(old.convolutions)
    for place, convolution in _by_place(new.convolutions).items():
        once = before.get(place)
        if once is None:
            continue
        if (once.class_, once.channels_last) != (convolution.class_, convolution.channels_last):
            yield ConvolutionChange(
                module=convolution.module,
                node=convolution.node,
                old_class=once.class_,
                new_class=convolution.class_,
                old_channels_last=once.channels_last,
                new_channels_last=convolution.channels_last,
            )


def _by_place(convolutions: Iterable[Convolution]) -> dict[tuple[str, bool, int], Convolution]:
    """By module (by node where that was not recorded), direction, and which one there: node names move with edits."""
    seen: dict[tuple[str, bool], int] = defaultdict(int)
    places = {}
    for convolution in convolutions:
        name = convolution.module or convolution.node
        place = name, convolution.is_backward
        places[name, convolution.is_backward, seen[place]] = convolution
        seen[place] += 1
    return places
