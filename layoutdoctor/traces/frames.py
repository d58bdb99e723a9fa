"""
Which Python frames of a recorded stack name a place: calls of nn.Modules, and functions that are not torch's own.

The rest, most of a recorded stack, is not kept. Faces the readers and ``analysis``; no torch.
"""

from __future__ import annotations

import re

MODULE_PREFIX = "nn.Module: "

FRAME = re.compile(r"^(?P<file>[^<>]+\.py)\((?P<line>\d{1,9})\): (?P<function>.+)$")
"""A frame as the profiler names it: ``models/unet.py(140): forward``."""

_LIBRARY_FILE = re.compile(
    r"(?:^|/)(?:torch|torchvision/ops|functorch|triton)/|^(?:threading|contextlib|runpy|asyncio/.*)\.py$"
    r"|^<frozen|/lib/python3\.\d+/(?!site-packages)|(?:^|/)torchinductor_[^/]*/"
    r"|(?:^|/)aiter/jit/|(?:^|/)torch_guard\.py$"
)


def is_module_call(name: str) -> bool:
    """
    Whether a frame is the call of an nn.Module.

    Args:
        name: As recorded.
    """
    return name.startswith(MODULE_PREFIX)


def is_user_function(name: str) -> bool:
    """
    Whether a frame is a function in a Python file that is neither torch's nor Python's own, nor generated.

    Args:
        name: As recorded.
    """
    frame = FRAME.match(name)
    return frame is not None and _LIBRARY_FILE.search(frame["file"]) is None
