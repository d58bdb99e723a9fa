"""The reproducer: a short script, with torch alone, that shows the worst finding."""

from __future__ import annotations
