"""
Random number generators: kept, seeded, put back.

Faces subjects and the rest of measure; imports torch only.
"""

from __future__ import annotations

import contextlib
import random
import sys
from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator


@contextlib.contextmanager
def preserved_random_state() -> Iterator[None]:
    """Runs a block and puts the random number generators of torch, numpy and Python back afterwards."""
    restore = keep_random_state()
    try:
        yield
    finally:
        restore()


@contextlib.contextmanager
def seeded(seed: int) -> Iterator[None]:
    """
    Runs a block with all random number generators seeded, and puts them back afterwards.

    Args:
        seed: Any integer from 0 to 2**32 - 1.
    """
    with preserved_random_state():
        torch.manual_seed(seed)
        random.seed(seed)
        if (numpy := sys.modules.get("numpy")) is not None:
            numpy.random.seed(seed)
        yield


def keep_random_state() -> Callable[[], None]:
    """Remembers the state of all random number generators, and returns what puts it back."""
    python_state = random.getstate()
    torch_state = torch.get_rng_state()
    cuda_states = torch.cuda.get_rng_state_all() if torch.cuda.is_initialized() else None
    numpy = sys.modules.get("numpy")
    numpy_state = numpy.random.get_state() if numpy is not None else None

    def restore() -> None:
        random.setstate(python_state)
        torch.set_rng_state(torch_state)
        if cuda_states is not None:
            torch.cuda.set_rng_state_all(cuda_states)
        if numpy is not None:
            numpy.random.set_state(numpy_state)

    return restore
