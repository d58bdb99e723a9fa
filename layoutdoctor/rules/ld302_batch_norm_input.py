"""LD302: a batch norm whose input has another layout than the model."""

from __future__ import annotations

from collections.abc import Iterator

from layoutdoctor.diagnosis import Diagnosis, Finding
from layoutdoctor.examination.counts import sum_of_known
from layoutdoctor.examination.graphs.conversions import tensor_bytes
from layoutdoctor.examination.graphs.layout_agnostic import strided_norms
from layoutdoctor.rules import evidence, wording
from layoutdoctor.rules.base import Rule
from layoutdoctor.units import format_bytes
from layoutdoctor.words import joined, layout_words, op_words, phrase, shape_words


def batch_norms(diagnosis: Diagnosis) -> Iterator[Finding]:
    """Finds, in a contiguous model, the first configuration with a batch norm whose input is not contiguous."""
    counts = diagnosis.subject.parameter_formats
    inputs_are = all("contiguous_format" in tensor.memory_formats for tensor in diagnosis.subject.inputs)
    if not inputs_are or counts.get("contiguous_format", 0) < max(counts.values(), default=0):
        return
    trials = (t for t in evidence.own_trials(diagnosis) if not evidence.is_channels_last(t))
    for trial, found in evidence.first_showing(
        trials, lambda t: [n for graph in t.graphs for n in strided_norms(graph)]
    ):
        first = found[0]
        norm, layout = first.norm, first.layout
        seconds = sum_of_known(kernel.seconds for kernel in trial.kernel_summary.kernels if kernel.node == norm.name)
        made = joined((op_words(first.maker.target), "transposed" if first.is_turned else None), ", ")
        message = (
            f"batch norm {norm.module or norm.name} reads {layout_words(layout)} ({shape_words(layout.shape)}, from "
            f"{made}) in a contiguous model, so another kernel runs"
        )
        more = f"{len(found) - 1} more like it" if len(found) > 1 else None
        copy = phrase(" of {}, read and written", tensor_bytes(layout, first.dtype, first.dtype), format_bytes)
        yield LD302.finding(
            trial.name,
            joined((message, wording.cost_words(trial, seconds), more)),
            f"time both formats: a .contiguous() in front selects another kernel, but costs a copy{copy}",
            evidence=[seen.norm.name for seen in found],
            at=norm,
            seconds=seconds,
        )


LD302 = Rule("LD302", "strided-batch-norm-input", batch_norms)
