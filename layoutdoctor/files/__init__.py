"""Files: replacing one as a whole, names that lead nowhere else, folders for temporary files."""
