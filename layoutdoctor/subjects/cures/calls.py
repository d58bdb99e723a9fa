"""
Calls that the model's own code makes, answered in another way: ``.contiguous()`` left out, ``.view`` as ``.reshape``.

The same as to edit the lines that call; done here by a mode of torch around the model's forward, which torch.compile
traces through. In eager the mode itself takes time, so that an edit brings a little more than was measured.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch.overrides import TorchFunctionMode

from layoutdoctor.diagnosis.records import is_refused_view
from layoutdoctor.examination.graphs.buffers import is_only_channels_last
from layoutdoctor.examination.graphs.layout_agnostic import base_name
from layoutdoctor.subjects.cures.cure import READ_AND_WRITTEN, KnownCure, element_count

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from torch import nn

    from layoutdoctor.diagnosis.records import FxNode
    from layoutdoctor.subjects.cures.cure import Seen
    from layoutdoctor.workers.messages import Proposal

    Answer = Callable[[Any, tuple[Any, ...], Mapping[str, Any]], Any]

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


class WithoutContiguous(TorchFunctionMode):
    """``.contiguous()`` gives the tensor as it is."""

    def __torch_function__(
        self, function: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        """Every call of torch within."""
        if function is torch.Tensor.contiguous and len(args) == 1 and not kwargs:
            return args[0]
        return function(*args, **(kwargs or {}))


class ViewAsReshape(TorchFunctionMode):
    """``.view`` copies where it has to."""

    def __torch_function__(
        self, function: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        """Every call of torch within."""
        if function is torch.Tensor.view and not kwargs and not isinstance(args[1], torch.dtype):
            return args[0].reshape(*args[1:])
        return function(*args, **(kwargs or {}))


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
        mode="WithoutContiguous",
        function="torch.Tensor.contiguous",
        condition="len(args) == 1 and not kwargs",
        answer="args[0]",
        edit=f"take .contiguous() out at {', '.join(lines)}" if lines else "take .contiguous() out",
    )


def _propose_view_as_reshape(seen: Seen) -> Proposal | None:
    """Of a trial that failed for it."""
    if not is_refused_view(seen.failure):
        return None
    return VIEW_AS_RESHAPE.proposal(
        mode="ViewAsReshape",
        function="torch.Tensor.view",
        condition="not kwargs and not isinstance(args[1], torch.dtype)",
        answer="args[0].reshape(*args[1:])",
        edit="write .reshape where .view fails",
    )


def _run_within(module: nn.Module, mode: Callable[[], TorchFunctionMode]) -> None:
    forward = module.forward

    def call(*args: Any, **kwargs: Any) -> Any:
        with mode():
            return forward(*args, **kwargs)

    module.forward = call


WITHOUT_CONTIGUOUS = KnownCure(
    "without-contiguous",
    _propose_without_contiguous,
    lambda module, _: _run_within(module, WithoutContiguous),
    HOW,
    "LD501",
)
VIEW_AS_RESHAPE = KnownCure(
    "view-as-reshape",
    _propose_view_as_reshape,
    lambda module, _: _run_within(module, ViewAsReshape),
    HOW,
    "LD507",
    mends_a_failure=True,
)
