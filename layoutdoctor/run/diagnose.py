"""
``diagnose()``: the whole story on one page.

Load the subject and run it in eager mode. If it has a convolution, a ``Run`` compiles every configuration in a worker
of its own, and times and profiles them. Examine the recordings, run the rules. This process compiles nothing, runs no
model, and changes nothing of the caller's.
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
    Finds out under which layout configuration a model is fastest, and what the conversions between layouts cost.

    The model travels to processes of layoutdoctor's own, by cloudpickle. This process compiles nothing.

    Args:
        model: An nn.Module or any callable; it is not changed. A compiled model is unwrapped.
        example_input: A Tensor, a tuple of positional or a dict of keyword arguments, such as images ``[N, C, H, W]``;
            or what ``record_inputs`` kept of a call of the model.
        mode: ``inference`` (eval mode, no gradients) or ``training`` (forward, backward of a scalar loss).
        configurations: ``default``, ``quick``, ``all``, names, or Configuration values.
        rules: Rules to run; None for all.
        lower_for: A GPU that is not there, such as ``cuda:90``: the graphs are traced on the CPU and lowered for it,
            and nothing is measured. None measures where the model is.
        target: Another name of ``lower_for``.
        compile_kwargs: Arguments of ``torch.compile`` that the model is compiled with today: ``mode``, ``dynamic``,
            ``fullgraph``, ``options``. They hold in every configuration, save what it decides itself. None for those of
            a model that is compiled already.
        package: A ``.pt2`` file: what the configurations compile is compiled by AOTInductor, beside torch.compile's
            default, and the best package is kept there (for ``torch._inductor.aoti_load_package``). Inference only.
        budget_seconds: For rounds and starts. None: as long as compiling took, at least 10 s, at most 60 s.
        progress: Called with a ``Progress`` at every step; None shows a line in a notebook and on a terminal, which is
            gone at the end.
        timeout_seconds: How long one configuration may take; None for half an hour, infinity for no limit.

    Returns:
        The record; ``print`` it for the report.

    Raises:
        UsageError: An argument is wrong.
        SubjectError: The model does not run on the example input in eager mode.
        TransportError: The model cannot travel to another process; the message names what cannot.
    """
    _check(mode, budget_seconds, progress, timeout_seconds)
    listed = _listed(configurations, (str, Configuration), "configuration", _A_CONFIGURATION)
    chosen = choose_configurations(listed[0] if isinstance(configurations, str) else listed, mode)
    rules = None if rules is None else _listed(rules, (Rule,), "rule", _A_RULE)
    lower_for = target if lower_for is None else lower_for
    if lower_for is not None:
        find_gpu(lower_for)  # before the model is looked at
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
    model: Callable[..., Any], example_input: Any, *, mode: Mode, configurations: Iterable[str | Configuration]
) -> Diagnosis:
    """A diagnosis without times: conversions, kernels and decisions; arguments and errors are those of ``diagnose``."""
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
    """The diagnosis of a model that the caller holds; raises as ``diagnose`` does."""
    with needs_torch():  # late, as the command's process has no torch
        from layoutdoctor.measure.memory import release_memory
        from layoutdoctor.subjects.subject import subject_from_python
        from layoutdoctor.subjects.transport import save_subject
    subject = subject_from_python(model, example_input)
    release_memory()  # what this process's allocators keep for later is room for the workers
    launcher = kept_launcher()
    with launcher.folder() as directory:
        save_subject(subject, directory)
        request = msgspec.structs.replace(request, subject_directory=str(directory))
        return diagnose_request(launcher, request, watch, rules)


def diagnose_request(
    launcher: Launcher, request: Request, watch: Watch, rules: Sequence[Rule] | None = None
) -> Diagnosis:
    """
    The diagnosis that a request asks for, findings included.

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
            eager.end()
        watch.begin("looking for findings")
        diagnosis = diagnose_recordings(watch.finished(recordings), rules)
        if request.package is not None:
            note = _keep_package(diagnosis, folder, Path(request.package))
            subject = msgspec.structs.replace(diagnosis.subject, notes=(*diagnosis.subject.notes, note))
            diagnosis = msgspec.structs.replace(diagnosis, subject=subject)
    return diagnosis


def _keep_package(diagnosis: Diagnosis, folder: Path, file: Path) -> str:
    """Copies the best package to where the caller wants it; a note that says which one it is, or why there is none."""
    name = package_to_keep(diagnosis)
    if name is None:
        return f"{file.name} was not written: AOTInductor compiled no configuration with right outputs"
    try:
        with replacing(file) as kept, package_file(folder, name).open("rb") as made:
            shutil.copyfileobj(made, kept)
    except OSError as error:  # the diagnosis is as good without it
        return f"{file.name} was not written: {error.strerror or error}"
    return f"{file.name} holds {name_in_words(name)}, for inputs in the memory format of that configuration"


def _recorded(launcher: Launcher, eager: Eager, request: Request, watch: Watch) -> Sequence[Recording]:
    if not eager.may_convolve and request.lower_for is None:
        return _not_tried(eager.head, request)
    if request.lower_for is not None:
        eager.end()  # nothing is compared
    elif eager.on_gpu:
        eager.wait()  # its memory is needed
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
    except BaseException:  # also what was seen of a diagnosis that is interrupted is kept
        run.show()
        raise
    finally:
        run.end()
        host.end()
    return run.recordings()


def _not_tried(head: Head, request: Request) -> Sequence[Recording]:
    """Recordings of a model without convolution, for which nothing is compiled."""
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


_A_CONFIGURATION = "a name such as 'inductor', 'default', 'all', or a Configuration, or several of them"
_A_RULE = "Rule values, such as those in ALL_RULES"


def _listed(values: object, kinds: tuple[type, ...], kind: str, expected: str) -> tuple[Any, ...]:
    listed = tuple(values) if isinstance(values, Iterable) and not isinstance(values, kinds) else (values,)
    wrong = [value for value in listed if not isinstance(value, kinds)]
    if wrong:
        raise UsageError(f"cannot use {wrong[0]!r} as a {kind}: expected {expected}")
    return listed
