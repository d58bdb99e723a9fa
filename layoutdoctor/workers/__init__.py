"""Processes of their own for a diagnosis: the supervisor, its journal and messages; it starts without torch."""
