"""
Privacy: what is taken out of a record before it is written for others.

``scrub`` removes who and where somebody is; ``redact`` also removes what they work on. Both keep the record's
structure, so that it is read, checked and rendered as before.
"""

from __future__ import annotations

from layoutdoctor.privacy.paths import Surroundings, known_surroundings
from layoutdoctor.privacy.redaction import redact
from layoutdoctor.privacy.scrubbing import scrub

__all__ = ["Surroundings", "known_surroundings", "redact", "scrub"]
