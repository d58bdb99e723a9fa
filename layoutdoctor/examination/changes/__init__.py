"""Changes between two diagnoses or traces."""
