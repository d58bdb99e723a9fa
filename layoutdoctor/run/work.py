"""The work of processes that have loaded a model with its inputs: running it in eager mode, or being a worker."""

from __future__ import annotations

import contextlib
import gc
import os
import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar, cast

import msgspec
import torch

from layoutdoctor.capture.compat import building_kernels, have_torch_check, notes_on_torch, triton_version
from layoutdoctor.capture.fx_graph import is_user_file
from layoutdoctor.diagnosis import Subject
from layoutdoctor.diagnosis.compile_arguments import is_constant
from layoutdoctor.diagnosis.compile_options import may_be_set
from layoutdoctor.diagnosis.gpus import find_gpu
from layoutdoctor.errors import UsageError
from layoutdoctor.measure.environment import measure_copy_bandwidth, observed_environment, processes_that_fit
from layoutdoctor.measure.timing import kind_of
from layoutdoctor.run.forking import may_fork, serve_forks
from layoutdoctor.run.operations import Operations
from layoutdoctor.run.rehearsal import all_tensors, compute_reference, run_first, run_without_values
from layoutdoctor.run.trial import TrialWork
from layoutdoctor.subjects.subject import call_of, describe_subject, device_of, owned_module, with_something_to_train
from layoutdoctor.workers.messages import (
    Bandwidth,
    Check,
    ClosedError,
    Compile,
    Copied,
    Loaded,
    MeasureMemory,
    Prepared,
    ProfileIteration,
    Ran,
    Turn,
    WarmUp,
)
from layoutdoctor.workers.settling import end_worker_threads, keep_memory, take_some_memory

if TYPE_CHECKING:
    from layoutdoctor.diagnosis.gpus import Gpu
    from layoutdoctor.subjects.subject import LoadedSubject
    from layoutdoctor.workers.messages import Answer, Begin, Channel, Order, Request

T = TypeVar("T")


def describe_loaded(subject: LoadedSubject, request: Request) -> tuple[Loaded, LoadedSubject]:
    """
    Makes a host's message about its subject.

    Returns:
        The message, and the subject in the form in which it is diagnosed.

    Raises:
        SubjectError: A tensor holds no data, the inputs have no element, or tensors are on several GPUs.
        UsageError: The subject is to be lowered for a target and is not on the CPU, or torch.compile refuses an
            argument.
    """
    target = None if request.lower_for is None else find_gpu(request.lower_for)
    given, notes = request.compile_arguments, list(subject.notes)
    if given is None:
        given, left_out = _constants_of(subject.compile_arguments)
        why = "which is left out: it does more than choose how code is generated"
        notes += [f"the model was compiled with option {name}, {why}" for name in left_out]
    else:
        have_torch_check(given)
    notes += notes_on_torch(with_target=target is not None)
    subject = as_trained(replace(subject, notes=tuple(notes)), request)
    described = describe_subject(subject, request.mode)
    module = owned_module(subject)
    device = device_of(subject)
    environment = observed_environment(device, triton=triton_version(), command=request.command)
    if target is None:
        described = msgspec.structs.replace(described, notes=(*described.notes, *_notes_on_machine(device)))
        environment = msgspec.structs.replace(environment, thread_count=_threads)
    else:
        described = described_for(target, subject, described)
        environment = msgspec.structs.replace(environment, device_name=None, thread_count=None)  # have no influence
    loaded = Loaded(
        subject=described,
        environment=environment,
        parameter_ranks=tuple(sorted({tensor.dim() for tensor in (*module.parameters(), *module.buffers())})),
        call=call_of(subject),
        compile_arguments=given,
        files=_loaded_files(),
    )
    return loaded, subject


def _loaded_files() -> tuple[str, ...]:
    """Lists the files of the user's imported modules, without installed packages."""
    files = (getattr(module, "__file__", None) for module in list(sys.modules.values()))
    own = {file for file in files if file and is_user_file(file) and f"-packages{os.sep}" not in file}
    return tuple(
        sorted(file for file in own if Path(file).is_absolute() and Path(file).is_file())
    )  # some modules of torch have names of files that do not exist


