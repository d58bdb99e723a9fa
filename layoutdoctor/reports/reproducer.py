"""
The reproducer: a short script, with torch alone, that shows the worst finding.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from layoutdoctor.records import Diagnosis


def render_reproducer(diagnosis: Diagnosis) -> str:
    """
    The reproducer as Python source.

    Args:
        diagnosis: Any diagnosis.
    """
    raise NotImplementedError
