"""Layout flows: the worst findings as small graphs of boxes, for all formats that draw."""

from __future__ import annotations
