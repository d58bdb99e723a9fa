"""Forks processes from a process that has one thread, and reports when they end."""

from __future__ import annotations

import contextlib
import faulthandler
import gc
import os
import select
import signal
import sys
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn, cast

from layoutdoctor.workers.messages import Begin, Channel, ClosedError, Ended, Fork, Opened, channel_pair
from layoutdoctor.workers.processes import die_with

if TYPE_CHECKING:
    from layoutdoctor.workers.messages import Order, Request


def serve_forks(
    channel: Channel,
    serve: Callable[[Order, Channel], object],
    before_fork: Callable[[], object] = lambda: None,
    forked: Iterable[int] = (),
) -> NoReturn:
    """
    Forks a process for each order that arrives, and reports each of these processes that ends.

    Args:
        serve: Function that a forked process calls with the order and the process's own channel.
        before_fork: Function that this process calls before each fork.
        forked: Process ids of earlier forks, whose ends are reported too.

    Raises:
        ClosedError: The process at the other end of the channel has closed its end, or has ended.
    """
    gc.freeze()  # otherwise each garbage collection in a fork touches, and thereby copies, all objects of this process
    ours = set(forked)
    readable, writable = os.pipe()
    os.set_blocking(writable, False)
    signal.signal(signal.SIGCHLD, lambda number, frame: None)
    signal.set_wakeup_fd(writable, warn_on_full_buffer=False)
    _report_ended(channel, ours)  # processes that ended before the signal handler was set
    while True:
        ready, _, _ = select.select([channel.fileno(), readable], [], [])
        if readable in ready:
            os.read(readable, 4096)
            _report_ended(channel, ours)
        if channel.fileno() not in ready:
            continue
        order = cast("Order", channel.receive()[0])
        before_fork()
        ours.add(fork(channel, order, serve, (readable, writable)))


def _report_ended(channel: Channel, ours: set[int]) -> None:
    with contextlib.suppress(ChildProcessError):
        while (ended := os.waitpid(-1, os.WNOHANG))[0]:
            if ended[0] in ours:
                ours.discard(ended[0])
                channel.send(Ended(pid=ended[0], returncode=os.waitstatus_to_exitcode(ended[1])))


def fork(
    channel: Channel, order: Order, serve: Callable[[Order, Channel], object], descriptors: Sequence[int] = ()
) -> int:
    """
    Forks a process that carries out an order and then ends; returns the id of the new process.

    Sends the other end of the new process's channel through ``channel``. Raises ``ClosedError`` if this fails.

    Args:
        channel: Channel on which this process got the order; the new process closes it.
        descriptors: Further file descriptors that the new process closes.
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
        signal.set_wakeup_fd(-1)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        for descriptor in descriptors:
            os.close(descriptor)
        die_with(parent)
        os.setpgid(0, 0)
        if isinstance(order, (Begin, Fork)):
            print_into(order.log)
        ours.adopt()
        serve(order, ours)
    except ClosedError:
        pass
    except BaseException:  # a fault of layoutdoctor: the log gets its traceback
        sys.excepthook(*sys.exc_info())
        os._exit(1)
    finally:
        with contextlib.suppress(BaseException):
            sys.stdout.flush()
            sys.stderr.flush()
    os._exit(0)


def print_into(log: str) -> None:
    """Redirects standard output and standard error of this process to a file, as well as the stacks of a crash."""
    number = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    os.dup2(number, 1)
    os.dup2(number, 2)
    os.close(number)
    show_stacks(2)


def show_stacks(descriptor: int) -> None:
    """Makes Python write the stacks of all threads to a descriptor when the process crashes or receives SIGUSR2."""
    faulthandler.enable(descriptor, all_threads=True)
    faulthandler.register(signal.SIGUSR2, descriptor, all_threads=True)


def may_fork(request: Request | None = None) -> bool:
    """Whether this process can safely be forked: it has one thread, uses no CUDA, and the request names no GPU."""
    import torch

    on_cpu = request is None or (request.device or "cpu").partition(":")[0] == "cpu"
    threads = Path("/proc/self/task")  # a system without this folder does not list the threads of a process
    return on_cpu and not torch.cuda.is_initialized() and threads.is_dir() and len(list(threads.iterdir())) == 1
