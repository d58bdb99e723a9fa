"""
The launcher: a process that imports torch and Inductor once, and forks a host for each subject.

A host loads its subject and forks a worker for each configuration. Neither runs a parallel region or starts a thread,
so that a fork is an ordinary process. If the subject itself does (threads, CUDA while it is loaded), the host says so,
and takes the place of a worker.
"""

from __future__ import annotations

import contextlib
import importlib
import os
import shutil
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn, cast

from layoutdoctor.errors import LayoutDoctorError, TransportError, UnsupportedTorchError, first_line, needs_torch
from layoutdoctor.run.forking import fork, serve_forks, show_stacks, why_not_fork
from layoutdoctor.workers.messages import Channel, ClosedError, Load, Refused
from layoutdoctor.workers.processes import adopt_orphans, be_first_to_go, die_with, kill_with_all_it_started, started_by

if TYPE_CHECKING:
    from collections.abc import Sequence

    from layoutdoctor.subjects.subject import LoadedSubject
    from layoutdoctor.workers.messages import Begin, Request


_WAIT_FOR_ORDER_SECONDS = 0.5


def main(words: Sequence[str]) -> NoReturn:
    """
    Serves the process that started this one until it closes its end.

    Args:
        words: Number of the socket, process id of the parent, the folder for temporary files, and ``fork``, or
            ``alone`` for a process that loads one subject and is its host itself.
    """
    descriptor, parent, directory, kind = int(words[0]), int(words[1]), Path(words[2]), words[3]
    if kind == "alone":
        die_with(parent)  # the launcher reads the end of its channel instead, and cleans up
    sys.argv = [""]
    be_first_to_go()
    adopt_orphans()
    show_stacks(2)
    channel = Channel.of_descriptor(descriptor)
    try:
        _import_torch(directory, forks=kind == "fork")
        forked = _prepare(channel) if kind == "fork" else []
    except LayoutDoctorError as error:
        _refuse(channel, error)
    with contextlib.suppress(ClosedError):
        if kind == "alone":
            order, _ = channel.receive()
            if isinstance(order, Load):
                _host(channel, order)
            os._exit(0)
        serve_forks(channel, lambda order, own: _host(own, cast("Load", order)), forked=forked)
    if kind == "fork":
        _leave(directory)
    os._exit(0)


def _prepare(channel: Channel) -> list[int]:
    """Lets a scout go ahead, which needs no compiler, and prepares the compiler meanwhile."""
    import torch

    from layoutdoctor.capture.warming import warm_up_compiler

    forked = []
    with contextlib.suppress(ClosedError, TimeoutError):
        order, _ = channel.receive(_WAIT_FOR_ORDER_SECONDS)
        if isinstance(order, Load):
            forked.append(fork(channel, order.log, lambda own: _host(own, order)))
    if not torch.cuda.is_available():  # a compile would use CUDA, and no process that does may be forked
        warm_up_compiler()
    return forked


def _leave(directory: Path) -> NoReturn:
    """The end of the launcher, with all that it and its forks started, also if its parent was killed."""
    for pid in started_by(os.getpid()):
        kill_with_all_it_started(pid)
    shutil.rmtree(directory, ignore_errors=True)
    os._exit(0)


def _import_torch(directory: Path, *, forks: bool) -> None:
    os.environ["TORCH_WARM_POOL"] = "0"  # a pool of compiling processes, which a thread looks after
    os.environ["PYTORCH_NVML_BASED_CUDA_CHECK"] = "1"  # whether there is a GPU is asked without using CUDA
    try:
        with needs_torch():
            import torch

            from layoutdoctor.capture.compat import inductor_config
            from layoutdoctor.run.work import remember_threads

            remember_threads()
            if forks:
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


def _refuse(channel: Channel, error: LayoutDoctorError) -> NoReturn:
    with contextlib.suppress(ClosedError):
        channel.send(Refused(kind=type(error).__name__, message=str(error)))
    os._exit(0)


def _host(channel: Channel, order: Load) -> None:
    """Loads the subject, says what it is, and forks whatever works on it."""
    from layoutdoctor.run.work import describe_loaded, scout, work_on

    request = order.request
    with contextlib.suppress(OSError):
        os.dup2(2, 1)  # standard output is the report's
    if order.stacks:
        show_stacks(os.open(order.stacks, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600))
    try:
        subject = _load(request)
        if order.scouts:
            channel.send(scout(subject, request))
            return
        loaded, subject = describe_loaded(subject, request, why_not_fork(request))
    except LayoutDoctorError as error:
        _refuse(channel, error)
    channel.send(loaded)
    serve_forks(channel, lambda begin, own: work_on(subject, request, cast("Begin", begin), own))


def _load(request: Request) -> LoadedSubject:
    from layoutdoctor.run.work import noting_threads
    from layoutdoctor.subjects.load import load_target
    from layoutdoctor.subjects.transport import load_subject, take_over_settings

    with noting_threads():
        if request.subject_directory is None:
            return load_target(
                request.target or "",
                inputs=request.inputs,
                device=request.device,
                dtype=request.dtype,
                module=request.module,
                config=request.config,
            )
        directory = Path(request.subject_directory)
        try:
            take_over_settings(directory)
            return load_subject(directory)
        except LayoutDoctorError as error:
            raise TransportError(str(error)) from error
