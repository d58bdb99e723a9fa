"""Random numbers, switches and settings of torch."""
