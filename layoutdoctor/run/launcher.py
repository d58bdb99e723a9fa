"""
The launcher: a process that imports torch and Inductor once, and forks a host for each subject.

A host loads its subject and forks a worker for each configuration. Neither runs a parallel region or starts a thread,
so that a fork is an ordinary process. If loading the subject starts threads or uses CUDA, the host says so, and the
launcher forks each worker, which loads the subject for itself.
"""

from __future__ import annotations

import contextlib
import faulthandler
import gc
import importlib
import os
import select
import shutil
import signal
import sys
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn, cast

import msgspec

from layoutdoctor.errors import LayoutDoctorError, UnsupportedTorchError, first_line, needs_torch
from layoutdoctor.workers.messages import (
    Begin,
    Channel,
    ClosedError,
    Ended,
    Fork,
    Load,
    Opened,
    Refused,
    channel_pair,
)
from layoutdoctor.workers.processes import adopt_orphans, be_first_to_go, die_with, kill_with_all_it_started, started_by

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from layoutdoctor.subjects.subject import LoadedSubject
    from layoutdoctor.workers.messages import Order, Request

_WAIT_FOR_ORDER_SECONDS = 0.5
_LONGEST_PREPARATION_SECONDS = 300.0
_LOOK_SECONDS = 0.2


def main(words: Sequence[str]) -> NoReturn:
    """
    Serves the process that started this one until it closes its end.

    Args:
        words: Number of the socket, and the folder for temporary files.
    """
    descriptor, directory = int(words[0]), Path(words[1])
    sys.argv = [""]
    be_first_to_go()
    adopt_orphans()
    _show_stacks(2)
    channel = Channel(descriptor)
    try:
        _import_torch(directory)
        forked = _prepare(channel)
    except LayoutDoctorError as error:
        _refuse(channel, error)
    with contextlib.suppress(ClosedError):
        serve_forks(channel, _host, forked=forked)
    for one in started_by(os.getpid()):  # the parent has ended, or was killed
        kill_with_all_it_started(one.pid)
    shutil.rmtree(directory, ignore_errors=True)
    os._exit(0)


def _import_torch(directory: Path) -> None:
    os.environ["TORCH_WARM_POOL"] = "0"  # a pool of compiling processes, which a thread looks after
    os.environ["PYTORCH_NVML_BASED_CUDA_CHECK"] = "1"  # whether there is a GPU is asked without using CUDA
    try:
        with needs_torch():
            import torch

            from layoutdoctor.capture.compat import inductor_config

            importlib.import_module("layoutdoctor.run.work")  # notes how many threads torch uses
            torch.set_num_threads(1)
            inductor_config()  # its cache's folder is made now, so that no model is blamed if it cannot be
            with contextlib.suppress(Exception):  # names the cache's folder before temporary files move
                folder = importlib.import_module("torch._inductor.runtime.cache_dir_utils").cache_dir()
                os.environ.setdefault("TORCHINDUCTOR_CACHE_DIR", folder)
    except ModuleNotFoundError:  # of something else: a fault of the installation, with its traceback
        raise
    except (OSError, ImportError, RuntimeError) as error:  # such as a folder for its cache that cannot be made
        raise UnsupportedTorchError(
            f"cannot import torch: {first_line(error)}; see what `python -c 'import torch._inductor'` says"
        ) from error
    tempfile.tempdir = os.environ["TMPDIR"] = str(directory)


def _prepare(channel: Channel) -> list[int]:
    """Lets the process go ahead that runs the model in eager mode, and prepares the compiler meanwhile."""
    from layoutdoctor.capture.warming import import_compiler, may_use_gpu, warm_up_compiler

    forked, limit = [], _LONGEST_PREPARATION_SECONDS
    try:
        order = cast("Load", channel.receive(_WAIT_FOR_ORDER_SECONDS)[0])
        limit = min(order.request.timeout_seconds or limit, limit)
        forked.append(_fork(channel, order, _host))
    except TimeoutError:
        pass
    except ClosedError:  # the parent has ended, or was killed
        return forked
    with _at_most(limit):
        if may_use_gpu():  # a compile would use CUDA, and no process that does may be forked
            import_compiler()
        else:
            warm_up_compiler()
    return forked


class _OverdueError(BaseException):
    """A step takes too long; no handler of another exception catches this one."""


