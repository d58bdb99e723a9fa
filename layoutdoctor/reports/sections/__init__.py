"""The sentences and tables of reports, section by section, the same for all formats and all kinds of diagnosis."""

from __future__ import annotations
