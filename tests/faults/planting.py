"""
Where in a diagnosis a model is called, so that a fault strikes at one stage of one configuration and nowhere else.

Lies beside every model with a planted fault; imports nothing but torch and the standard library.
"""

from __future__ import annotations

import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

if TYPE_CHECKING:
    from collections.abc import Iterator
    from types import FrameType

FOLDER = Path(__file__).parent
REACHED = FOLDER / "reached"
"""Made by a model that waits to be interrupted."""
STRUCK = FOLDER / "struck"
"""Made before a fault that strikes only once."""

# The innermost of these functions that is running says which stage it is.
_STAGES = {
    "check_runs": "rehearsal",
    "compute_reference": "reference",  # "float64" where the model is run in it
    "run_trial": "run",
    "_profile": "profile",
    "peak_memory": "memory",
    "measure_rounds": "timing",
    "_settle": "timing",  # in a process of its own
    "serve_turns": "starting",
}
_FRAME_PREFIX = "layoutdoctor_"


def stage() -> str:
    """The stage that calls the model; ``load`` where none does."""
    names = _callers()
    inner = next((name for name in names if name in _STAGES), None)
    return _STAGES[inner] if inner is not None else "load"


def configuration(model: Any) -> str:
    """Which configuration the model was prepared for; compiled ones run below a frame with their name, or alone."""
    serving = next((frame for frame in _frames() if frame.f_code.co_name == "serve_turns"), None)
    if serving is not None:
        return serving.f_locals["configuration"].name
    frame = next((name for name in _callers() if name.startswith(_FRAME_PREFIX)), None)
    if frame is not None:
        return frame.removeprefix(_FRAME_PREFIX).replace("_", "-")
    weight = model.conv.weight
    is_plain = weight.is_contiguous() or not weight.is_contiguous(memory_format=torch.channels_last)
    return "eager" if is_plain else "eager-channels-last"


def is_due(at: str, of: str, model: Any, *, once: bool) -> bool:
    """Whether the fault strikes now; ``of`` is empty for any configuration, ``once`` also counts other processes."""
    now = "float64" if model.conv.weight.dtype == torch.float64 else stage()
    if now != at or (of and configuration(model) != of):
        return False
    if once and STRUCK.exists():
        return False
    STRUCK.touch()
    return True


def wait_to_be_interrupted() -> None:
    """Says that the stage is reached, and waits there."""
    REACHED.touch()
    time.sleep(600)


def _callers() -> list[str]:
    """Names of the functions that are running, innermost first."""
    return [frame.f_code.co_name for frame in _frames()]


def _frames() -> Iterator[FrameType]:
    frame = sys._getframe(1)
    while frame is not None:
        yield frame
        frame = frame.f_back
