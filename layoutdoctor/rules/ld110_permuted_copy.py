"""LD110: copies of a recorded run that permute tensors."""

from __future__ import annotations

from collections.abc import Iterator

from layoutdoctor.diagnosis import Conversion, Diagnosis, Finding
from layoutdoctor.diagnosis.layout import stride_order
from layoutdoctor.examination.counts import launch_count, sum_of_known
from layoutdoctor.rules import evidence, wording
from layoutdoctor.rules.base import Rule
from layoutdoctor.words import count_of, joined

_LEAST_SHARE_PERMUTED = 0.01  # a smaller share is not worth a finding


def permuted_copies(diagnosis: Diagnosis) -> Iterator[Finding]:
    """Yields at most one finding, for a trace's copies that change the stride order but not the memory format."""
    for trial in evidence.trace_trials(diagnosis):
        copies = [c for graph in trial.graphs for c in graph.conversions if c.owner != "library" and _is_permuting(c)]
        seconds = sum_of_known(c.seconds for c in copies)
        count = count_of(launch_count(copies), "permuting copy", "permuting copies")
        facts = joined((f"{count} without a change of memory format", wording.on_dearest_shapes(copies)), ", ")
        if evidence.takes_at_least(trial, seconds, _LEAST_SHARE_PERMUTED):
            yield LD110.finding(
                trial.name,
                joined((facts, wording.cost_words(trial, seconds))),
                "no memory format avoids these copies; for attention, scaled_dot_product_attention takes the "
                "permuted views as they are",
                conversions=copies,
            )


def _is_permuting(conversion: Conversion) -> bool:
    layouts = [one for one in (conversion.source, conversion.target) if one is not None and one.stride is not None]
    orders = {stride_order(layout.shape, layout.stride or ()) for layout in layouts}
    return conversion.direction == "none" and len(orders) == len(layouts) == 2 and None not in orders


LD110 = Rule("LD110", "permuted-copy", permuted_copies)
