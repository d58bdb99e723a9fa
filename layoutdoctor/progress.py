"""What a long diagnosis says about itself while it runs, and how long it takes unless told otherwise."""

from __future__ import annotations

from dataclasses import dataclass

DEFAULT_BUDGET_SECONDS = 30.0
"""Seconds for the timing rounds of all configurations together; capturing and profiling come on top."""

DEFAULT_TIMEOUT_SECONDS = 1800.0
"""For one configuration: longer than any compile that somebody waits for."""


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
