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

from layoutdoctor.layout import stride_order
from layoutdoctor.records import Finding
from layoutdoctor.rules import evidence, recorded, wording
from layoutdoctor.rules.base import document_rule

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from layoutdoctor.layout import Layout
    from layoutdoctor.records import Conversion, Diagnosis, Trial

CODE = "LD110"
NAME = "permuted-copy"

# Below this they explain nothing that anybody sees in the run.
_LEAST_SHARE = 0.01


def check(diagnosis: Diagnosis) -> Iterator[Finding]:
    """
    One finding at most, for all such copies of a trace.

    Args:
        diagnosis: Any diagnosis.
    """
    trial = recorded.recorded_trial(diagnosis)
    copies = _copies(trial) if trial is not None else []
    seconds = evidence.sum_known(c.seconds for c in copies)
    share = evidence.share_of_kernels(trial, seconds) if trial is not None else None
    if trial is None or share is None or share < _LEAST_SHARE:
        return
    found = recorded.conversion_places(copies)
    yield Finding(
        code=CODE,
        rule=NAME,
        severity="note",
        configuration=trial.name,
        message=_message(trial, copies, found),
        suggestion="nothing about memory formats: no format saves them; where they feed attention, "
        "scaled_dot_product_attention takes the permuted views as they are",
        location=found[0].location if found else None,
        module=found[0].module if found else None,
        seconds=seconds,
        bytes_moved=evidence.sum_bytes(c.bytes_moved for c in copies),
        evidence=tuple(c.id for c in copies),
    )


def _copies(trial: Trial) -> list[Conversion]:
    return [
        conversion
        for graph in trial.graphs
        for conversion in graph.conversions
        if conversion.direction == "none" and conversion.owner != "library" and _is_permuting(conversion)
    ]


def _is_permuting(conversion: Conversion) -> bool:
    before, after = _order(conversion.source), _order(conversion.target)
    return before is not None and after is not None and before != after


def _order(layout: Layout | None) -> tuple[int, ...] | None:
    return None if layout is None or layout.stride is None else stride_order(layout.shape, layout.stride)


def _message(trial: Trial, copies: Sequence[Conversion], found: Sequence[recorded.Place]) -> str:
    count = recorded.launch_count(copies)
    dearest = sorted(copies, key=lambda c: -(c.seconds or 0.0))
    permutes = "copy permutes a tensor and changes" if count == 1 else "copies permute a tensor and change"
    facts = [f"{count} {permutes} no memory format", recorded.on_shapes(c.source for c in dearest)]
    parts = [
        ", ".join(fact for fact in facts if fact is not None),
        wording.cost_words(trial, evidence.sum_known(c.seconds for c in copies)),
        recorded.places_words(found),
    ]
    return "; ".join(part for part in parts if part is not None)


RULE = document_rule(CODE, NAME, check, __doc__)
