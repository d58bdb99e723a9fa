"""Limits that both a reader and the command line know. Faces everybody; imports nothing."""

from __future__ import annotations

DEFAULT_MOST_BYTES = 8 << 30
"""Unpacked bytes that are read of a trace without being asked for more: 8 GiB take a minute or two."""

DEFAULT_MOST_SAVED_BYTES = 128 << 20
"""Bytes of a saved diagnosis that are read without being asked for more; the largest ones known have 15 MiB."""
