"""The Markdown report, and GitHub's Markdown and Mermaid that it is written in."""

from __future__ import annotations
