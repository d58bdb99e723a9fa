"""Finds changes between two diagnoses or traces."""
