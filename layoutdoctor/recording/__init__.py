"""What was seen of one trial, raw and without torch: the value, and the file it is kept in."""
