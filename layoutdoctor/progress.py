"""
What a long diagnosis says about itself while it runs, and how long its timing takes unless told otherwise.

Faces doctor, which sends it, and the command line, which shows it; imports nothing of the package.
"""

from __future__ import annotations

from dataclasses import dataclass

DEFAULT_BUDGET_SECONDS = 30.0
"""Seconds for the timing rounds of all configurations together; capturing and profiling come on top."""


@dataclass(frozen=True, slots=True)
class Progress:
    """
    One step forward.

    Attributes:
        stage: What is being done now, such as ``"inductor: compiling"``.
        done: Steps finished, from 0.
        total: Steps in all, as far as known now.
    """

    stage: str
    done: int
    total: int
