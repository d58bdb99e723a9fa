"""
``diagnose()``: the steps of a diagnosis, from the model to the findings.

One process loads the subject (a model with its inputs) and runs it in eager mode. If an operation ran to which layouts
may matter, a ``Run`` compiles, times and profiles each configuration in its own worker process. Then the recordings are
examined and the rules run. The caller's process compiles nothing and runs no model, and the caller's objects stay as
they are.
"""

from __future__ import annotations

import math
import shutil
from collections.abc import Callable, Iterable, Mapping, Sequence
from numbers import Real
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from layoutdoctor.diagnosis import Configuration, Diagnosis, Observed
from layoutdoctor.diagnosis.compile_arguments import check_compile_arguments, compiled_with
from layoutdoctor.diagnosis.configurations import (
    ALL,
    BASELINE,
    by_aot_inductor,
    check_package,
    choose_configurations,
    what_follows,
)
from layoutdoctor.diagnosis.gpus import find_gpu
from layoutdoctor.errors import UsageError, needs_torch
from layoutdoctor.examination.advice.choice import package_to_keep
from layoutdoctor.files.writing import replacing
from layoutdoctor.recording.recording import Recording
from layoutdoctor.rules import Rule
from layoutdoctor.run.recorded import diagnose_recordings
from layoutdoctor.run.run import Eager, Run
from layoutdoctor.run.watching import Watch, showing
from layoutdoctor.words import name_in_words
from layoutdoctor.workers.launcher import kept_launcher
from layoutdoctor.workers.messages import DEFAULT_TIMEOUT_SECONDS, Progress, Request, package_file

if TYPE_CHECKING:
    import os

    from layoutdoctor.diagnosis.subject import Mode
    from layoutdoctor.recording.recording import Head
    from layoutdoctor.workers.launcher import Launcher

ASSERTED_CONFIGURATIONS = (BASELINE,)
"""The configuration that tests check by default: ``torch.compile(model)(x)``, model and input as the test made them."""


def diagnose(
    model: Callable[..., Any],
    example_input: Any,
    *,
    mode: Mode = "inference",
    configurations: str | Configuration | Iterable[str | Configuration] = "default",
    rules: Sequence[Rule] | None = None,
    lower_for: str | None = None,
    target: str | None = None,
    compile_kwargs: Mapping[str, Any] | None = None,
    package: str | os.PathLike[str] | None = None,
    budget_seconds: float | None = None,
    progress: Callable[[Progress], None] | None = None,
    timeout_seconds: float | None = None,
) -> Diagnosis:
    """
    Finds the layout configuration in which a model is fastest, and the cost of its layout conversions.

    The model is sent to processes of layoutdoctor with cloudpickle. The caller's process compiles nothing.

    Args:
        model: An nn.Module or any callable; it is not changed. A compiled model is unwrapped.
        example_input: A Tensor, such as images ``[N, C, H, W]``, a tuple of positional arguments or a dict of keyword
            arguments; or a ``RecordedInputs`` that ``record_inputs`` made of a call of the model.
        mode: ``inference`` (eval mode, no gradients) or ``training`` (forward, backward of a scalar loss).
        configurations: ``default``, ``quick``, ``all``, names, or Configuration values.
        rules: Rules to run; None for all.
        lower_for: A GPU that this machine lacks, such as ``cuda:90``. The graphs are traced on the CPU and lowered for
            this GPU, and nothing is measured. None measures on the model's device.
        target: Another name of ``lower_for``.
        compile_kwargs: Arguments of ``torch.compile`` with which the model is compiled today: ``mode``, ``dynamic``,
            ``fullgraph``, ``options``. They apply in every configuration, but the configuration's own settings come
            first. None uses the arguments with which the given model was compiled, if it was compiled.
        package: File for the best ``.pt2`` package (for ``torch._inductor.aoti_load_package``). With it, AOTInductor
            compiles the configurations; torch.compile's default is measured beside them. Inference only.
        budget_seconds: Time for rounds and starts. None takes the time of compiling, at least 10 s and at most 60 s.
        progress: Function that is called with a ``Progress`` at every step. None shows one line in a notebook or on a
            terminal and removes it at the end.
        timeout_seconds: The longest time that one configuration may take; None for half an hour, infinity for no limit.

    Returns:
        The diagnosis; ``print`` it for the report.

    Raises:
        UsageError: An argument is wrong.
        SubjectError: The model does not run on the example input in eager mode.
        TransportError: The model cannot be sent to another process; the message names the object at fault.
        UnsupportedTorchError: torch is not installed.
    """
    _check(mode, budget_seconds, progress, timeout_seconds)
    listed = _listed(configurations, (str, Configuration), "configuration", _A_CONFIGURATION)
    chosen = choose_configurations(listed[0] if isinstance(configurations, str) else listed, mode)
    rules = None if rules is None else _listed(rules, (Rule,), "rule", _A_RULE)
    lower_for = target if lower_for is None else lower_for
    if lower_for is not None:
        find_gpu(lower_for)  # raises an error before work on the model begins
    limit = DEFAULT_TIMEOUT_SECONDS if timeout_seconds is None else timeout_seconds
    request = Request(
        mode=mode,
        configurations=chosen,
        compile_arguments=None if compile_kwargs is None else check_compile_arguments(compile_kwargs),
        derives=what_follows(configurations),
        tries_all=configurations == ALL,
        lower_for=lower_for,
        package=None if package is None else check_package(package, mode, lower_for),
        budget_seconds=budget_seconds,
        timeout_seconds=None if limit == math.inf else float(limit),
    )
    with showing(progress) as tell:
        return diagnose_object(model, example_input, request, Watch(tell), rules)


