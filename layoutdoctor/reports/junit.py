"""
The JUnit report: findings as test cases, for a CI server.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from layoutdoctor.records import Diagnosis


def render_junit(diagnosis: Diagnosis) -> str:
    """
    The findings as JUnit XML.

    Args:
        diagnosis: Any diagnosis.
    """
    raise NotImplementedError
