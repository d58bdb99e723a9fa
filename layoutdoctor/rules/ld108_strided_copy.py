"""
Eager copies change the memory format of tensors between the layers.

What it finds:
    In a recorded trace: copies by PyTorch's own kernels (``copy_``, ``contiguous``, ``clone``, ``to``) whose source and
    destination lie in different memory formats, as the recorded strides prove: which operations, at which lines, how
    often. What a line of the model asks for that leaves channels_last is LD501; what a library converts is LD101 to
    LD103 and LD111. In the diagnosis of a model these copies are told at the operation that causes them (LD104, LD501,
    LD502).

Why it costs:
    Such a copy reads and writes the whole tensor, one of the two with large steps between neighbouring elements, and
    computes nothing.

Example:
    A layer norm written as permute, layer_norm, permute in a contiguous model: its result is channels_last, and the
    next layer copies it back into contiguous order, in every block.

What to do:
    Look at the line: a ``permute`` or ``transpose`` in front of it, an input in another format than the model, a
    tensor that an operation returned contiguous. Keep one memory format from the input to the output, and record again.

When it is fine:
    One copy of the input at the entry of a channels_last model, asked for by the model's own code. Below 2 % of the
    kernel time it is a note.

Source:
    PyTorch tutorial "Channels Last Memory Format in PyTorch": which operations keep the format of their input.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from layoutdoctor.records import Finding
from layoutdoctor.rules import evidence, recorded
from layoutdoctor.rules.base import document_rule
from layoutdoctor.words import op_words

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from layoutdoctor.records import Conversion, ConversionDirection, Diagnosis, Trial

CODE = "LD108"
NAME = "strided-copy"

_OWNERS = ("framework", "user")
_DIRECTIONS: dict[ConversionDirection, str] = {"to_channels_last": "to channels_last", "to_contiguous": "to contiguous"}


def check(diagnosis: Diagnosis) -> Iterator[Finding]:
    """
    One finding at most, for all such copies of a trace.

    Args:
        diagnosis: Any diagnosis.
    """
    trial = recorded.recorded_trial(diagnosis)
    copies = _copies(trial) if trial is not None else []
    if trial is None or not copies:
        return
    # What the model's own code converts to channels_last is what we recommend: it is counted, and no loss.
    unasked = evidence.sum_known(c.seconds for c in copies if c.owner != "user" or c.direction != "to_channels_last")
    found = recorded.conversion_places(copies)
    yield Finding(
        code=CODE,
        rule=NAME,
        severity=evidence.severity_of_cost(trial, unasked),
        configuration=trial.name,
        message=_message(trial, copies, found),
        suggestion=_suggestion(copies),
        location=found[0].location if found else None,
        module=found[0].module if found else None,
        seconds=evidence.sum_known(c.seconds for c in copies),
        bytes_moved=evidence.sum_bytes(c.bytes_moved for c in copies),
        evidence=tuple(c.id for c in copies),
    )


def _copies(trial: Trial) -> list[Conversion]:
    return [
        conversion
        for conversion in evidence.conversions_of(trial)
        if conversion.owner in _OWNERS and not recorded.is_call_out_of_channels_last(conversion)
    ]


def _message(trial: Trial, copies: Sequence[Conversion], found: Sequence[recorded.Place]) -> str:
    count = recorded.launch_count(copies)
    ways = recorded.named_counts((_DIRECTIONS.get(c.direction, "to another layout"), c.count) for c in copies)
    names = recorded.named_counts((op_words(c.op), c.count) for c in copies if c.op is not None)
    asked = recorded.launch_count(c for c in copies if c.owner == "user")
    dearest = sorted(copies, key=lambda c: -(c.seconds or 0.0))
    facts = [
        f"{count} eager {'copy changes' if count == 1 else 'copies change'} the memory format {ways}",
        f"by {names}" if names is not None else None,
        recorded.on_shapes(c.source for c in dearest),
        recorded.step_words(copies),
        f"{asked} asked for by the model's own code" if asked else None,
    ]
    parts = [
        ", ".join(fact for fact in facts if fact is not None),
        recorded.conversion_cost_words(trial, copies),
        recorded.places_words(found),
    ]
    return "; ".join(part for part in parts if part is not None)


def _suggestion(copies: Sequence[Conversion]) -> str:
    advice = (
        "look there for a permute or transpose, an input in another format than the model, or an operation that "
        "returns contiguous; keep one memory format from the input to the output"
    )
    if any(conversion.location is not None for conversion in copies):
        return f"{advice}, and record again"
    return f"{advice}; no line was recorded: record again with torch.profiler.profile(with_stack=True)"


RULE = document_rule(CODE, NAME, check, __doc__)