@contextlib.contextmanager
def _at_most(seconds: float) -> Iterator[None]:
    """A block that is given up after a while, as if a compiler never ends, and soon after the parent was killed."""
    parent, end = os.getppid(), time.monotonic() + seconds

    def give_up(number: int, frame: object) -> None:
        if time.monotonic() > end or os.getppid() != parent:
            signal.setitimer(signal.ITIMER_REAL, 0)
            raise _OverdueError

    signal.signal(signal.SIGALRM, give_up)
    signal.setitimer(signal.ITIMER_REAL, _LOOK_SECONDS, _LOOK_SECONDS)
    try:
        with contextlib.suppress(_OverdueError):
            yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, signal.SIG_DFL)


def _refuse(channel: Channel, error: LayoutDoctorError) -> NoReturn:
    with contextlib.suppress(ClosedError):
        channel.send(Refused(kind=type(error).__name__, message=str(error)))
    os._exit(0)


def _host(order: Order, channel: Channel) -> None:
    """Loads the subject and says what it is; then runs the model in eager mode, or forks workers. Or is a worker."""
    from layoutdoctor.run.work import as_trained, describe_loaded, leave_gpus_alone, run_in_eager_mode, work_on

    assert isinstance(order, Load)
    request = order.request
    if order.begin is not None:
        _print_into(order.log)
        try:
            subject = as_trained(_load(request), request)
        except LayoutDoctorError as error:
            _refuse(channel, error)
        leave_gpus_alone(subject)
        work_on(subject, request, order.begin, channel)
        return
    with contextlib.suppress(OSError):
        os.dup2(2, 1)  # standard output is the report's
    _show_stacks(os.open(order.log, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600))
    try:
        subject, forks = _load(request), may_fork(request)
        loaded, subject = describe_loaded(subject, request)
        leave_gpus_alone(subject)
        channel.send(msgspec.structs.replace(loaded, forks=forks))
        if order.reference is not None:
            run_in_eager_mode(subject, request, order.reference, channel)
            return
    except LayoutDoctorError as error:
        _refuse(channel, error)
    if forks:
        serve_forks(channel, lambda begin, own: work_on(subject, request, cast("Begin", begin), own))


def _load(request: Request) -> LoadedSubject:
    from layoutdoctor.capture.retarget_device import launch_no_kernels
    from layoutdoctor.diagnosis.configurations import find_target
    from layoutdoctor.run.work import noting_threads
    from layoutdoctor.subjects.load import load_target
    from layoutdoctor.subjects.transport import load_subject

    with noting_threads() as note_threads:
        if request.subject_directory is not None:
            subject = load_subject(Path(request.subject_directory))
        else:
            subject = load_target(
                request.target or "",
                inputs=request.inputs,
                device=request.device,
                dtype=request.dtype,
                module=request.module,
                config=request.config,
            )
            if request.threads is not None:
                note_threads(request.threads)
    if request.lower_for is not None:
        launch_no_kernels(find_target(request.lower_for))
    return subject


# ---------------------------------------------------------------------------------------------- forking
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
        ours.add(_fork(channel, order, serve, (readable, writable)))


def _report_ended(channel: Channel, ours: set[int]) -> None:
    with contextlib.suppress(ChildProcessError):
        while (ended := os.waitpid(-1, os.WNOHANG))[0]:
            if ended[0] in ours:
                ours.discard(ended[0])
                channel.send(Ended(pid=ended[0], returncode=os.waitstatus_to_exitcode(ended[1])))


def _fork(
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
            _print_into(order.log)
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


def _print_into(log: str) -> None:
    number = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    os.dup2(number, 1)
    os.dup2(number, 2)
    os.close(number)
    _show_stacks(2)


def _show_stacks(descriptor: int) -> None:
    """Has Python write its stacks there if the process crashes, and when SIGUSR2 asks what it is doing."""
    faulthandler.enable(descriptor, all_threads=True)
    faulthandler.register(signal.SIGUSR2, descriptor, all_threads=True)


def may_fork(request: Request | None = None) -> bool:
    """Whether this process can be forked, which has loaded its subject: it uses no CUDA and has no other threads."""
    import torch

    on_cpu = request is None or (request.device or "cpu").partition(":")[0] == "cpu"
    threads = Path("/proc/self/task")  # where there is none, the system does not say which threads there are
    return on_cpu and not torch.cuda.is_initialized() and threads.is_dir() and len(list(threads.iterdir())) == 1
