"""
A batch norm in a contiguous model reads a tensor of another layout.

What it finds:
    A batch norm whose input is channels-last, or satisfies no memory format at all, though the model and its input are
    contiguous, and which comes from something other than a convolution: a matrix product, a transpose, a view.

Why it costs:
    The layout of its input decides which kernel a batch norm runs: its time changes without a change in the model, and
    what follows inherits the layout.

Example:
    A convolution written as ``unfold``, matrix product and ``transpose``: the result is a view with the channels
    fastest, and the batch norm behind it takes several times longer than, or a fraction of, what it takes behind
    ``nn.Conv2d``.

What to do:
    Time the batch norm both ways. ``.contiguous()`` in front of it gives it the usual layout, at the price of one copy
    of the tensor; where the other kernel is the faster one, leave it.

When it is fine:
    The other kernel is often the faster one. A convolution's own channels_last result in a channels_last model, and a
    layout that satisfies both formats, are no finding.

Source:
    discuss.pytorch.org, "Why does batch norm slow down when Conv2D is executed in unfolded fashion?", where the cause
    was the memory layout. ``_select_batch_norm_backend``, aten/src/ATen/native/Normalization.cpp, looks at the format
    that the input suggests.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from layoutdoctor.diagnosis.layout import CHANNELS_LAST_BY_RANK
from layoutdoctor.examination.costs import sum_known
from layoutdoctor.examination.graphs.conversions import tensor_bytes
from layoutdoctor.examination.graphs.layout_agnostic import base_name, is_layout_agnostic
from layoutdoctor.rules import evidence
from layoutdoctor.rules.base import document_rule
from layoutdoctor.rules.graph_evidence import first_input, nodes_by_name, upstream
from layoutdoctor.units import format_bytes
from layoutdoctor.words import joined, layout_words, op_words, shape_words

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from layoutdoctor.diagnosis.layout import Layout
    from layoutdoctor.diagnosis.records import Diagnosis, Finding, FxNode, Graph, Trial

_BATCH_NORMS = frozenset(
    """
    native_batch_norm batch_norm cudnn_batch_norm miopen_batch_norm _native_batch_norm_legit
    _native_batch_norm_legit_no_training _batch_norm_with_update
    """.split()
)
_TURNING = frozenset({"transpose", "permute", "t", "movedim", "swapaxes"})
_VIEWS = _TURNING | frozenset(
    "view _unsafe_view reshape unsqueeze squeeze expand select slice narrow split getitem unflatten flatten".split()
)


@dataclass(frozen=True)
class _Seen:
    """A batch norm, the layout it reads, and which operation made that."""

    norm: FxNode
    layout: Layout
    dtype: str | None
    maker: FxNode
    is_turned: bool


def check(diagnosis: Diagnosis) -> Iterator[Finding]:
    """One finding at most: for the first configuration, with the caller's formats, that has such a batch norm."""
    if not _is_contiguous(diagnosis):
        return
    trials = (t for t in evidence.own_trials(diagnosis) if not evidence.is_channels_last(t))
    for trial, found in evidence.first_showing(trials, _strided_norms):
        yield _finding(trial, found)


def _is_contiguous(diagnosis: Diagnosis) -> bool:
    """Whether every input, and every parameter, satisfies the contiguous format."""
    inputs = all("contiguous_format" in tensor.memory_formats for tensor in diagnosis.subject.inputs)
    counts = diagnosis.subject.parameter_formats
    return inputs and counts.get("contiguous_format", 0) >= max(counts.values(), default=0)


def _strided_norms(trial: Trial) -> list[_Seen]:
    return [seen for graph in trial.graphs for seen in _strided_norms_of(graph)]


def _strided_norms_of(graph: Graph) -> Iterator[_Seen]:
    nodes = nodes_by_name(graph)
    for norm in graph.nodes:
        read = first_input(norm, nodes)
        is_norm = norm.op == "call_function" and base_name(norm.target) in _BATCH_NORMS
        if not is_norm or norm.backward or read is None or read.layout is None or not _is_unusual(read.layout):
            continue
        maker, is_turned = _maker(read, nodes)
        if maker is not None and "conv" not in maker.target:
            yield _Seen(norm, read.layout, read.dtype, maker, is_turned)


def _is_unusual(layout: Layout) -> bool:
    """Whether a 4-D or 5-D layout is channels-last only, or in no memory format, as far as its strides are known."""
    if len(layout.shape) not in CHANNELS_LAST_BY_RANK or layout.stride is None:
        return False
    return "contiguous_format" not in layout.memory_formats and all(isinstance(size, int) for size in layout.stride)


def _maker(node: FxNode, nodes: Mapping[str, FxNode]) -> tuple[FxNode | None, bool]:
    """The operation that made a value, seen through views and operations that keep the layout, and whether turned."""
    is_turned = False
    for here in upstream(node, nodes):
        name = base_name(here.target)
        if here.op != "call_function":
            break
        if name not in _VIEWS and not is_layout_agnostic(here):
            return here, is_turned
        is_turned |= name in _TURNING
    return None, is_turned


def _finding(trial: Trial, found: list[_Seen]) -> Finding:
    first = found[0]
    seconds = _seconds_of(trial, first.norm)
    turned = ", transposed" if first.is_turned else ""
    maker = op_words(first.maker.target)
    message = (
        f"the batch norm {first.norm.module or first.norm.name} reads a {_layout_words(first.layout)} (made by "
        f"{maker}{turned}), though model and input are contiguous, so another kernel runs"
    )
    more = f"{len(found) - 1} more like it" if len(found) > 1 else None
    return RULE.finding(
        trial.name,
        joined((joined((message, evidence.cost_words(trial, seconds)), ": "), more)),
        f"time it in both formats; .contiguous() before it costs a copy{_copy_words(first)}, so measure",
        evidence=[seen.norm.name for seen in found],
        at=first.norm,
        seconds=seconds,
    )


def _layout_words(layout: Layout) -> str:
    shape, words = shape_words(layout.shape), layout_words(layout)
    return f"{words} tensor ({shape})" if layout.memory_formats else f"tensor of {shape} with {words}"


def _seconds_of(trial: Trial, node: FxNode) -> float | None:
    kernels = trial.kernels.kernels if trial.kernels is not None else ()
    return sum_known(kernel.seconds for kernel in kernels if kernel.node == node.name)


def _copy_words(seen: _Seen) -> str:
    moved = tensor_bytes(seen.layout, seen.dtype, seen.dtype)
    return f" of {format_bytes(moved)}, read and written" if moved is not None else ""


RULE = document_rule("LD302", "strided-batch-norm-input", check, __doc__)