def record_only(
    model: Callable[..., Any],
    example_input: Any,
    *,
    mode: Mode = "inference",
    configurations: Any = ASSERTED_CONFIGURATIONS,
) -> Diagnosis:
    """Diagnoses conversions, kernels and decisions, and times nothing. Arguments and errors as in ``diagnose``."""
    if example_input is None:
        raise UsageError(
            "cannot diagnose a model without an example input: expected as the second argument a tensor, a tuple of "
            "positional arguments, or a dict of keyword arguments"
        )
    _check(mode, None, None, None)
    listed = _listed(configurations, (str, Configuration), "configuration", _A_CONFIGURATION)
    request = Request(mode=mode, configurations=choose_configurations(listed, mode), is_timed=False)
    return diagnose_object(model, example_input, request, Watch(lambda progress: None))


def diagnose_object(
    model: Callable[..., Any],
    example_input: Any,
    request: Request,
    watch: Watch,
    rules: Sequence[Rule] | None = None,
) -> Diagnosis:
    """Diagnoses a model object; raises the errors of ``diagnose``."""
    with needs_torch():  # imported here, because the command's process does not import torch
        from layoutdoctor.measure.memory import release_memory
        from layoutdoctor.subjects.subject import subject_from_python
        from layoutdoctor.subjects.transport import save_subject
    subject = subject_from_python(model, example_input)
    release_memory()  # the workers need the memory that this process's allocators hold in reserve
    launcher = kept_launcher()
    with launcher.folder() as directory:
        save_subject(subject, directory)
        request = msgspec.structs.replace(request, subject_directory=str(directory))
        return diagnose_request(launcher, request, watch, rules)


def diagnose_request(
    launcher: Launcher, request: Request, watch: Watch, rules: Sequence[Rule] | None = None
) -> Diagnosis:
    """
    Makes the diagnosis for a request, findings included.

    Raises:
        LayoutDoctorError: The subject cannot be loaded, or does not run in eager mode.
    """
    watch.begin("loading the model")
    with launcher.folder() as folder:
        eager = Eager(launcher, request)
        try:
            watch.loaded_files = eager.host.loaded.files
            watch.begin("running the model in eager mode")
            eager.run_first()
            recordings = _recorded(launcher, eager, request, watch)
        finally:
            eager.host.end()
        watch.begin("looking for findings")
        diagnosis = diagnose_recordings(watch.finished(recordings), rules)
        if request.package is not None:
            note = _keep_package(diagnosis, folder, Path(request.package))
            subject = msgspec.structs.replace(diagnosis.subject, notes=(*diagnosis.subject.notes, note))
            diagnosis = msgspec.structs.replace(diagnosis, subject=subject)
    return diagnosis