def as_trained(subject: LoadedSubject, request: Request) -> LoadedSubject:
    """Returns the subject. In training mode, its inputs are made to require gradients if none of its tensors does."""
    return with_something_to_train(subject) if request.mode == "training" else subject


def leave_gpus_alone(subject: LoadedSubject) -> None:
    """
    Hides the machine's GPUs from this process and its forks, if the subject is on the CPU and CUDA is not in use yet.

    With a visible GPU, compiling would use CUDA, and CUDA does not work in the forks of a process that has used it.

    Source:
        ``torch/_dynamo/convert_frame.py``: ``torch.cuda.get_rng_state`` wherever there is a GPU; torch 2.7 to 2.14.
    """
    if kind_of(device_of(subject)) != "cuda" and not torch.cuda.is_initialized():
        os.environ["CUDA_VISIBLE_DEVICES"] = os.environ["HIP_VISIBLE_DEVICES"] = ""


def _constants_of(given: Mapping[str, Any]) -> tuple[dict[str, Any], list[str]]:
    """Returns the arguments of torch.compile that a record may hold, and the names of the options that are left out."""
    options = given.get("options", {})
    kept = {name: value for name, value in options.items() if is_constant(value) and may_be_set(name, value)}
    others = {name: value for name, value in given.items() if name != "options"}
    return {**others, **({"options": kept} if kept else {})}, [name for name in options if name not in kept]


def described_for(target: Gpu, subject: LoadedSubject, described: Subject) -> Subject:
    """
    Makes the record of a subject that is lowered for a target.

    Raises:
        UsageError: The model or an input is not on the CPU.
    """
    elsewhere = sorted({tensor.device.type for tensor in all_tensors(subject)} - {"cpu", "meta"})
    if elsewhere:
        raise UsageError(
            f"cannot lower {subject.name} for target {target.name!r}: it has tensors on {', '.join(elsewhere)}, "
            "expected model and inputs on cpu, because a CPU traces the graphs; call .cpu() on both"
        )
    note = f"{target.name}: Inductor got the device properties of {target.device_name}"
    return msgspec.structs.replace(described, device="cuda", target=target.name, notes=(*described.notes, note))


_threads = torch.get_num_threads()
"""Number of threads for the model: set by the user, or torch's own number before the launcher set it to one."""


@contextlib.contextmanager
def noting_threads() -> Iterator[Callable[[int], None]]:
    """
    A block in which ``torch.set_num_threads`` only notes a number. The number takes effect when the model runs.

    Yields:
        A function that notes a number of threads.
    """
    get_threads, set_threads = torch.get_num_threads, torch.set_num_threads

    def note(count: int) -> None:
        global _threads  # a property of the process
        _threads = int(count)

    torch.get_num_threads, torch.set_num_threads = lambda: _threads, note
    try:
        yield note
    finally:
        torch.get_num_threads, torch.set_num_threads = get_threads, set_threads


def _notes_on_machine(device: str) -> tuple[str, ...]:
    """Returns notes on properties of the machine that limit the conclusions."""
    if device != "cpu":
        return ()
    if not torch.backends.mkldnn.is_available():
        return ("this torch was built without oneDNN: convolutions run in ATen's own code",)
    if torch.backends.cpu.get_cpu_capability() == "DEFAULT":
        return (
            "this processor has no AVX2: oneDNN and Inductor run slow general code, so its times say little about "
            "other processors",
        )
    return ()


def work_on(subject: LoadedSubject, request: Request, begin: Begin, channel: Channel) -> None:
    """Does the work of a configuration's worker."""
    torch.set_num_threads(_threads)
    target = None if request.lower_for is None else find_gpu(request.lower_for)
    work = TrialWork(subject, begin.configuration, request.mode, target, begin.package)
    _Worker(work, channel).run(is_again=begin.is_again)


