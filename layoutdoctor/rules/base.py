"""What a rule is: code, name, a function from a diagnosis to findings, and its module's docstring as documentation."""

from __future__ import annotations

import inspect
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from layoutdoctor.diagnosis.records import Finding
from layoutdoctor.examination.costs import conversion_places, sum_known

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from layoutdoctor.diagnosis.records import Conversion, Diagnosis, Severity, SourceLocation

DOCUMENTATION_HEADINGS = ("What it finds", "Why it costs", "Example", "What to do", "When it is fine", "Source")
"""The headings of every rule's docstring, in this order."""


class Placed(Protocol):
    """Whatever of a record stands at a line or in a module of the model."""

    @property
    def location(self) -> SourceLocation | None:
        """The user's line."""

    @property
    def module(self) -> str | None:
        """Path of the nn.Module."""


@dataclass(frozen=True)
class Rule:
    """
    One check.

    Attributes:
        code: ``LD`` and three digits; never given to another rule, also not after this one is gone.
        name: The pattern it finds, in lower case with hyphens; reads well after "allow ...".
        summary: One line.
        check: A pure function of the record: yields findings, prints nothing, reads None as "not recorded".
        documentation: What ``layoutdoctor explain`` shows.
    """

    code: str
    name: str
    summary: str
    check: Callable[[Diagnosis], Iterator[Finding]]
    documentation: str

    def finding(
        self,
        configuration: str | None,
        message: str,
        suggestion: str | None,
        *,
        severity: Severity = "note",
        conversions: Sequence[Conversion] = (),
        at: Placed | None = None,
        seconds: float | None = None,
        bytes_moved: int | None = None,
        evidence: Iterable[str] | None = None,
    ) -> Finding:
        """
        A finding of this rule.

        Args:
            configuration: The trial it is about; None for the whole diagnosis.
            suggestion: What to do; None where nothing is to be done.
            conversions: Those it is about: they give place, time, bytes and evidence, where these are not given.
            at: Where it is; by default where the conversions cost most.
            seconds: What it costs per iteration.
            bytes_moved: What it reads and writes per iteration.
            evidence: Names and ids to look up in the record; what stands more than once is named once.
        """
        place = at if at is not None else next(iter(conversion_places(conversions)), None)
        return Finding(
            code=self.code,
            rule=self.name,
            severity=severity,
            configuration=configuration,
            message=message,
            suggestion=suggestion,
            location=place.location if place is not None else None,
            module=place.module if place is not None else None,
            seconds=sum_known(c.seconds for c in conversions) if seconds is None else seconds,
            bytes_moved=sum_known(c.bytes_moved for c in conversions) if bytes_moved is None else bytes_moved,
            evidence=tuple(dict.fromkeys((c.id for c in conversions) if evidence is None else evidence)),
        )


def document_rule(code: str, name: str, check: Callable[[Diagnosis], Iterator[Finding]], docstring: str | None) -> Rule:
    """A rule documented by its module's docstring; by its name where Python removed that (``-OO``)."""
    documentation = inspect.cleandoc(docstring or name)
    return Rule(code, name, documentation.splitlines()[0], check, documentation)
