"""Many recordings: which there are, who examines them, and what they add up to."""
