"""Runs the model in eager mode: checks that it runs, and computes the reference for the outputs of all trials."""

from __future__ import annotations

import contextlib
import traceback
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple
from unittest import mock

import torch
from torch import nn
from torch.utils import _pytree as pytree

from layoutdoctor.capture.fx_graph import is_user_file
from layoutdoctor.capture.retarget import fake_tensors
from layoutdoctor.diagnosis import Layout
from layoutdoctor.errors import LayoutDoctorError, SubjectError, first_line
from layoutdoctor.measure.equivalence import Part, Reference, named, reference_tensor, why_random
from layoutdoctor.measure.memory import out_of_memory, release_memory
from layoutdoctor.subjects.copies import copy_model, input_tensors
from layoutdoctor.subjects.step import FIRST_CALL_SEED, Step
from layoutdoctor.subjects.subject import device_of, owned_module, set_mode
from layoutdoctor.words import joined, listing

if TYPE_CHECKING:
    from layoutdoctor.diagnosis.subject import Mode
    from layoutdoctor.subjects.subject import LoadedSubject

_FAST_FLOAT64 = {(6, 0), (7, 0), (8, 0), (9, 0), (10, 0)}
"""
Compute capabilities of GPUs whose multiprocessors do 32 or 64 float64 operations per clock; others do 2 or 4.

Source:
    CUDA C++ Programming Guide, throughput of native arithmetic instructions.
"""

FADED_NOTE = (
    "every output is 0 or nearly 0, so equal outputs prove nothing; if values fade out within the network, as with "
    "random weights, they become subnormal numbers, with which a CPU is many times slower; give the model trained "
    "weights"
)


Watching = Callable[[Callable[..., Any]], Callable[..., Any]]


class FirstRun(NamedTuple):
    """Outputs and gradients of the first eager iteration, by name and in main memory, with notes for the report."""

    tensors: dict[str, Part]
    output_layouts: tuple[Layout, ...]
    notes: tuple[str, ...]


def run_first(subject: LoadedSubject, mode: Mode, watch: Watching = lambda run: run) -> FirstRun:
    """
    Runs the first eager iteration.

    Args:
        watch: Function that wraps the model's call; the wrapper is called instead.

    Raises:
        SubjectError: The model raised; the error names the exception, the line in the user's file and the inputs.
    """
    with running_eagerly(subject):
        step = _step(_fresh(subject), mode)
        step.run = watch(step.run)
        results = step.results()
    floating = [output for output in results.outputs if output.is_floating_point() and output.numel()]
    faded = bool(floating) and all(bool((one.abs() < torch.finfo(one.dtype).tiny).all()) for one in floating)
    tensors = {name: one.cpu() for name, one in named(results).items()}
    return FirstRun(tensors, results.output_layouts, (*step.notes_on_run(), *([FADED_NOTE] if faded else [])))


def run_without_values(subject: LoadedSubject, mode: Mode, watch: Watching = lambda run: run) -> FirstRun | None:
    """
    Runs one eager iteration on fake tensors, which is fast for all sizes.

    Args:
        watch: Function that wraps the model's call; the wrapper is called instead.

    Returns:
        A result without tensors; None if the model fails on fake tensors.
    """
    fresh = _fresh(subject)
    with contextlib.suppress(Exception, SystemExit), fake_tensors():
        step = _step(fresh, mode)
        step.run = watch(step.run)
        step.results()
        return FirstRun({}, (), step.notes_on_run())
    return None


