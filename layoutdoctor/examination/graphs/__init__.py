"""What the graphs of a recording prove."""
