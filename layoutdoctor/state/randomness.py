"""Random number generators: kept, seeded, put back."""

from __future__ import annotations

import contextlib
import random
import sys
from typing import TYPE_CHECKING, Any

import torch

from layoutdoctor.state.switches import nothing, together

if TYPE_CHECKING:
    from collections.abc import Iterator

    from layoutdoctor.state.switches import Restore

_LAZY_DEVICES = ("cuda", "xpu", "mtia")
"""Devices whose generators do not exist before the first use of the device: a seed given until then waits for it."""


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
    """Runs a block with all random number generators seeded, from 0 to 2**32 - 1, and puts them back afterwards."""
    with preserved_random_state():
        torch.manual_seed(seed)
        random.seed(seed)
        if (numpy := sys.modules.get("numpy")) is not None:
            numpy.random.seed(seed)
        yield


def keep_random_state() -> Restore:
    """
    Remembers the state of all random number generators, and returns what puts it back.

    Those of a device that is used for the first time meanwhile, and numpy's where numpy is imported meanwhile, get what
    they would have got without the block: the seed that was waiting for them, or one that nobody can foresee.
    """
    return together([_keep_python(), _keep_numpy(), _keep_cpu(), _keep_mps(), *map(_keep_device, _LAZY_DEVICES)])


def _keep_python() -> Restore:
    state = random.getstate()
    return lambda: random.setstate(state)


def _keep_numpy() -> Restore:
    numpy: Any = sys.modules.get("numpy")
    # A module that is being imported just now, by the one who calls, has no generator yet.
    state = numpy.random.get_state() if hasattr(numpy, "random") else None

    def restore() -> None:
        generator = getattr(sys.modules.get("numpy"), "random", None)
        if generator is None:
            return
        if state is None:
            generator.seed()
        else:
            generator.set_state(state)

    return restore


def _keep_cpu() -> Restore:
    # The generator itself, not torch.get_rng_state: a default device would send the state's tensor elsewhere.
    state = torch.default_generator.get_state()

    def restore() -> None:
        torch.default_generator.set_state(state)

    return restore


def _keep_mps() -> Restore:
    state = torch.mps.get_rng_state() if torch.backends.mps.is_available() else None

    def restore() -> None:
        if state is not None:
            torch.mps.set_rng_state(state)

    return restore


def _keep_device(name: str) -> Restore:
    """
    The generators of all devices of one kind.

    Source:
        ``torch.cuda._lazy_seed_tracker``: the last seeds given before the device is initialised, which torch applies
        when it is; torch 2.7 to 2.13, and the same for xpu and mtia.
    """
    device: Any = getattr(torch, name, None)
    is_initialized = getattr(device, "is_initialized", None)
    if is_initialized is None:
        return nothing
    if is_initialized() and hasattr(device, "get_rng_state_all"):
        states = device.get_rng_state_all()
        return lambda: device.set_rng_state_all(states)
    tracker = getattr(device, "_lazy_seed_tracker", None)
    waiting = dict(vars(tracker)) if tracker is not None else {}

    def restore() -> None:
        if tracker is not None:
            vars(tracker).update(waiting)
        if not is_initialized():
            return
        calls = [call for call in waiting.get("call_order", ()) if call]
        if not calls and hasattr(device, "seed_all"):
            device.seed_all()
        for apply, _ in calls:
            apply()

    return restore
