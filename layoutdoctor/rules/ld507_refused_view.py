"""LD507: a configuration that failed because .view refuses the format."""

from __future__ import annotations

from collections.abc import Iterator

from layoutdoctor.diagnosis import Diagnosis, Finding
from layoutdoctor.examination.counts import Hotspot
from layoutdoctor.rules.base import Rule
from layoutdoctor.words import count_of, line_words, listing, phrase, shown


def refused_views(diagnosis: Diagnosis) -> Iterator[Finding]:
    """Yields at most one finding, for all configurations that failed for this reason."""
    failures = {
        t.name: t.failure for t in diagnosis.trials if t.failure is not None and t.failure.cause == "refused_view"
    }
    place = next((failure.location for failure in failures.values() if failure.location is not None), None)
    where = phrase(" at {}", place, line_words) + phrase(" ({})", place and place.code)
    names = list(failures)
    if failures:
        yield LD507.finding(
            names[0],
            f"`.view`{where} on memory that is not contiguous: {count_of(len(names), 'configuration')} failed "
            f"({listing(map(shown, names), 3)})",
            "write .reshape(...) there, or .flatten(1): these return a view if possible, and copy the tensor if not",
            severity="warning",
            evidence=names,
            at=Hotspot(None, place),
        )


LD507 = Rule("LD507", "view-refuses-format", refused_views)
