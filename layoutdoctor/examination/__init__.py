"""What follows from a recording: ``examine`` makes facts of it, the same way wherever it comes from; no torch."""
