"""LD202: a veto by a rule of Inductor that looks at all convolutions of a graph."""

from __future__ import annotations

from collections.abc import Iterator

from layoutdoctor.diagnosis import Diagnosis, Finding
from layoutdoctor.rules.base import Rule
from layoutdoctor.rules.decisions import convolution_words
from layoutdoctor.rules.vetoes import deciding_convolutions, veto_finding, vetoed_graphs
from layoutdoctor.words import listing


def vetoes_as_a_whole(diagnosis: Diagnosis) -> Iterator[Finding]:
    """One finding per rule of Inductor that looks at all convolutions of a graph."""
    rules = ("few-convolutions", "small-channels", "weighted-flops", "not-said")
    for trial, graph, decision in vetoed_graphs(diagnosis, rules):
        where = {"inference": "", "forward": " in the forward", "backward": " in the backward"}[graph.direction]
        names = [convolution_words(convolution) for convolution in deciding_convolutions(decision)]
        message = f"layout optimization vetoed{where} by {decision.rule}: {decision.explanation}"
        message += f"; decided by {listing(names, 2)}" if names else ""
        yield veto_finding(LD202, diagnosis, trial, decision, message)


LD202 = Rule("LD202", "layout-optimization-vetoed", vetoes_as_a_whole)
