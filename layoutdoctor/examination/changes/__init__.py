"""What changed between two diagnoses or traces."""
