"""
Layouts do not matter to this model, and why.

What it finds:
    No configuration measurably faster than the baseline, and either no convolution, or layout conversions of all
    owners, other than fused ones, below 2 % of the baseline's kernel time.

Why it costs:
    It does not: this is the reason why the report says nothing else about layouts.

Example:
    A language model: matrix products only. Or a small network on a small image, where the conversions take 0.3 % of the
    kernel time.

What to do:
    Keep the configuration that is in use, and look for the time elsewhere.

When it is fine:
    Always. Another input size, batch size or device can change it: diagnose again there. Nothing is said where the
    kernels, or the time of a conversion, were not recorded.

Source:
    Measured here. 2 % is about the smallest difference that paired rounds on a shared machine resolve.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from layoutdoctor.examination.costs import (
    conversion_share,
    convolution_count,
    counted_conversions,
    irrelevance,
    sum_seconds,
)
from layoutdoctor.rules import evidence
from layoutdoctor.rules.base import document_rule
from layoutdoctor.words import count_of

if TYPE_CHECKING:
    from collections.abc import Iterator

    from layoutdoctor.diagnosis.records import Diagnosis, Finding


def check(diagnosis: Diagnosis) -> Iterator[Finding]:
    """One finding at most, for the whole diagnosis."""
    baseline, reason = evidence.main_trial(diagnosis), irrelevance(diagnosis)
    if baseline is None or diagnosis.comparison is None or reason is None or diagnosis.interrupted is not None:
        return
    count = convolution_count(diagnosis)
    known = f"{count_of(count, 'convolution')}; " if count else ""
    yield RULE.finding(
        None,
        f"layouts do not matter to this model: {known}{reason}; nothing measured is faster than "
        f"{diagnosis.comparison.baseline}",
        f"keep {diagnosis.comparison.baseline}, and look for the time elsewhere",
        seconds=None if conversion_share(baseline) is None else sum_seconds(counted_conversions(baseline)),
    )


RULE = document_rule("LD403", "layout-irrelevant", check, __doc__)
