"""
The model calls ``as_strided`` on an activation, so its values depend on the memory format.

What it finds:
    ``torch.as_strided``, its in-place, copying and scattering forms, called by the model's own code in the forward, on
    a value that is no parameter. What autograd or a library calls on its own is not told.

Why it costs:
    No time, but correctness: as_strided reads raw storage, element by element, whatever shape the tensor had. In
    another memory format the same call reads other elements, so "the same model in channels_last" is another function,
    and comparing the two for speed compares different computations.

Example:
    ``torch.as_strided(torch.roll(x, -1, 0), (6, 8), (4, 1), 0)``: eager itself gives other values for a channels_last
    ``x`` than for a contiguous one.

What to do:
    Write it with ``unfold``, ``narrow``, slicing or indexing, which follow the strides they are given. Else keep the
    memory format that the model was written for.

When it is fine:
    The tensor in front of it always has the same layout, made by ``.contiguous()`` for one.

Source:
    pytorch/pytorch issue #174963: as_strided on a channels_last tensor, 49 of 50 elements wrong under torch.compile
    (not reproduced with torch 2.13).
"""

from __future__ import annotations

from itertools import islice
from typing import TYPE_CHECKING

from layoutdoctor.examination.graphs.layout_agnostic import ALIASES, base_name
from layoutdoctor.rules import evidence
from layoutdoctor.rules.base import document_rule
from layoutdoctor.rules.graph_evidence import first_input, nodes_by_name, upstream
from layoutdoctor.rules.times import Times
from layoutdoctor.words import distinct, line_words, listing, shape_words

if TYPE_CHECKING:
    from collections.abc import Iterator

    from layoutdoctor.diagnosis.records import Diagnosis, Finding, FxNode, Trial

_CALL = "as_strided"
_EAGER = "eager"
_LINES_NAMED = 3
_VIEWS = ALIASES | {
    "_reshape_alias",
    "_unsafe_view",
    "expand",
    "permute",
    "select",
    "slice",
    "squeeze",
    "t",
    "transpose",
    "unsqueeze",
    "view",
}
"""Views of a parameter are the parameter."""

_Found = tuple["FxNode", "FxNode | None"]  # the call, and what it reads


def check(diagnosis: Diagnosis) -> Iterator[Finding]:
    """One finding at most: from eager, which runs what the code says, else from the first graph that shows it."""
    trials = sorted(evidence.own_trials(diagnosis), key=lambda trial: trial.name != _EAGER)
    for trial, found in evidence.first_showing(trials, _calls):
        yield _finding(diagnosis, trial, found)


def _calls(trial: Trial) -> list[_Found]:
    found: list[_Found] = []
    is_eager = trial.configuration.backend == "eager"
    for graph in trial.graphs:
        nodes = nodes_by_name(graph)
        for node in graph.nodes if graph.direction != "backward" else ():
            if node.op == "call_function" and not node.backward and _CALL in base_name(node.target):
                source = first_input(node, nodes)
                if _is_users(node, is_eager=is_eager) and not _is_weight(source, nodes):
                    found.append((node, source))
    return found


def _is_users(node: FxNode, *, is_eager: bool) -> bool:
    """
    Whether the model's own code called it.

    Torch calls it as well: ``adaptive_avg_pool2d`` on a channels_last value, and AOTAutograd for views of inputs.
    """
    if node.is_called_directly is False:
        return False
    if node.called is not None:
        return _CALL in node.called
    if node.location is not None and node.location.code is not None:
        return _CALL in node.location.code
    return node.is_called_directly is True or (is_eager and node.is_called_directly is None)


def _is_weight(node: FxNode | None, nodes: dict[str, FxNode]) -> bool:
    made = (n for n in upstream(node, nodes) if n.op != "call_function" or base_name(n.target) not in _VIEWS)
    return any(n.tensor == "weight" for n in islice(made, 1))


def _finding(diagnosis: Diagnosis, trial: Trial, found: list[_Found]) -> Finding:
    first = found[0][0]
    return RULE.finding(
        trial.name,
        _message(diagnosis, found),
        "write it with unfold, narrow, slicing or indexing, which follow the strides; until then keep the "
        "memory format that the model was written for",
        severity="warning",
        evidence=[node.name for node, _ in found],
        at=first,
    )


def _message(diagnosis: Diagnosis, found: list[_Found]) -> str:
    lines = distinct(line_words(n.location) for n, _ in found if n.location is not None)
    at = f" at {listing(lines, _LINES_NAMED)}" if lines else ""
    calls = f"as_strided{at} reads" if len(found) == 1 else f"{len(found)} calls of as_strided{at} read"
    message = (
        f"comparing memory formats is unsafe for this model: {calls} the raw storage of {_value_words(found)}; "
        "results are compared only with eager on the same input format"
    )
    different = [
        evidence.shown(other.name)
        for other in evidence.own_trials(diagnosis)
        if other.configuration.input_format == "channels_last" and not Times(diagnosis).computes_right(other.name)
    ]
    return f"{message}; the outputs of {listing(different)} differ" if different else message


def _value_words(found: list[_Found]) -> str:
    sources = [source for _, source in found if source is not None]
    if len(sources) != 1 or len(found) != 1:
        return "activations"
    shape = f" ({shape_words(sources[0].layout.shape)})" if sources[0].layout is not None else ""
    return f"{sources[0].name}{shape}"


RULE = document_rule("LD505", "as-strided-on-activation", check, __doc__)
