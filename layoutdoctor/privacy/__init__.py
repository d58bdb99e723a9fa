"""
Privacy: what is taken out of a record before it is written for others.

``scrub`` removes who and where somebody is; ``redact`` also removes what they work on. Both keep the record's
structure, so that it is read, checked and rendered as before.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from layoutdoctor.privacy.scrubbing import scrub
from layoutdoctor.privacy.surroundings import Surroundings, known_surroundings

if TYPE_CHECKING:
    from typing import TypeVar

    import msgspec

    AnyRecord = TypeVar("AnyRecord", bound=msgspec.Struct)

__all__ = ["Surroundings", "known_surroundings", "redact", "scrub"]


def redact(record: AnyRecord, surroundings: Surroundings | None = None) -> AnyRecord:
    """
    A scrubbed record in which the user's own names are pseudonyms as well.

    Args:
        record: A diagnosis, or any other record.
        surroundings: What is known of this machine; None to ask it.
    """
    from layoutdoctor.privacy.redaction import redacted  # late: it brings the word list, which only redacting needs

    return redacted(scrub(record, surroundings))
