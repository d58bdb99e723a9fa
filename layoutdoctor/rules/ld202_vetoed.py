"""LD202: Inductor's veto against layout optimization because of all convolutions of a graph."""

from __future__ import annotations

from collections.abc import Iterator

from layoutdoctor.diagnosis import Diagnosis, Finding
from layoutdoctor.rules.base import Rule
from layoutdoctor.rules.decisions import convolution_words
from layoutdoctor.rules.vetoes import deciding_convolutions, veto_finding, vetoed_graphs
from layoutdoctor.words import listing, phrase


def vetoes_as_a_whole(diagnosis: Diagnosis) -> Iterator[Finding]:
    """Yields one finding per rule of Inductor that looks at all convolutions of a graph."""
    rules = ("few-convolutions", "small-channels", "weighted-flops", "not-said")
    for trial, graph, decision in vetoed_graphs(diagnosis, rules):
        where = {"inference": "", "forward": " in the forward", "backward": " in the backward"}[graph.direction]
        deciding = listing(map(convolution_words, deciding_convolutions(decision)), 2)
        by = "" if decision.rule == "not-said" else f" by {decision.rule}"
        message = f"layout optimization vetoed{where}{by}: {decision.explanation}"
        yield veto_finding(LD202, diagnosis, trial, decision, message + phrase("; decided by {}", deciding))


LD202 = Rule("LD202", "layout-optimization-vetoed", vetoes_as_a_whole)
