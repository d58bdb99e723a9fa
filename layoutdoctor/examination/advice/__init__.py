"""Chooses the configuration to use, and makes the lines to paste that apply it."""
