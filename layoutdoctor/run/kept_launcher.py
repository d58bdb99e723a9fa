"""The launcher that calls from Python share: the second diagnosis finds torch and Inductor imported."""

from __future__ import annotations

import atexit
import os

from layoutdoctor.workers.launcher import Launcher

_kept: tuple[int, dict[str, str], Launcher] | None = None
"""Of which process, with which environment."""


def kept_launcher() -> Launcher:
    """
    A launcher of this process; another one if the environment has changed since, or this process was forked.

    Raises:
        TransportError: It cannot be started.
    """
    global _kept  # as many diagnoses as there are share it
    environment = dict(os.environ)
    if _kept is not None and (_kept[0], _kept[1]) == (os.getpid(), environment) and _kept[2].is_alive:
        return _kept[2]
    if _kept is not None and _kept[0] == os.getpid():
        _kept[2].close()
    _kept = os.getpid(), environment, Launcher()
    return _kept[2]


@atexit.register
def close_kept_launcher() -> None:
    """Ends the launcher, if there is one."""
    global _kept
    if _kept is not None and _kept[0] == os.getpid():
        _kept[2].close()
    _kept = None
