"""
Inductor kept the convolutions as they are because a size is symbolic.

What it finds:
    A compiled graph with convolutions whose decision is "not applied" because of dynamic shapes, and which dimension
    of which input is symbolic.

Why it costs:
    All convolutions keep the caller's format, however much channels-last would gain with the sizes that really come.

Example:
    ``torch.compile(model, dynamic=True)`` on a GPU; or a second call with another batch size, after which dynamo makes
    the batch dimension symbolic by itself.

What to do:
    Where the sizes do not change, compile with ``dynamic=False``, or mark the input:
    ``torch._dynamo.mark_static(x)``. Or give the model and its input channels_last.

When it is fine:
    The sizes do change from call to call: then each new one would cost a compile.

Source:
    ``GraphLowering.decide_layout_opt``, torch/_inductor/graph.py, torch 2.13; pytorch/pytorch issue #102670, where a
    network ran at 1.47x the speed of eager with static shapes and at 0.91x with dynamic ones.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from layoutdoctor.rules import graph_evidence as decisions
from layoutdoctor.rules.base import document_rule
from layoutdoctor.rules.times import Times
from layoutdoctor.words import count_of, joined, listing

if TYPE_CHECKING:
    from collections.abc import Iterator

    from layoutdoctor.diagnosis.layout import Size
    from layoutdoctor.diagnosis.records import Decision, Diagnosis, Finding, Graph


def check(diagnosis: Diagnosis) -> Iterator[Finding]:
    """One finding at most."""
    for trial, graph, decision in decisions.vetoed_graphs(diagnosis, ("dynamic-shape",)):
        measured = decisions.measured_words(Times(diagnosis))
        advice = "where the sizes do not change, compile with dynamic=False, or call torch._dynamo.mark_static(x)"
        message, suggestion = _message(diagnosis, graph, decision), joined((advice, measured))
        yield decisions.veto_finding(RULE, diagnosis, trial, decision, message, suggestion)


def _message(diagnosis: Diagnosis, graph: Graph, decision: Decision) -> str:
    count = count_of(decision.convolution_count, "convolution")
    symbolic = _symbolic_dimensions(diagnosis, graph)
    because = f"{listing(symbolic)} (pytorch #102670)" if symbolic else decision.explanation
    return f"layout optimization skipped for {count} because of dynamic shapes: {because}"


def _symbolic_dimensions(diagnosis: Diagnosis, graph: Graph) -> list[str]:
    """Such as ``"dimension 2 of x is s77"``, for every input of the graph with a symbolic size."""
    return [
        f"dimension {dimension} of {_input_name(diagnosis, node.name, node.layout.shape)} is {size}"
        for node in graph.nodes
        if node.op == "placeholder" and node.tensor != "weight" and node.layout is not None
        for dimension, size in enumerate(node.layout.shape)
        if isinstance(size, str)
    ]


def _input_name(diagnosis: Diagnosis, placeholder: str, shape: tuple[Size, ...]) -> str:
    """The caller's name of an input where only one of the example's inputs can be it, else the graph's name."""
    fitting = [tensor for tensor in diagnosis.subject.inputs if _fits(tensor.shape, shape)]
    return fitting[0].name if len(fitting) == 1 and fitting[0].name else placeholder


def _fits(sizes: tuple[Size, ...], symbolic: tuple[Size, ...]) -> bool:
    return len(sizes) == len(symbolic) and all(
        isinstance(there, str) or here == there for here, there in zip(sizes, symbolic, strict=True)
    )


RULE = document_rule("LD208", "vetoed-by-dynamic-shapes", check, __doc__)
