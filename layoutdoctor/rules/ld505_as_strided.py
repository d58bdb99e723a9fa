"""LD505: calls of as_strided, which reads the raw storage of an activation."""

from __future__ import annotations

from collections.abc import Iterator

from layoutdoctor.diagnosis import Diagnosis, Finding, FxNode, Trial
from layoutdoctor.examination.graphs.layout_agnostic import ALIASES, base_name
from layoutdoctor.rules import evidence, wording
from layoutdoctor.rules.advice import Times
from layoutdoctor.rules.base import Rule
from layoutdoctor.rules.evidence import first_input, nodes_by_name
from layoutdoctor.words import distinct, line_words, listing, phrase, shown

_CALL = "as_strided"
_VIEWS = ALIASES | set(
    "_reshape_alias _unsafe_view expand permute select slice squeeze t transpose unsqueeze view".split()
)
"""Operations that return a view: a view of a parameter counts as the parameter."""

_Read = tuple["FxNode", "FxNode | None"]  # the call, and the value it reads


def raw_reads(diagnosis: Diagnosis) -> Iterator[Finding]:
    """Yields at most one finding: from eager, which runs the code as written, else from the first trial with a call."""
    trials = sorted(evidence.own_trials(diagnosis), key=lambda trial: trial.name != "eager")
    for trial, found in evidence.first_showing(trials, _raw_reads):
        lines = listing(distinct(line_words(n.location) for n, _ in found if n.location is not None), 3)
        calls = "as_strided" if len(found) == 1 else f"{len(found)} calls of as_strided"
        value, source = "activations", found[0][1]
        if len(found) == 1 and source is not None:
            value = f"{source.name}{phrase(' ({})', wording.shape_of(source.layout))}"
        different = [
            shown(other.name)
            for other in evidence.own_trials(diagnosis)
            if other.configuration.input_format == "channels_last" and not Times(diagnosis).computes_right(other.name)
        ]
        yield LD505.finding(
            trial.name,
            f"raw storage of {value} read by {calls}{phrase(' at {}', lines)}: comparing memory formats is unsafe"
            f"{phrase('; outputs differ in {}', different, listing)}",
            "write it with unfold, narrow, slicing or indexing, which follow the strides; until then keep the "
            "memory format that the model was written for",
            severity="warning",
            evidence=[node.name for node, _ in found],
            at=found[0][0],
        )


def _raw_reads(trial: Trial) -> list[_Read]:
    """Returns the calls of as_strided by the model's own code, except on parameters and their views."""
    found: list[_Read] = []
    for graph in evidence.forward_graphs(trial):
        nodes = nodes_by_name(graph)
        for node in graph.nodes:
            is_call = node.op == "call_function" and not node.backward and _CALL in base_name(node.target)
            if is_call and _is_users(node, is_eager=trial.configuration.backend == "eager"):
                made = source = first_input(node, nodes)
                while made is not None and made.op == "call_function" and base_name(made.target) in _VIEWS:
                    made = first_input(made, nodes)
                if made is None or made.tensor != "weight":
                    found.append((node, source))
    return found


def _is_users(node: FxNode, *, is_eager: bool) -> bool:
    """
    Whether the model's own code made a call of as_strided.

    Torch makes such calls as well: ``adaptive_avg_pool2d`` on a channels_last value, AOTAutograd for views of inputs.
    """
    if node.is_called_directly is False:
        return False
    if node.called is not None:
        return _CALL in node.called
    if node.location is not None and node.location.code is not None:
        return _CALL in node.location.code
    return node.is_called_directly is True or is_eager


LD505 = Rule("LD505", "as-strided-on-activation", raw_reads)
