"""Readers of recorded runs: profiler traces and library logs become plain values, without torch."""
