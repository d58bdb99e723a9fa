"""The processes of a diagnosis as the caller's process handles them: launcher, workers, messages; without torch."""
