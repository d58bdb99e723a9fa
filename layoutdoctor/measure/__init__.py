"""What a model costs: one iteration, timed in rounds, profiled, checked against a reference, its memory."""