@contextlib.contextmanager
def running_eagerly(subject: LoadedSubject) -> Iterator[None]:
    """
    A block in which the model runs in eager mode; the model's exceptions become errors of one line.

    Raises:
        SubjectError: The model raised, or called ``sys.exit``.
    """
    try:
        yield
    except (LayoutDoctorError, KeyboardInterrupt, GeneratorExit):
        raise
    except BaseException as error:
        what = f"it called sys.exit({error.code!r})" if isinstance(error, SystemExit) else first_line(error)
        cure = "give inputs that the model accepts (--input, or example_input in Python)"
        if any(isinstance(value, (tuple, list, dict)) for value in subject.args):
            cure += "; a tuple holds positional arguments, a dict holds keyword arguments"
        devices = sorted({str(tensor.device) for tensor in all_tensors(subject)})
        if len(devices) > 1:
            cure = f"its weights and inputs are on {listing(devices)}: move all to one device"
        if shortage := out_of_memory(error):
            what, cure = shortage, "diagnose it on a machine with more memory, or with a smaller input"
        if isinstance(error, SystemExit):
            cure = "remove sys.exit() from the model's forward"
        raise SubjectError(
            f"cannot run {subject.name} on {describe_arguments(subject.args, subject.kwargs)}: {what}"
            f"{_place(error, subject.source)}; {cure}"
        ) from error


