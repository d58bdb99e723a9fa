"""Finds the facts that the kernels of a recording prove."""
