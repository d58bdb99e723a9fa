"""Facts that the graphs of a recording prove."""
