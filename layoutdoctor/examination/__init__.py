"""Derives facts from recordings. ``examine`` treats recordings of all sources alike, without torch."""
