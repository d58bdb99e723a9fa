"""Forking: a process that has one thread makes another one, with a channel of its own to the parent."""

from __future__ import annotations

import contextlib
import faulthandler
import os
import select
import signal
import sys
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import torch

from layoutdoctor.workers.messages import Begin, ClosedError, Ended, Fork, Load, Opened, channel_pair
from layoutdoctor.workers.processes import die_with

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from layoutdoctor.workers.messages import Channel, Order, Request


def serve_forks(
    channel: Channel,
    serve: Callable[[Order, Channel], None],
    before_fork: Callable[[], object] = lambda: None,
    forked: Iterable[int] = (),
) -> None:
    """
    Forks a process for each order that asks for one, and reports those that end.

    Args:
        serve: What a forked process does, with a channel of its own; or this process, if the order says ``here``.
        before_fork: Called in this process before each fork.
        forked: What was forked before, whose ends are reported as well.

    Raises:
        ClosedError: The parent has closed its end.
    """
    ours = set(forked)
    readable, writable = os.pipe()
    os.set_blocking(writable, False)
    signal.signal(signal.SIGCHLD, lambda number, frame: None)
    signal.set_wakeup_fd(writable, warn_on_full_buffer=False)
    _report_ended(channel, ours)  # of what has ended before
    while True:
        ready, _, _ = select.select([channel.fileno(), readable], [], [])
        if readable in ready:
            os.read(readable, 4096)
            _report_ended(channel, ours)
        if channel.fileno() not in ready:
            continue
        order, _ = channel.receive()
        if isinstance(order, (Begin, Fork)) and order.here:
            _forget_children(readable, writable)
            if order.log:
                _print_into(order.log)
            serve(order, channel)
            return
        if isinstance(order, (Load, Begin, Fork)):
            before_fork()
            ours.add(fork(channel, order.log, partial(serve, order), (readable, writable)))


def _report_ended(channel: Channel, ours: set[int]) -> None:
    with contextlib.suppress(ChildProcessError):
        while (ended := os.waitpid(-1, os.WNOHANG))[0]:
            if ended[0] in ours:
                ours.discard(ended[0])
                channel.send(Ended(pid=ended[0], returncode=os.waitstatus_to_exitcode(ended[1])))


def _forget_children(*descriptors: int) -> None:
    signal.set_wakeup_fd(-1)
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    for descriptor in descriptors:
        os.close(descriptor)


def fork(channel: Channel, log: str, serve: Callable[[Channel], object], descriptors: Sequence[int] = ()) -> int:
    """
    A process that serves a channel of its own, whose other end goes to the parent.

    Args:
        channel: To the parent; closed in the new process, as are the descriptors.
        log: File for its standard output and error; empty leaves them as they are.
    """
    ours, theirs = channel_pair()
    sys.stdout.flush()
    sys.stderr.flush()
    parent, pid = os.getpid(), os.fork()
    if pid:
        ours.close()
        channel.send(Opened(pid=pid), theirs.fileno())
        theirs.close()
        return pid
    try:
        theirs.close()
        channel.close()
        _forget_children(*descriptors)
        die_with(parent)
        os.setpgid(0, 0)
        if log:
            _print_into(log)
        ours.adopt()
        serve(ours)
    except ClosedError:
        pass
    except BaseException:  # a fault of ours, with its traceback in the log
        sys.excepthook(*sys.exc_info())
        os._exit(1)
    finally:
        with contextlib.suppress(BaseException):
            sys.stdout.flush()
            sys.stderr.flush()
    os._exit(0)


def _print_into(log: str) -> None:
    number = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    os.dup2(number, 1)
    os.dup2(number, 2)
    os.close(number)
    show_stacks(2)


def show_stacks(descriptor: int) -> None:
    """Has Python write its stacks there if the process crashes, and when SIGUSR2 asks what it is doing."""
    faulthandler.enable(descriptor, all_threads=True)
    with contextlib.suppress(AttributeError, ValueError):
        faulthandler.register(signal.SIGUSR2, descriptor, all_threads=True)


def why_not_fork(request: Request | None = None) -> str | None:
    """Why this process, which has loaded its subject, cannot be forked, by what can be seen of it; None if it can."""
    if torch.cuda.is_initialized():
        return "CUDA is in use"
    if request is not None and (request.device or "cpu").partition(":")[0] != "cpu":
        return f"it runs on {request.device}"
    threads = Path("/proc/self/task")
    if not threads.is_dir():
        return "this system does not say which threads there are"
    others = len(list(threads.iterdir())) - 1
    return f"{others} more threads run" if others else None
