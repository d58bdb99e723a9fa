"""Derives facts from recordings. ``examine`` does this in the same way for all sources of recordings, without torch."""
