"""
Privacy: what is taken out of a record before it is written for others.

``scrub`` removes who and where somebody is; ``redact`` also removes what they work on. Both keep the record's
structure, so that it is read, checked and rendered as before.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from layoutdoctor.privacy.paths import Surroundings, known_surroundings
from layoutdoctor.privacy.scrubbing import scrub

if TYPE_CHECKING:
    from layoutdoctor.privacy.scrubbing import AnyRecord

__all__ = ["Surroundings", "known_surroundings", "redact", "scrub"]


def redact(record: AnyRecord, surroundings: Surroundings | None = None) -> AnyRecord:
    """A scrubbed record in which the user's own names are pseudonyms as well; without surroundings, of this machine."""
    from layoutdoctor.privacy import redaction  # late: it brings the word lists, which only redacting needs

    return redaction.redact(record, surroundings)
