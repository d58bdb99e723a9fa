"""
The HTML report: one file that needs no network.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from layoutdoctor.records import Diagnosis


def render_html(diagnosis: Diagnosis) -> str:
    """
    The report as one HTML page.

    Args:
        diagnosis: Any diagnosis.
    """
    raise NotImplementedError
