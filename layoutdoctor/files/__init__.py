"""Files: folders for scratch, safe replacing, what may be read."""
