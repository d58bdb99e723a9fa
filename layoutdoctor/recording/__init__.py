"""Recordings: the raw observations of one trial, and the files of these; torch is not needed to read them."""
