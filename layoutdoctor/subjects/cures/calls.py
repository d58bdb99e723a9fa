"""
Calls that the model's own code makes, answered in another way: ``.contiguous()`` left out, ``.view`` as ``.reshape``.

It has the same effect as an edit of the lines that call, by a mode of torch around the model's forward, which
torch.compile traces through. In eager the mode itself takes time, so that an edit saves a little more than was
measured.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from layoutdoctor.diagnosis.trial import is_refused_view
from layoutdoctor.examination.graphs.buffers import is_only_channels_last
from layoutdoctor.examination.graphs.layout_agnostic import base_name
from layoutdoctor.subjects.cures.cure import READ_AND_WRITTEN, KnownCure, element_count

if TYPE_CHECKING:
    from collections.abc import Iterator

    from layoutdoctor.diagnosis.graph import FxNode
    from layoutdoctor.subjects.cures.cure import Seen
    from layoutdoctor.workers.messages import Proposal

HOW = """\
class {mode}(torch.overrides.TorchFunctionMode):
    def __torch_function__(self, function, types, args=(), kwargs=None):
        if function is {function} and {condition}:
            return {answer}
        return function(*args, **(kwargs or {}))
forward = model.forward
def call(*args, **kwargs):
    with {mode}():
        return forward(*args, **kwargs)
model.forward = call  # or {edit}"""

_COPIES = frozenset({"clone", "contiguous", "_to_copy"})


def _calls_of_contiguous(seen: Seen) -> Iterator[tuple[FxNode, int]]:
    """Of every call that takes a tensor out of channels-last: its node, and the tensor's elements."""
    for graph in seen.graphs:
        nodes = {node.name: node for node in graph.nodes}
        for node in graph.nodes:
            source = nodes.get(node.inputs[0]) if node.inputs else None
            if source is None or base_name(node.target) not in _COPIES or not _is_a_call(node):
                continue
            if is_only_channels_last(source.layout) and not is_only_channels_last(node.layout):
                yield node, element_count(node.layout)


def _is_a_call(node: FxNode) -> bool:
    if node.backward or not node.is_called_directly:
        return False
    code = node.location.code if node.location is not None else None
    return node.called == "contiguous" or (node.called is None and ".contiguous()" in (code or ""))


def _propose_without_contiguous(seen: Seen) -> Proposal | None:
    found = list(_calls_of_contiguous(seen))
    if not found:
        return None
    lines = dict.fromkeys(
        f"{node.location.file.rpartition('/')[2]}:{node.location.line}" for node, _ in found if node.location
    )
    return WITHOUT_CONTIGUOUS.proposal(
        bytes_moved=READ_AND_WRITTEN * sum(count for _, count in found),
        edit=f"take .contiguous() out at {', '.join(lines)}" if lines else "take .contiguous() out",
    )


def _propose_view_as_reshape(seen: Seen) -> Proposal | None:
    """Of a trial that failed because of a view."""
    return VIEW_AS_RESHAPE.proposal(edit="write .reshape where .view fails") if is_refused_view(seen.failure) else None


def _answering(mode: str, function: str, condition: str, answer: str) -> str:
    words = {"mode": mode, "function": function, "condition": condition, "answer": answer}
    lines = HOW
    for word, value in words.items():
        lines = lines.replace(f"{{{word}}}", value)
    return lines


WITHOUT_CONTIGUOUS = KnownCure(
    "without-contiguous",
    _propose_without_contiguous,
    _answering("WithoutContiguous", "torch.Tensor.contiguous", "len(args) == 1 and not kwargs", "args[0]"),
    "LD501",
)
VIEW_AS_RESHAPE = KnownCure(
    "view-as-reshape",
    _propose_view_as_reshape,
    _answering(
        "ViewAsReshape",
        "torch.Tensor.view",
        "not kwargs and not isinstance(args[1], torch.dtype)",
        "args[0].reshape(*args[1:])",
    ),
    "LD507",
    mends_a_failure=True,
)
