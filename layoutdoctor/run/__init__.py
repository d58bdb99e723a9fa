"""Runs a diagnosis from beginning to end, does the work of its processes, and diagnoses saved recordings."""
