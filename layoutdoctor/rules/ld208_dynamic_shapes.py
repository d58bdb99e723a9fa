"""LD208: Inductor's veto against layout optimization because of symbolic sizes."""

from __future__ import annotations

from collections.abc import Iterator

from layoutdoctor.diagnosis import Diagnosis, Finding, FxNode, Size
from layoutdoctor.rules.base import Rule
from layoutdoctor.rules.vetoes import veto_finding, vetoed_graphs
from layoutdoctor.words import count_of, listing


def vetoes_by_symbolic_sizes(diagnosis: Diagnosis) -> Iterator[Finding]:
    """Yields at most one finding, for the first graph that Inductor vetoed for this reason."""
    for trial, graph, decision in vetoed_graphs(diagnosis, ("dynamic-shape",)):
        count = count_of(decision.convolution_count, "convolution")
        symbolic = [
            f"dimension {dimension} of {_input_name(diagnosis, node, node.layout.shape)} is {size}"
            for node in graph.nodes
            if node.op == "placeholder" and node.tensor != "weight" and node.layout is not None
            for dimension, size in enumerate(node.layout.shape)
            if isinstance(size, str)
        ]
        because = f"{listing(symbolic)} (pytorch #102670)" if symbolic else decision.explanation
        message = f"layout optimization skipped for {count} because of dynamic shapes: {because}"
        advice = "if the sizes do not change, compile with dynamic=False, or call torch._dynamo.mark_static(x)"
        yield veto_finding(LD208, diagnosis, trial, decision, message, advice)


def _input_name(diagnosis: Diagnosis, placeholder: FxNode, shape: tuple[Size, ...]) -> str:
    """Returns the caller's name of an input if only one example input has this shape; else the placeholder's name."""
    fitting = [
        tensor
        for tensor in diagnosis.subject.inputs
        if len(tensor.shape) == len(shape)
        and all(isinstance(there, str) or here == there for here, there in zip(tensor.shape, shape, strict=True))
    ]
    return fitting[0].name or "the input" if len(fitting) == 1 else placeholder.name


LD208 = Rule("LD208", "vetoed-by-dynamic-shapes", vetoes_by_symbolic_sizes)
