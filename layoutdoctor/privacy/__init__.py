"""``scrub`` removes all that identifies user and machine; ``redact`` also removes the user's own names and texts."""

from __future__ import annotations

from typing import TYPE_CHECKING

from layoutdoctor.privacy.paths import Surroundings, known_surroundings
from layoutdoctor.privacy.scrubbing import scrub

if TYPE_CHECKING:
    from layoutdoctor.privacy.scrubbing import AnyRecord

__all__ = ["Surroundings", "known_surroundings", "redact", "scrub"]


def redact(record: AnyRecord, surroundings: Surroundings | None = None) -> AnyRecord:
    """Scrubs a record, replaces the user's own names by pseudonyms, and leaves out free text."""
    from layoutdoctor.privacy import redaction  # late: few commands redact

    return redaction.redact(record, surroundings)
