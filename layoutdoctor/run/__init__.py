"""A diagnosis from its beginning to its end, what a worker does, and diagnoses of what was recorded before."""
