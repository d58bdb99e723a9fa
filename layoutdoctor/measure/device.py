"""
Whether a device still works after a failure.

Faces doctor.
"""

from __future__ import annotations

import torch

from layoutdoctor.errors import first_line


def why_unusable(device: str) -> str | None:
    """
    Why nothing more can run on a device in this process; None where it works.

    After an illegal access or a failed assertion in a kernel, every later call to CUDA fails in that process.

    Args:
        device: ``cpu``, ``cuda`` or ``cuda:N``.
    """
    if device.partition(":")[0] != "cuda":
        return None
    try:
        torch.cuda.synchronize(device)
        torch.ones(1, device=device).sum().item()
    except Exception as error:  # an out-of-memory error here is no sign that the context is gone
        return None if isinstance(error, torch.OutOfMemoryError) else first_line(error)
    return None
