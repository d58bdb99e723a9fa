"""
The JSON report: the record itself, by the contract.

Faces the table of formats.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from layoutdoctor.records import to_json

if TYPE_CHECKING:
    from layoutdoctor.records import Diagnosis


def render_json(diagnosis: Diagnosis) -> str:
    """
    The diagnosis as JSON, with every number.

    Args:
        diagnosis: Any diagnosis.
    """
    return to_json(diagnosis).decode()
