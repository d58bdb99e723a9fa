"""
Inductor decided against channels-last for the graph as a whole.

What it finds:
    A compiled graph with convolutions, layout optimization left on, whose decision is "not applied" because of all its
    convolutions together: there are few of them among many other operations, all have few channels, or their weighted
    flops predict a slowdown. Each rule is told once, in the first configuration with it. A veto by single convolutions
    is LD207, by symbolic sizes LD208, and a backward that differs from its forward LD206.

Why it costs:
    All convolutions keep the caller's format. In the contiguous format the library converts around each.

Example:
    A small network in training on a GPU: all its convolutions have at most 64 channels, and it stays contiguous.

What to do:
    Measure what the veto costs: ``inductor-layout-opt-forced`` overrides it, ``inductor-channels-last`` goes around
    it.

When it is fine:
    Often: the rules come from measurements on NVIDIA GPUs. It is a warning only where forcing, or channels_last input,
    was measured to be faster.

Source:
    ``GraphLowering.decide_layout_opt``, torch/_inductor/graph.py, torch 2.13.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from layoutdoctor.rules import graph_evidence as decisions
from layoutdoctor.rules.base import document_rule
from layoutdoctor.words import listing

if TYPE_CHECKING:
    from collections.abc import Iterator

    from layoutdoctor.diagnosis.records import Decision, Diagnosis, Finding, Graph

_RULES = ("few-convolutions", "small-channels", "weighted-flops", "not-said")
_CONVOLUTIONS_NAMED = 6


def check(diagnosis: Diagnosis) -> Iterator[Finding]:
    """One finding per rule."""
    for trial, graph, decision in decisions.vetoed_graphs(diagnosis, _RULES):
        yield decisions.veto_finding(RULE, diagnosis, trial, decision, _message(graph, decision))


def _message(graph: Graph, decision: Decision) -> str:
    where = {"inference": "", "forward": " in the forward", "backward": " in the backward"}[graph.direction]
    message = f"layout optimization vetoed{where} by {decision.rule}: {decision.explanation}"
    names = [decisions.convolution_words(convolution) for convolution in decisions.deciding_convolutions(decision)]
    return f"{message}; decided by {listing(names, _CONVOLUTIONS_NAMED)}" if names else message


RULE = document_rule("LD202", "layout-optimization-vetoed", check, __doc__)
