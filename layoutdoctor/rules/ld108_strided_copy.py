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

from layoutdoctor.examination.costs import conversions_of, launch_count, sum_known
from layoutdoctor.rules import evidence
from layoutdoctor.rules.base import document_rule
from layoutdoctor.rules.graph_evidence import is_call_out_of_channels_last
from layoutdoctor.words import DIRECTION_WORDS, joined, op_words

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from layoutdoctor.diagnosis.records import Conversion, Diagnosis, Finding, Trial

_OWNERS = ("framework", "user")


def check(diagnosis: Diagnosis) -> Iterator[Finding]:
    """One finding at most, for all such copies of a trace."""
    for trial in evidence.trace_trials(diagnosis):
        copies = [c for c in conversions_of(trial) if c.owner in _OWNERS and not is_call_out_of_channels_last(c)]
        # What the model's own code converts to channels_last is what we recommend: it is counted, and no loss.
        unasked = sum_known(c.seconds for c in copies if c.owner != "user" or c.direction != "to_channels_last")
        if copies:
            yield RULE.finding(
                trial.name,
                _message(trial, copies),
                _suggestion(copies),
                severity=evidence.severity_of_cost(trial, unasked),
                conversions=copies,
            )


def _message(trial: Trial, copies: Sequence[Conversion]) -> str:
    count, asked = launch_count(copies), launch_count(c for c in copies if c.owner == "user")
    ways = evidence.named_counts((DIRECTION_WORDS[c.direction], c.count) for c in copies)
    names = evidence.named_counts((op_words(c.op) if c.op is not None else None, c.count) for c in copies)
    facts = (
        f"{count} eager {'copy changes' if count == 1 else 'copies change'} the memory format {ways}",
        f"by {names}" if names is not None else None,
        evidence.on_dearest_shapes(copies),
        evidence.step_words(copies),
        f"{asked} asked for by the model's own code" if asked else None,
    )
    costs = (evidence.conversion_cost_words(trial, copies), evidence.places_words(copies))
    return joined((joined(facts, ", "), *costs))


def _suggestion(copies: Sequence[Conversion]) -> str:
    advice = (
        "look there for a permute or transpose, an input in another format than the model, or an operation that "
        "returns contiguous; keep one memory format from the input to the output"
    )
    if any(conversion.location is not None for conversion in copies):
        return f"{advice}, and record again"
    return f"{advice}; no line was recorded: record again with torch.profiler.profile(with_stack=True)"


RULE = document_rule("LD108", "strided-copy", check, __doc__)
