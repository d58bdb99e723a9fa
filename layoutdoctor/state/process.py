"""What of the process a diagnosis, or the model it runs, may disturb: put back when it ends, however it ends."""

from __future__ import annotations

import contextlib
import gc
import logging
import os
import random
import signal
import sys
import threading
import warnings
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from layoutdoctor.errors import first_line
from layoutdoctor.state.switches import (
    keep_compiler_settings,
    keep_each,
    keep_modes,
    keep_switches,
    nothing,
    same_environment,
    together,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from layoutdoctor.state.switches import Restore


_RUNNING = threading.RLock()
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_RUNNING._at_fork_reinit)  # type: ignore[attr-defined]


def one_at_a_time() -> contextlib.AbstractContextManager[bool]:
    """
    A block that one thread of this process runs at a time; the others wait.

    What a diagnosis sets and puts back belongs to the whole process, and two that time at once time each other.
    """
    return _RUNNING


@contextlib.contextmanager
def preserved_state() -> Iterator[None]:
    """
    Runs a block and puts back afterwards what it changed, the model's own doings included.

    Kept: random number generators; torch's switches, modes and settings (``switches`` names them); environment
    variables, current folder and signal handlers; file descriptors 0 to 2, ``sys.stdin`` and its like; import paths,
    arguments and the recursion limit; warning filters; levels and handlers of loggers; whether garbage is collected.

    Cannot be put back: what a model writes to files or sends elsewhere; modules imported meanwhile, and what they
    registered; functions registered with atexit; threads and processes that the model itself starts; variables of the
    model's own module and objects that only it can reach; a warning shown once already may be shown once more.

    Warns:
        RuntimeWarning: Something could not be put back.
    """
    problems: list[str] = []
    try:
        with contextlib.ExitStack() as stack:  # an interrupt in one does not keep the others from running
            for what, keep in _KEPT:
                stack.callback(_tried, _tried(keep, what, problems), what, problems)
            yield
    finally:
        if problems:
            warnings.warn(f"not put back after the diagnosis: {'; '.join(problems)}", RuntimeWarning, stacklevel=4)


def _tried(action: Callable[[], Any], what: str, problems: list[str]) -> Any:
    """Keeps, or puts back; what cannot be is said, as the rest and the result are worth more than one setting."""
    try:
        return action()
    except Exception as error:  # another torch, or what the block did
        problems.append(f"{what} ({first_line(error)})")
        return nothing


def _keep_surroundings() -> Restore:
    folder, kept = _current_folder(), contextlib.ExitStack()
    kept.enter_context(same_environment())

    def restore() -> None:
        kept.close()
        if folder is not None and _current_folder() != folder:
            os.chdir(folder)

    return restore


def _current_folder() -> Path | None:
    try:
        return Path.cwd()
    except OSError:  # it was deleted
        return None


def _keep_signals() -> Restore:
    """Signal handlers: only the main thread can set them, so only there can they have changed."""
    if threading.current_thread() is not threading.main_thread():
        return nothing
    handlers = {number: signal.getsignal(number) for number in signal.valid_signals()}

    def restore() -> None:
        for number, handler in handlers.items():
            if handler is not None and signal.getsignal(number) != handler:  # None: not installed by Python
                signal.signal(number, handler)

    return restore


def _keep_interpreter() -> Restore:
    lists = [(name, getattr(sys, name), list(getattr(sys, name))) for name in ("argv", "path")]
    settings = keep_each(
        (
            (sys.getrecursionlimit, sys.setrecursionlimit),
            (gc.isenabled, lambda is_on: gc.enable() if is_on else gc.disable()),
        )
    )

    def restore() -> None:
        for name, found, contents in lists:
            setattr(sys, name, found)
            found[:] = contents
        settings()

    return restore


def _keep_streams() -> Restore:
    """File descriptors 0 to 2 and the streams that Python made of them."""
    names = ("stdin", "stdout", "stderr", "__stdin__", "__stdout__", "__stderr__")
    streams = {name: getattr(sys, name) for name in names}
    saved: dict[int, tuple[int, bool]] = {}
    for number in (0, 1, 2):
        with contextlib.suppress(OSError):  # one that is closed cannot be kept
            saved[number] = (os.dup(number), os.get_inheritable(number))

    def restore() -> None:
        for stream in (sys.stdout, sys.stderr):
            with contextlib.suppress(Exception):  # what was printed goes where it would have gone
                stream.flush()
        for number, (copy, inheritable) in saved.items():
            try:
                os.dup2(copy, number, inheritable)
            finally:
                os.close(copy)
        for name, stream in streams.items():
            setattr(sys, name, stream)

    return restore


def _keep_warnings() -> Restore:
    kept = contextlib.ExitStack()
    kept.enter_context(warnings.catch_warnings())
    return kept.close


def _keep_loggers() -> Restore:
    root = logging.getLogger()
    known = [root, *(item for item in list(root.manager.loggerDict.values()) if isinstance(item, logging.Logger))]
    before = [(item, item.level, item.propagate, item.disabled, list(item.handlers)) for item in known]
    disabled = root.manager.disable

    def restore() -> None:
        for item, level, propagate, is_off, handlers in before:
            if item.level != level:
                item.setLevel(level)
            item.propagate, item.disabled = propagate, is_off
            item.handlers[:] = handlers
        if root.manager.disable != disabled:
            logging.disable(disabled)

    return restore


_LAZY_DEVICES = ("cuda", "xpu", "mtia")
"""Devices whose generators do not exist before the first use of the device: a seed given until then waits for it."""


@contextlib.contextmanager
def preserved_random_state() -> Iterator[None]:
    """Runs a block and puts the random number generators of torch, numpy and Python back afterwards."""
    with contextlib.ExitStack() as stack:
        stack.callback(_keep_random_state())
        yield


@contextlib.contextmanager
def seeded(seed: int) -> Iterator[None]:
    """Runs a block with all random number generators seeded, from 0 to 2**32 - 1, and puts them back afterwards."""
    with preserved_random_state():
        torch.manual_seed(seed)
        random.seed(seed)
        if (numpy := sys.modules.get("numpy")) is not None:
            numpy.random.seed(seed)
        yield


def _keep_random_state() -> Restore:
    """
    Remembers the state of all random number generators, and returns what puts it back.

    Those of a device that is used for the first time meanwhile, and numpy's where numpy is imported meanwhile, get what
    they would have got without the block: the seed that was waiting for them, or one that nobody can foresee.
    """
    # The generator itself, not torch.get_rng_state: a default device would send the state's tensor elsewhere.
    generator = torch.default_generator
    restores: list[Restore] = [
        partial(random.setstate, random.getstate()),
        _keep_numpy(),
        partial(generator.set_state, generator.get_state()),
    ]
    if torch.backends.mps.is_available():
        restores.append(partial(torch.mps.set_rng_state, torch.mps.get_rng_state()))
    return together([*restores, *map(_keep_device, _LAZY_DEVICES)])


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
        return partial(device.set_rng_state_all, device.get_rng_state_all())
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


# Put back from the last to the first: switches of torch while its modes are still the block's would meet those.
_KEPT: tuple[tuple[str, Callable[[], Restore]], ...] = (
    ("signal handlers", _keep_signals),
    ("Python's paths and limits", _keep_interpreter),
    ("standard streams", _keep_streams),
    ("warning filters", _keep_warnings),
    ("loggers", _keep_loggers),
    ("environment or folder", _keep_surroundings),
    ("random number generators", _keep_random_state),
    ("compiler settings", keep_compiler_settings),
    ("torch's switches", keep_switches),
    ("torch's modes", keep_modes),
)
