"""How a process that runs nothing in parallel forks others, and reports those that end."""

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
    Forks a process for each order that asks for one, and reports those that end.

    Args:
        serve: The work of a forked process, with a channel of its own.
        before_fork: Called in this process before each fork.
        forked: Processes that were forked before, whose ends are reported as well.

    Raises:
        ClosedError: The parent has closed its end.
    """
    gc.freeze()  # else each collection in a fork visits, and so copies, all objects of this process
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
    A process that carries out an order with a channel of its own, whose other end goes to the parent.

    Args:
        channel: To the parent; closed in the new process, as are the descriptors.
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
    except BaseException:  # a fault of ours, with its traceback in the log
        sys.excepthook(*sys.exc_info())
        os._exit(1)
    finally:
        with contextlib.suppress(BaseException):
            sys.stdout.flush()
            sys.stderr.flush()
    os._exit(0)


def print_into(log: str) -> None:
    """Sends all that this process prints to a file."""
    number = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    os.dup2(number, 1)
    os.dup2(number, 2)
    os.close(number)
    show_stacks(2)


def show_stacks(descriptor: int) -> None:
    """Has Python write its stacks there if the process crashes, and when SIGUSR2 asks what it is doing."""
    faulthandler.enable(descriptor, all_threads=True)
    faulthandler.register(signal.SIGUSR2, descriptor, all_threads=True)


def may_fork(request: Request | None = None) -> bool:
    """Whether this process can be forked, which has loaded its subject: it uses no CUDA and has no other threads."""
    import torch

    on_cpu = request is None or (request.device or "cpu").partition(":")[0] == "cpu"
    threads = Path("/proc/self/task")  # where there is none, the system does not say which threads there are
    return on_cpu and not torch.cuda.is_initialized() and threads.is_dir() and len(list(threads.iterdir())) == 1
