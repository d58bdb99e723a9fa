"""``scrub`` removes from a record who ran it and where; ``redact`` also the user's own names and all free text."""

from __future__ import annotations

from typing import TYPE_CHECKING

from layoutdoctor.privacy.paths import Surroundings, known_surroundings
from layoutdoctor.privacy.scrubbing import scrub

if TYPE_CHECKING:
    from layoutdoctor.privacy.scrubbing import AnyRecord

__all__ = ["Surroundings", "known_surroundings", "redact", "scrub"]


def redact(record: AnyRecord, surroundings: Surroundings | None = None) -> AnyRecord:
    """A scrubbed record in which the user's own names are pseudonyms, and free text is left out."""
    from layoutdoctor.privacy import redaction  # late: few commands redact

    return redaction.redact(record, surroundings)