def _keep_package(diagnosis: Diagnosis, folder: Path, file: Path) -> str:
    """Copies the best package to the caller's file. Returns a note: what the file holds, or why it was not written."""
    name = package_to_keep(diagnosis)
    if name is None:
        return f"{file.name} was not written: AOTInductor compiled no configuration with right outputs"
    try:
        with replacing(file) as kept, package_file(folder, name).open("rb") as made:
            shutil.copyfileobj(made, kept)
    except OSError as error:  # the diagnosis is complete without the package
        return f"{file.name} was not written: {error.strerror or error}"
    return f"{file.name} holds {name_in_words(name)}, for inputs in the memory format of that configuration"


def _recorded(launcher: Launcher, eager: Eager, request: Request, watch: Watch) -> Sequence[Recording]:
    if not eager.may_convolve and request.lower_for is None:
        return _not_tried(eager.head, request)
    if request.lower_for is not None:
        eager.host.end()  # no outputs are compared
    elif eager.on_gpu:
        eager.wait()  # the workers need the GPU memory of this process
    host = eager.host
    if host.loaded.forks:
        watch.begin("loading the model")
        host = launcher.load(request)
    given = host.loaded.compile_arguments
    tried = tuple(
        msgspec.structs.replace(compiled_with(configuration, given), input_uses=eager.input_uses)
        for configuration in request.configurations
    )
    if request.package is not None:
        tried = by_aot_inductor(tried, given)
    request = msgspec.structs.replace(request, configurations=tried)
    run = Run(host, eager, request, watch)
    try:
        run.go()
    except BaseException:  # an interrupted diagnosis keeps the recordings so far
        run.show()
        raise
    finally:
        run.end()
        host.end()
    return run.recordings()


def _not_tried(head: Head, request: Request) -> Sequence[Recording]:
    """Returns a recording with status ``skipped`` for each configuration, because the model has no convolution."""
    subject = msgspec.structs.replace(head.subject, convolution_module_count=0)
    names = tuple(configuration.name for configuration in request.configurations)
    head = msgspec.structs.replace(head, subject=subject, configurations=names)
    trials = (Observed(configuration=configuration, status="skipped") for configuration in request.configurations)
    return [Recording(head=head, trial=trial) for trial in trials]


def _check(mode: object, budget_seconds: object, progress: object, timeout_seconds: object) -> None:
    if mode not in ("inference", "training"):
        raise UsageError(f"cannot diagnose in mode {mode!r}: expected inference or training")
    bound = 1.0 if budget_seconds is None else budget_seconds
    if not isinstance(bound, Real) or not 0 < float(bound) < math.inf:
        raise UsageError(f"cannot measure within {budget_seconds!r} seconds: expected a budget above 0, such as 30")
    if progress is not None and not callable(progress):
        raise UsageError(f"cannot use {progress!r} as progress: expected a function, or None")
    if timeout_seconds is not None and (not isinstance(timeout_seconds, Real) or not float(timeout_seconds) > 0):
        raise UsageError(
            f"cannot limit a configuration to {timeout_seconds!r} seconds: expected a number above 0, such as 600"
        )


_A_CONFIGURATION = "a name such as 'inductor', 'default' or 'all', a Configuration, or a list of these"
_A_RULE = "Rule values, such as those in ALL_RULES"


def _listed(values: object, kinds: tuple[type, ...], kind: str, expected: str) -> tuple[Any, ...]:
    listed = tuple(values) if isinstance(values, Iterable) and not isinstance(values, kinds) else (values,)
    wrong = [value for value in listed if not isinstance(value, kinds)]
    if wrong:
        raise UsageError(f"cannot use {wrong[0]!r} as a {kind}: expected {expected}")
    return listed
