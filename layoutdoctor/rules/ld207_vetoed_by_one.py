"""LD207: Inductor's veto against layout optimization because of single convolutions."""

from __future__ import annotations

from collections.abc import Iterator

from layoutdoctor.diagnosis import Diagnosis, Finding
from layoutdoctor.rules.base import Rule
from layoutdoctor.rules.decisions import convolution_words
from layoutdoctor.rules.vetoes import deciding_convolutions, veto_finding, vetoed_graphs
from layoutdoctor.words import count_of, listing

_REASONS = {
    "grouped-convolution": "grouped, with more than one channel per group",
    "smaller-out-channels": "weight.size(0) at most half of weight.size(1), with a kernel larger than 1",
}


def vetoes_by_some(diagnosis: Diagnosis) -> Iterator[Finding]:
    """Yields one finding per rule of Inductor that lets a single convolution decide for the whole graph."""
    for trial, graph, decision in vetoed_graphs(diagnosis, _REASONS):
        where = "" if graph.direction == "inference" else " in training"
        deciding = deciding_convolutions(decision)
        message = f"layout optimization vetoed{where} by {decision.rule}: {decision.explanation}"
        if deciding:
            names = listing([convolution_words(c) for c in deciding], 2)
            others = decision.convolution_count - len(deciding)
            rest = f"{count_of(others, 'other convolution')} {'gets' if others == 1 else 'get'} the same decision"
            message = f"layout optimization vetoed{where} by {names}: {_REASONS[decision.rule]}; "
            message += rest if others > 0 else "there is no other convolution"
        yield veto_finding(LD207, diagnosis, trial, decision, message)


LD207 = Rule("LD207", "vetoed-by-one-convolution", vetoes_by_some)
