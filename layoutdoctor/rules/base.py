"""A rule: its code, its name, the function that makes findings of a diagnosis, and the page about the rule."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from importlib import resources
from typing import TYPE_CHECKING

from layoutdoctor.diagnosis import (
    Conversion,
    Convolution,
    Diagnosis,
    Finding,
    FxNode,
    LayoutBreaker,
    Severity,
)
from layoutdoctor.examination.counts import Hotspot, places_of, sum_of_known

if TYPE_CHECKING:
    from importlib.abc import Traversable

Placed = Hotspot | Conversion | Convolution | FxNode | LayoutBreaker


@dataclass(frozen=True)
class Rule:
    """
    One check.

    Attributes:
        code: ``LD`` and three digits; never used for another rule, even if this rule is removed.
        name: Short name of the problem that the rule finds, in lower case with hyphens: ``round-trip-conversion``.
        check: A pure function of the diagnosis that yields findings; None in a record means "not recorded".
    """

    code: str
    name: str
    check: Callable[[Diagnosis], Iterator[Finding]]

    @property
    def page(self) -> Traversable:
        """Path of the rule's page in Markdown, named after the module of ``check``; a user's own rule has no page."""
        return resources.files("layoutdoctor.rules") / f"{self.check.__module__.rpartition('.')[2]}.md"

    @property
    def documentation(self) -> str:
        """The rule's page in Markdown, without its title; else the docstring of ``check``, or the rule's name."""
        if self.page.is_file():
            return self.page.read_text(encoding="utf-8").partition("\n\n")[2]
        return inspect.getdoc(self.check) or self.name

    @property
    def summary(self) -> str:
        """The first line of the documentation."""
        return self.documentation.partition("\n")[0]

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
        Makes a finding of this rule.

        Args:
            configuration: Name of the trial that the finding is about; None for the whole diagnosis.
            suggestion: Advice on what to do; None if nothing is to be done.
            conversions: Conversions that the finding is about. They give place, time, bytes and evidence by default.
            at: An object with the module and line of the finding; by default, where the conversions cost most.
            seconds: Cost per iteration.
            bytes_moved: Bytes read and written per iteration.
            evidence: Names and ids to look up in the diagnosis; repeated names are dropped.
        """
        place = at or next(iter(places_of(conversions)), Hotspot(None, None))
        return Finding(
            code=self.code,
            rule=self.name,
            severity=severity,
            configuration=configuration,
            message=message,
            suggestion=suggestion,
            location=place.location,
            module=place.module,
            seconds=sum_of_known(c.seconds for c in conversions) if seconds is None else seconds,
            bytes_moved=sum_of_known(c.bytes_moved for c in conversions) if bytes_moved is None else bytes_moved,
            evidence=tuple(dict.fromkeys((c.id for c in conversions) if evidence is None else evidence)),
        )