def run_in_eager_mode(subject: LoadedSubject, request: Request, path: str, channel: Channel) -> None:
    """
    Runs the model in eager mode and computes the reference.

    Sends a ``Ran`` after the first run, saves the reference in the file ``path``, and sends another ``Ran``. A subject
    that is lowered for a target needs no reference, and runs on fake tensors if it can.

    Raises:
        SubjectError: The model does not run.
    """
    torch.set_num_threads(_threads)
    mode = request.mode
    operations = Operations()
    if request.lower_for is not None:
        first = run_without_values(subject, mode, operations.watching) or run_first(subject, mode, operations.watching)
        channel.send(Ran(notes=first.notes, input_uses=operations.uses))
        return
    first = run_first(subject, mode, operations.watching)
    seen = Ran(
        notes=first.notes,
        may_convolve=operations.may_convolve,
        input_uses=operations.uses,
        room=processes_that_fit(device_of(subject)),
    )
    channel.send(seen)
    reference = compute_reference(subject, mode, first)
    reference.save(path)
    channel.send(Ran(notes=reference.notes))


class _Worker:
    """Carries out orders: to compile a configuration and, in its starts (processes that are timed), to time it."""

    def __init__(self, work: TrialWork, channel: Channel) -> None:
        self._work, self._channel = work, channel

    def run(self, *, is_again: bool) -> None:
        """
        Prepares and compiles the configuration. Then forks starts, or is a start itself if it cannot safely be forked.

        Args:
            is_again: Whether another worker has compiled the configuration before. Then nothing is captured, and this
                process is a start itself.
        """
        if is_again:
            self._answer(self._compiled_again)
            self._serve()
            return
        key = self._answer(self._work.prepare)
        self._channel.send(Prepared(key=key))
        order, _ = self._channel.receive()
        if not isinstance(order, Compile):
            return
        on_cpu = self._work.step.device == "cpu"
        with building_kernels(order.kernels_at_once) if on_cpu else contextlib.nullcontext():
            compiled = self._answer(self._work.compile)
        gc.collect()
        end_worker_threads()
        forks = may_fork()
        self._channel.send(msgspec.structs.replace(compiled, forks=forks))
        if forks:
            serve_forks(self._channel, self._start, end_worker_threads)
        keep_memory()
        take_some_memory()
        self._serve()

    def _compiled_again(self) -> None:
        keep_memory()
        take_some_memory()
        self._work.prepare()
        self._work.step.take_own_inputs()
        take_some_memory()
        self._work.compile_as_a_user_does()

    def _start(self, order: Order, channel: Channel) -> None:
        self._channel = channel
        # After a fork, the first use of the thread pool makes a new pool. This line uses it, because torch aborts if
        # two threads of autograd make the pool at once.
        torch.set_num_threads(torch.get_num_threads())
        keep_memory()
        take_some_memory()
        self._work.step.take_own_inputs()
        take_some_memory()
        self._serve()

    def _serve(self) -> None:
        while True:
            order, _ = self._channel.receive()
            self._channel.send(self._answer(partial(self._carried_out, cast("Order", order))))

    def _carried_out(self, order: Order) -> Answer:
        work = self._work
        match order:
            case Check():
                return work.check(order.path)
            case WarmUp():
                return work.warm_up()
            case Turn():
                return work.turn(order.calls)
            case ProfileIteration():
                return work.profile(order.calls, order.trace_file)
            case MeasureMemory():
                return work.measure_memory()
            case Bandwidth():
                return Copied(bytes_per_second=measure_copy_bandwidth(work.step.device))
            case _:
                raise TypeError(f"cannot carry out {type(order).__name__}")

    def _answer(self, do: Callable[[], T]) -> T:
        """Returns the result of a function. If the function raises, sends the failure and raises ``ClosedError``."""
        try:
            return do()
        except ClosedError:
            raise
        except BaseException as error:  # the user's model may raise anything
            failed = self._work.failed(error)
            self._channel.send(failed)
            raise ClosedError(failed.failure.message) from error
