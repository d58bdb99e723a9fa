"""Writes files as a whole, makes safe file names, and makes folders for temporary files."""
