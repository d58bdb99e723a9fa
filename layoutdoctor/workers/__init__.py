"""The processes of a diagnosis, seen from the one that asked for it: launcher, workers, messages; without torch."""
