"""
Copies permute tensors, as attention does: they cost time and are no matter of memory formats.

What it finds:
    In a recorded trace: copies whose source and destination differ in stride order and of which neither is in a
    channels-last format, where they take 1 % of the kernel time or more together.

Why it costs:
    Each reads and writes the whole tensor. They are told apart from layout conversions so that nobody counts them as
    such: giving the model another memory format leaves every one of them where it is.

Example:
    Attention over ``[N, heads, length, channels]``: ``x.view(...).permute(0, 2, 1, 3).contiguous()`` for query, key and
    value, and once more behind the attention, in every block.

What to do:
    Nothing about layouts. ``torch.nn.functional.scaled_dot_product_attention`` takes permuted views as they are. A
    ``reshape`` of permuted dimensions copies; one that only splits or joins neighbours is a view.

When it is fine:
    Always: it is a note.

Source:
    A TimeSformer (video transformer) recorded on an H100, among the test files of AMD-AGI/TraceLens: 110 such copies
    take 4.7 % of the kernel time, beside 3 conversions by cuDNN.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from layoutdoctor.diagnosis.layout import stride_order
from layoutdoctor.examination.costs import launch_count, sum_known
from layoutdoctor.rules import evidence
from layoutdoctor.rules.base import document_rule
from layoutdoctor.words import joined

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from layoutdoctor.diagnosis.layout import Layout
    from layoutdoctor.diagnosis.records import Conversion, Diagnosis, Finding, Trial

# Below this they explain nothing that anybody sees in the run.
_LEAST_SHARE = 0.01


def check(diagnosis: Diagnosis) -> Iterator[Finding]:
    """One finding at most, for all such copies of a trace."""
    for trial in evidence.trace_trials(diagnosis):
        copies = [c for graph in trial.graphs for c in graph.conversions if c.owner != "library" and _is_permuting(c)]
        share = evidence.share_of_kernels(trial, sum_known(c.seconds for c in copies))
        if share is not None and share >= _LEAST_SHARE:
            yield RULE.finding(
                trial.name,
                _message(trial, copies),
                "nothing about memory formats: no format saves them; where they feed attention, "
                "scaled_dot_product_attention takes the permuted views as they are",
                conversions=copies,
            )


def _is_permuting(conversion: Conversion) -> bool:
    before, after = _order(conversion.source), _order(conversion.target)
    return conversion.direction == "none" and before is not None and after is not None and before != after


def _order(layout: Layout | None) -> tuple[int, ...] | None:
    return None if layout is None or layout.stride is None else stride_order(layout.shape, layout.stride)


def _message(trial: Trial, copies: Sequence[Conversion]) -> str:
    count = launch_count(copies)
    permutes = "copy permutes a tensor and changes" if count == 1 else "copies permute a tensor and change"
    what = joined((f"{count} {permutes} no memory format", evidence.on_dearest_shapes(copies)), ", ")
    cost = evidence.cost_words(trial, sum_known(c.seconds for c in copies))
    return joined((what, cost, evidence.places_words(copies)))


RULE = document_rule("LD110", "permuted-copy", check, __doc__)
