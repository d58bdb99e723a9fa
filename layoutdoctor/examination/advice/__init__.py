"""The configuration to use, and the lines to paste that apply it."""
