"""Examines many recordings: finds them, examines each, and adds up the results."""
