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
    of the tensor; where the other kernel is the faster one, leave it. A diagnosis of the default configurations tries
    it and tells what it brings: ``NAME+dense-batch-norm-input``.

When it is fine:
    The other kernel is often the faster one. A convolution's own channels_last result in a channels_last model, and a
    layout that satisfies both formats, are no finding.

Source:
    discuss.pytorch.org, "Why does batch norm slow down when Conv2D is executed in unfolded fashion?", where the cause
    was the memory layout. ``_select_batch_norm_backend``, aten/src/ATen/native/Normalization.cpp, looks at the format
    that the input suggests.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from layoutdoctor.examination.costs import sum_known
from layoutdoctor.examination.graphs.conversions import tensor_bytes
from layoutdoctor.examination.graphs.strided_norms import strided_norms
from layoutdoctor.rules import evidence
from layoutdoctor.rules.base import document_rule
from layoutdoctor.units import format_bytes
from layoutdoctor.words import joined, layout_words, op_words, shape_words

if TYPE_CHECKING:
    from collections.abc import Iterator

    from layoutdoctor.diagnosis.layout import Layout
    from layoutdoctor.diagnosis.records import Diagnosis, Finding, FxNode, Trial
    from layoutdoctor.examination.graphs.strided_norms import StridedNorm


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


def _strided_norms(trial: Trial) -> list[StridedNorm]:
    return [strided for graph in trial.graphs for strided in strided_norms(graph)]


def _finding(trial: Trial, found: list[StridedNorm]) -> Finding:
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


def _copy_words(seen: StridedNorm) -> str:
    moved = tensor_bytes(seen.layout, seen.dtype, seen.dtype)
    return f" of {format_bytes(moved)}, read and written" if moved is not None else ""


RULE = document_rule("LD302", "strided-batch-norm-input", check, __doc__)
