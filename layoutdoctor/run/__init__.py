"""A diagnosis from its beginning to its end: rehearsal, trials, the choice and its verification."""
