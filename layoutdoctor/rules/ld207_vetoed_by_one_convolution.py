"""
One convolution, or a few, kept Inductor from making all the others channels-last.

What it finds:
    A compiled graph whose decision is "not applied" because it has a grouped convolution with more than one channel
    per group, or one with at most half as many output as input channels: which convolutions those are, and how many
    others stay as they are because of them.

Why it costs:
    The decision is one for the whole graph: one such convolution keeps all the others in the caller's format, and the
    library converts around each.

Example:
    A U-Net in training on a GPU: one 3x3 convolution from 192 to 64 channels, and the whole network stays contiguous.

What to do:
    Measure what the veto costs: ``inductor-layout-opt-forced`` overrides it, ``inductor-channels-last`` goes around
    it. Or compile the part without that convolution by itself.

When it is fine:
    Often, on a GPU: a grouped convolution in channels-last can be 31 times slower there, which is why the rule exists.
    It is a warning only where forcing, or channels_last input, was measured to be faster.

Source:
    ``GraphLowering.decide_layout_opt``, torch/_inductor/graph.py, torch 2.13, which names the figure and the models
    that the rule was made for; pytorch/pytorch issue #34977 has grouped convolutions that are slow in channels_last.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from layoutdoctor.rules import graph_evidence as decisions
from layoutdoctor.rules.base import document_rule
from layoutdoctor.words import be, count_of, listing

if TYPE_CHECKING:
    from collections.abc import Iterator

    from layoutdoctor.diagnosis.records import Decision, Diagnosis, Finding, Graph

_REASONS = {
    "grouped-convolution": "grouped, with more than one channel per group",
    "smaller-out-channels": "the weight's first size is at most half its second, with a kernel larger than 1",
}
_CONVOLUTIONS_NAMED = 4


def check(diagnosis: Diagnosis) -> Iterator[Finding]:
    """One finding per rule."""
    for trial, graph, decision in decisions.vetoed_graphs(diagnosis, _REASONS):
        yield decisions.veto_finding(RULE, diagnosis, trial, decision, _message(graph, decision))


def _message(graph: Graph, decision: Decision) -> str:
    where = "" if graph.direction == "inference" else " in training"
    deciding = decisions.deciding_convolutions(decision)
    if not deciding:
        return f"layout optimization vetoed{where} by {decision.rule}: {decision.explanation}"
    names = listing([decisions.convolution_words(c) for c in deciding], _CONVOLUTIONS_NAMED)
    message = f"layout optimization vetoed{where} by {names}: {_REASONS[decision.rule]}"
    others = decision.convolution_count - len(deciding)
    if others <= 0:
        return f"{message}; there is no other convolution"
    because = "it" if len(deciding) == 1 else "them"
    other = count_of(others, "other convolution")
    return f"{message}; {other} {be(others)} not made channels-last because of {because}"


RULE = document_rule("LD207", "vetoed-by-one-convolution", check, __doc__)