def describe_arguments(args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> str:
    """Describes arguments in short, such as ``float32[8, 3, 224, 224], mask=bool[1, 8]``."""
    named = [f"{name}={_describe_argument(value)}" for name, value in kwargs.items()]
    return ", ".join([*map(_describe_argument, args), *named]) or "no arguments"


def _describe_argument(value: Any) -> str:
    if isinstance(value, torch.Tensor):
        return f"{str(value.dtype).removeprefix('torch.')}{list(value.shape)}"
    if isinstance(value, (bool, int, float, str, type(None))):
        return repr(value)
    return type(value).__name__


def _place(error: BaseException, source: str | None) -> str:
    """Returns where the model raised, such as `` (net.py:12, module encoder.0 (Conv2d))``; empty if not known."""
    frames = traceback.extract_tb(error.__traceback__)
    own = [frame for frame in frames if frame.filename == source]
    if not own:
        own = [frame for frame in frames if is_user_file(frame.filename)]
    line = f"{Path(own[-1].filename).name}:{own[-1].lineno}" if own else None
    where = joined((line, _module_of(error)), ", ")
    return f" ({where})" if where else ""


def _module_of(error: BaseException) -> str | None:
    """Names the innermost module in the traceback by its path in the outermost module; None if it has no such path."""
    selves = (frame.f_locals.get("self") for frame, _ in traceback.walk_tb(error.__traceback__))
    modules = [module for module in selves if isinstance(module, nn.Module)]
    if not modules or modules[-1] is modules[0]:
        return None
    names = {id(module): name for name, module in modules[0].named_modules()}
    name = names.get(id(modules[-1]))
    return f"module {name} ({type(modules[-1]).__name__})" if name else None


def compute_reference(subject: LoadedSubject, mode: Mode, first: FirstRun) -> Reference:
    """
    Computes the reference for outputs and gradients. Takes the tensors out of ``first``, to save memory.

    A second eager run with another seed shows whether the model is random. A model that is not random runs once more in
    a more exact dtype, and this run is the reference. The exact dtype is float64. On an NVIDIA GPU it is float32
    without TF32 if the GPU computes float64 slowly, or if the model computes in half precision or may use TF32. Without
    a more exact run, the first eager run is the reference: for a random model, for a model that computes in the exact
    dtype already, and if the exact run fails or its outputs have other shapes.

    Raises:
        SubjectError: The model raised in the run with another seed.
    """
    eager = first.tensors
    with running_eagerly(subject):
        random = why_random(eager, named(_step(_fresh(subject), mode, FIRST_CALL_SEED + 1).results()))
    device = _device_of(subject)
    given = [one.dtype for one in all_tensors(subject) if one.is_floating_point()]
    made = [part.dtype for part in eager.values() if part.dtype.is_floating_point]  # autocast makes half precision
    smallest = min((dtype.itemsize for dtype in (*given, *made)), default=8)
    tf32, dtype = may_use_tf32(device), _exact_dtype(device, smallest)
    name, exact, problem = str(dtype).removeprefix("torch."), None, ""
    notes: tuple[str, ...] = ()
    if not random and (tf32 or smallest < dtype.itemsize):
        try:
            exact = _run_exactly(subject, mode, dtype)
            if {key: one.shape for key, one in exact.items()} != {key: one.shape for key, one in eager.items()}:
                exact, problem = None, f"in {name} the model's outputs have other shapes"
        except (Exception, SystemExit) as error:  # a model may raise anything with another dtype
            shortage = out_of_memory(error)
            problem = shortage or first_line(error)
            if shortage:
                notes = (f"the outputs were compared with eager's, not with {name}'s: {shortage}",)
    has_yardstick = exact is not None
    if exact is None:  # also for a random model: another dtype would draw other numbers
        release_memory()
        of_outputs = [*made, *(part.dtype for part in eager.values())]
        name, exact = f"eager {str(of_outputs[0]).removeprefix('torch.')}", dict(eager)
    # Each tensor is released as soon as it is compared, so that memory does not hold all tensors twice.
    compared = {key: reference_tensor(key, exact.pop(key), eager.pop(key)) for key in list(eager)}
    return Reference(name, compared, first.output_layouts, tf32, random, problem, notes, has_yardstick)


def may_use_tf32(device: torch.device) -> bool:
    """Whether float32 convolutions or matrix products may be computed in TF32 on a device."""
    if device.type != "cuda" or torch.version.hip is not None or torch.cuda.get_device_capability(device) < (8, 0):
        return False
    try:
        return torch.backends.cudnn.allow_tf32 or torch.backends.cuda.matmul.allow_tf32
    except RuntimeError:  # torch has two interfaces for this setting, and the program has used both
        return True


def _exact_dtype(device: torch.device, smallest_bytes: int) -> torch.dtype:
    if device.type != "cuda" or torch.version.hip is not None:
        return torch.float64
    is_fast = torch.cuda.get_device_capability(device) in _FAST_FLOAT64
    return torch.float64 if is_fast and smallest_bytes > 2 and not may_use_tf32(device) else torch.float32


def _run_exactly(subject: LoadedSubject, mode: Mode, dtype: torch.dtype) -> dict[str, Part]:
    """Computes outputs and gradients in another dtype; raises any exception of the model."""

    def converted(leaf: Any) -> Any:
        if not isinstance(leaf, torch.Tensor) or not leaf.is_floating_point() or leaf.dtype == dtype:
            return leaf
        return leaf.detach().to(dtype).requires_grad_(leaf.requires_grad)

    fresh = _fresh(subject)
    owned_module(fresh).to(dtype)
    args, kwargs = pytree.tree_map(converted, (subject.args, subject.kwargs))
    if may_use_tf32(_device_of(subject)):
        torch.backends.cudnn.allow_tf32 = torch.backends.cuda.matmul.allow_tf32 = False
    with _without_autocast():
        return named(_step(replace(fresh, args=args, kwargs=kwargs), mode).results())


@contextlib.contextmanager
def _without_autocast() -> Iterator[None]:
    """A block in which autocast is off, even if the model enters autocast, which would make its results less exact."""
    enter = torch.autocast.__enter__

    def enter_disabled(self: torch.autocast) -> Any:
        self._enabled = False
        return enter(self)

    with mock.patch.object(torch.autocast, "__enter__", enter_disabled), contextlib.ExitStack() as stack:
        for device in {"cpu", "cuda"}:
            stack.enter_context(torch.autocast(device, enabled=False))
        yield


def _device_of(subject: LoadedSubject) -> torch.device:
    return torch.device(device_of(subject))


def all_tensors(subject: LoadedSubject) -> list[torch.Tensor]:
    """Returns the model's parameters and buffers, and the input tensors."""
    module = owned_module(subject)
    return [*module.parameters(), *module.buffers(), *input_tensors(subject.args, subject.kwargs)]


def _fresh(subject: LoadedSubject) -> LoadedSubject:
    """Copies the model, so that each run starts from the loaded state. A model that cannot be copied is used itself."""
    with contextlib.suppress(SubjectError):
        return replace(subject, model=copy_model(subject.model))
    return subject


def _step(subject: LoadedSubject, mode: Mode, seed: int = FIRST_CALL_SEED) -> Step:
    module = owned_module(subject)
    set_mode(module, mode)
    return Step(subject.model, module, subject.args, subject.kwargs, mode, first_seed=seed)
