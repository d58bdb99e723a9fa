"""
Where in a diagnosis a model is called, so that a fault strikes at one stage of one configuration and nowhere else.

Lies beside every model with a planted fault.
"""

from __future__ import annotations

import sys
import time
from pathlib import Path

FOLDER = Path(__file__).parent
REACHED = FOLDER / "reached"
"""Made by a model that waits to be interrupted."""
STRUCK = FOLDER / "struck"
"""Made before a fault that strikes only once."""

# The innermost of these functions that is running says which stage it is.
_STAGES = {"run_first": "scout", "compute_reference": "reference"}
# The same of a configuration's own work: in a worker, and in its starts.
_STAGES_OF_A_TRIAL = {"compile": "run", "check": "check", "warm_up": "timing", "turn": "timing", "profile": "profile"}


def stage() -> tuple[str, str]:
    """The stage that calls the model, ``load`` where none does, and the configuration."""
    frame = sys._getframe(1)
    while frame is not None:
        name, owner = frame.f_code.co_name, frame.f_locals.get("self")
        if type(owner).__name__ == "TrialWork" and name in _STAGES_OF_A_TRIAL:
            return _STAGES_OF_A_TRIAL[name], owner._configuration.name
        if name in _STAGES:
            return _STAGES[name], ""
        frame = frame.f_back
    return "load", ""


def is_due(at: str, of: str, *, once: bool) -> bool:
    """Whether the fault strikes now; ``of`` is empty for any configuration, ``once`` also counts other processes."""
    now, configuration = stage()
    if now != at or (of and configuration != of) or (once and STRUCK.exists()):
        return False
    STRUCK.touch()
    return True


def wait_to_be_interrupted() -> None:
    """Says that the stage is reached, and waits there."""
    REACHED.touch()
    time.sleep(600)
