"""Random number generators of torch, Python and numpy."""

from __future__ import annotations

import random
import sys

import torch


def seed_all(seed: int) -> None:
    """Seeds every generator, from 0 to 2**32 - 1, in a process of our own; that of a GPU when it is first used."""
    torch.manual_seed(seed)
    random.seed(seed)
    if hasattr(numpy := sys.modules.get("numpy"), "random"):  # one that is being imported just now has none yet
        numpy.random.seed(seed)  # type: ignore[union-attr]
