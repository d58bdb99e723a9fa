"""Finds the facts that the graphs of a recording prove."""
