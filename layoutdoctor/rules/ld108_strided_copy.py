"""LD108: copies of a recorded run that change the memory format."""

from __future__ import annotations

from collections.abc import Iterator

from layoutdoctor.diagnosis import Diagnosis, Finding
from layoutdoctor.examination.counts import conversions_of, launch_count, sum_of_known
from layoutdoctor.rules import evidence, wording
from layoutdoctor.rules.base import Rule
from layoutdoctor.rules.evidence import is_call_out_of_channels_last
from layoutdoctor.words import DIRECTION_WORDS, count_of, joined, op_words, phrase


def strided_copies(diagnosis: Diagnosis) -> Iterator[Finding]:
    """Yields at most one finding, for all eager copies of a trace that change the memory format."""
    for trial in evidence.trace_trials(diagnosis):
        owners = ("framework", "user")
        copies = [c for c in conversions_of(trial) if c.owner in owners and not is_call_out_of_channels_last(c)]
        if not copies:
            return
        # We recommend that the model's own code converts to channels_last: such a copy is counted, but is no loss.
        unasked = sum_of_known(c.seconds for c in copies if c.owner != "user" or c.direction != "to_channels_last")
        asked = launch_count(c for c in copies if c.owner == "user")
        ways = wording.named_counts((DIRECTION_WORDS[c.direction], c.count) for c in copies)
        names = wording.named_counts((op_words(c.op or ""), c.count) for c in copies)
        facts = (
            f"{count_of(launch_count(copies), 'eager copy', 'eager copies')} between memory formats: {ways}",
            phrase("by {}", names),
            wording.on_dearest_shapes(copies),
            wording.step_words(copies),
            f"{asked} of them by the model's own code" if asked else None,
        )
        again = "; to see the lines, record again with torch.profiler.profile(with_stack=True)"
        if any(conversion.location is not None for conversion in copies):
            again = ", and record again"
        yield LD108.finding(
            trial.name,
            joined((joined(facts, ", "), wording.conversion_cost_words(trial, copies))),
            "keep one memory format from the input to the output: look for a permute, a transpose or an operation "
            f"that returns contiguous{again}",
            severity=evidence.severity_of_cost(trial, unasked),
            conversions=copies,
        )


LD108 = Rule("LD108", "strided-copy", strided_copies)
