"""A diagnosis from its beginning to its end: trials, rounds, the choice, static targets, and the process it runs in."""
