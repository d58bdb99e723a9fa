"""
The launcher: a process that imports torch and Inductor once, and forks a host for each subject.

A host loads its subject (a model with its inputs) and forks a worker for each configuration. Launcher and host run no
parallel region and start no thread, because a process with threads cannot safely be forked. If loading the subject
starts threads or uses CUDA, the host reports this. Then the launcher forks each worker, and the worker loads the
subject itself.
"""

from __future__ import annotations

import contextlib
import importlib
import os
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn, cast

import msgspec

from layoutdoctor.errors import LayoutDoctorError, UnsupportedTorchError, first_line, needs_torch
from layoutdoctor.run.forking import fork, may_fork, print_into, serve_forks, show_stacks
from layoutdoctor.workers.messages import (
    Begin,
    Channel,
    ClosedError,
    Load,
    Refused,
)
from layoutdoctor.workers.processes import adopt_orphans, be_first_to_go, kill_with_all_it_started, started_by

if TYPE_CHECKING:
    from layoutdoctor.subjects.subject import LoadedSubject
    from layoutdoctor.workers.messages import Order, Request

_WAIT_FOR_ORDER_SECONDS = 0.5
_LONGEST_PREPARATION_SECONDS = 300.0
_LOOK_SECONDS = 0.2


def main(words: Sequence[str]) -> NoReturn:
    """
    Serves the parent process until the parent closes its end of the socket.

    Args:
        words: File descriptor of the socket, and the folder for temporary files.
    """
    descriptor, directory = int(words[0]), Path(words[1])
    sys.argv = [""]
    be_first_to_go()
    adopt_orphans()
    show_stacks(2)
    channel = Channel(descriptor)
    try:
        _import_torch(directory)
        forked = _prepare(channel)
    except LayoutDoctorError as error:
        _refuse(channel, error)
    with contextlib.suppress(ClosedError):
        serve_forks(channel, _host, forked=forked)
    for one in started_by(os.getpid()):  # the parent has closed its end, or was killed
        kill_with_all_it_started(one.pid)
    shutil.rmtree(directory, ignore_errors=True)
    os._exit(0)


def _import_torch(directory: Path) -> None:
    os.environ["TORCH_WARM_POOL"] = "0"  # no pool of compiling processes: it needs a thread in this process
    os.environ["PYTORCH_NVML_BASED_CUDA_CHECK"] = "1"  # torch looks for a GPU without using CUDA
    try:
        with needs_torch():
            import torch

            from layoutdoctor.capture.compat import inductor_config

            importlib.import_module("layoutdoctor.run.work")  # notes torch's number of threads before it is set to 1
            torch.set_num_threads(1)
            inductor_config()  # makes Inductor's cache folder now, so that a failure is not blamed on a model
            with contextlib.suppress(Exception):  # fixes the cache folder before the temporary folder changes
                folder = importlib.import_module("torch._inductor.runtime.cache_dir_utils").cache_dir()
                os.environ.setdefault("TORCHINDUCTOR_CACHE_DIR", folder)
    except ModuleNotFoundError:  # another module than torch's is missing: the traceback shows the faulty installation
        raise
    except (OSError, ImportError, RuntimeError) as error:  # for example, the cache folder cannot be made
        raise UnsupportedTorchError(
            f"cannot import torch: {first_line(error)}; see what `python -c 'import torch._inductor'` says"
        ) from error
    tempfile.tempdir = os.environ["TMPDIR"] = str(directory)


def _prepare(channel: Channel) -> list[int]:
    """
    Waits a moment for the order to load, forks a process for it, and prepares the compiler while the fork runs.

    Returns:
        A list with the process id of the fork; empty if no order came in time.
    """
    from layoutdoctor.capture.warming import import_compiler, may_use_gpu, warm_up_compiler

    forked, limit, builds = [], _LONGEST_PREPARATION_SECONDS, True
    try:
        order = cast("Load", channel.receive(_WAIT_FOR_ORDER_SECONDS)[0])
        compiled = any(configuration.backend != "eager" for configuration in order.request.configurations)
        builds = compiled and order.request.lower_for is None
        limit = min(order.request.timeout_seconds or limit, limit)
        forked.append(fork(channel, order, _host))
    except TimeoutError:
        pass
    except ClosedError:  # the parent has ended, or was killed
        return forked
    with _at_most(limit):
        if may_use_gpu():  # a compile would use CUDA, and a process that uses CUDA cannot be forked
            import_compiler()
        else:
            warm_up_compiler(builds=builds)
    return forked


class _OverdueError(BaseException):
    """Raised when a step takes too long. It derives from BaseException, so that ``except Exception`` lets it pass."""


@contextlib.contextmanager
def _at_most(seconds: float) -> Iterator[None]:
    """A block that is left after ``seconds``, and soon after the parent ends: a compiler may run forever."""
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
    """
    Loads the subject and carries out the order.

    If the order has a configuration, this process is a worker. Otherwise it sends a description of the subject. Then it
    either runs the subject in eager mode for the reference, or, if it can safely be forked, it forks workers.
    """
    from layoutdoctor.run.work import as_trained, describe_loaded, leave_gpus_alone, run_in_eager_mode, work_on

    assert isinstance(order, Load)
    request = order.request
    if order.begin is not None:
        print_into(order.log)
        try:
            subject = as_trained(_load(request), request)
        except LayoutDoctorError as error:
            _refuse(channel, error)
        leave_gpus_alone(subject)
        work_on(subject, request, order.begin, channel)
        return
    with contextlib.suppress(OSError):
        os.dup2(2, 1)  # standard output is for the report only
    show_stacks(os.open(order.log, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600))
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
    from layoutdoctor.diagnosis.gpus import find_gpu
    from layoutdoctor.run.work import noting_threads
    from layoutdoctor.subjects.load import load_target
    from layoutdoctor.subjects.transport import load_subject

    with noting_threads() as note_threads:
        if request.subject_directory is not None:
            subject = load_subject(Path(request.subject_directory))
        else:
            subject = load_target(
                request.target,
                inputs=request.inputs,
                device=request.device,
                dtype=request.dtype,
                module=request.module,
                config=request.config,
            )
            if request.threads is not None:
                note_threads(request.threads)
    if request.lower_for is not None:
        launch_no_kernels(find_gpu(request.lower_for))
    return subject
