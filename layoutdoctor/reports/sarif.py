"""
The SARIF report: findings at their source lines, for code scanning.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from layoutdoctor.records import Diagnosis


def render_sarif(diagnosis: Diagnosis) -> str:
    """
    The findings as SARIF 2.1.0.

    Args:
        diagnosis: Any diagnosis.
    """
    raise NotImplementedError
