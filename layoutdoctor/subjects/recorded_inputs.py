"""Records the inputs that a module gets while a program runs, for use as the inputs of a diagnosis."""

from __future__ import annotations

import contextlib
import difflib
import functools
import math
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Literal

import torch
from torch import nn

from layoutdoctor.errors import LayoutDoctorError, SubjectError, UsageError, first_line
from layoutdoctor.subjects.copies import copy_inputs, input_tensors
from layoutdoctor.words import count_of, shape_words

if TYPE_CHECKING:
    Inputs = tuple[tuple[Any, ...], dict[str, Any]]
    OnCall = Callable[[nn.Module, Inputs, Callable[[], Any]], Any]

MOST_SHOWN = 8
MOST_KINDS = 64


@dataclass(repr=False)
class RecordedInputs:
    """
    The inputs of one call of a module, which ``diagnose`` takes as an example input.

    Attributes:
        args: Copies of the positional arguments, with their strides.
        kwargs: Copies of the keyword arguments, with their strides.
        call: Number of the recorded call, from 1; 0 before a call is recorded.
        call_count: Number of calls of the module. In an entry of ``kinds``, only the calls of this kind count.
        kinds: The first call of each kind if ``record_inputs`` got ``each``. Calls of one kind have equal input shapes.
        autocast: Dtype of the autocast around the call, such as ``bfloat16``; None without autocast.
        device: Device type of the first tensor, such as ``cuda``; ``cpu`` without a tensor.
    """

    args: tuple[Any, ...] = ()
    kwargs: dict[str, Any] = field(default_factory=dict)
    call: int = 0
    call_count: int = 0
    autocast: str | None = None
    device: str = "cpu"
    kinds: list[RecordedInputs] = field(default_factory=list)

    def __repr__(self) -> str:
        tensors = input_tensors(self.args, self.kwargs)
        found = [f"{shape_words(tensor.shape)} {str(tensor.dtype).removeprefix('torch.')}" for tensor in tensors]
        calls = f"call {self.call}, called {count_of(self.call_count, 'time')}"
        kinds = f", {count_of(len(self.kinds), 'kind')} of calls" if self.kinds else ""
        return f"<{type(self).__name__}: {', '.join(found)}; {calls}{kinds}>"

    @classmethod
    def of_call(cls, args: tuple[Any, ...], kwargs: dict[str, Any], name: str, number: int = 1) -> RecordedInputs:
        """
        Copies the inputs of the current call and records the current autocast.

        Raises:
            SubjectError: The inputs cannot be copied.
        """
        try:
            tensors = input_tensors(args, kwargs)
            device = tensors[0].device.type if tensors else "cpu"
            is_autocast = torch.is_autocast_enabled(device)
            autocast = str(torch.get_autocast_dtype(device)).removeprefix("torch.") if is_autocast else None
            with torch.inference_mode(mode=False):  # autograd could not use a tensor made in inference mode
                args, kwargs = copy_inputs(args, kwargs)
        except Exception as error:  # a tensor subclass may raise anything
            why = f"they cannot be copied: {first_line(error)}"
            raise SubjectError(f"cannot record the inputs of {name}: {why}") from error
        return cls(args, kwargs, number, number, autocast, device)


def shapes_of_call(args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[tuple[int, ...], ...]:
    """Returns the shapes of the tensors in a call's arguments; calls with equal shapes are of one kind."""
    return tuple(tuple(tensor.shape) for tensor in input_tensors(args, kwargs))


_watchers: list[OnCall] = []
_watching = contextlib.ExitStack()
_lock = threading.Lock()


@contextlib.contextmanager
def watched_calls(on_call: OnCall) -> Iterator[None]:
    """
    A block in which every call of any module is watched.

    Compiled code runs eagerly in the block, because calls inside compiled code could not be seen. The modules
    themselves are not changed, so that they can still be copied, saved and scripted.

    Args:
        on_call: Called with the module, its positional and keyword arguments, and a function that carries out the call.
    """
    with _lock:
        if not _watchers:
            _watch_calls()
        _watchers.append(on_call)
    try:
        yield
    finally:
        with _lock:
            _watchers.remove(on_call)
            if not _watchers:
                _watching.close()


def _watch_calls() -> None:
    """Begins to watch the calls of all threads; makes compiled code of all threads run eagerly."""
    call = nn.Module.__call__

    @functools.wraps(call)
    def watched(module: nn.Module, *args: Any, **kwargs: Any) -> Any:
        go_on = functools.partial(call, module, *args, **kwargs)
        for on_call in tuple(_watchers):
            go_on = functools.partial(on_call, module, (args, kwargs), go_on)
        return go_on()

    _watching.enter_context(torch.compiler.set_stance("force_eager"))
    nn.Module.__call__ = watched
    _watching.callback(setattr, nn.Module, "__call__", call)


@contextlib.contextmanager
def record_inputs(module: nn.Module, *, call: int | Literal["largest", "each"] = "largest") -> Iterator[RecordedInputs]:
    """
    Records the inputs of a module while a program runs in the block; compiled code runs eagerly in the block.

    Args:
        module: A module of any program, such as ``pipe.vae.decoder``; a compiled module is also accepted.
        call: The call to record: its number, from 1; or ``largest``, the first call with the most input elements.
            ``each`` records the largest call, and in ``kinds`` the first call of each kind, up to 64 kinds. Diagnose
            each kind and pass the diagnoses to ``make_policy``, with ``call_count`` as weights.

    Raises:
        UsageError: ``module`` is no nn.Module, or ``call`` has another value.
        SubjectError: At the end of the block: the module was not called, or not often enough, or its inputs cannot be
            copied.
    """
    inner = getattr(module, "_orig_mod", module)
    if not isinstance(inner, nn.Module):
        raise UsageError(f"cannot record the inputs of a {type(module).__name__}: expected an nn.Module")
    if call not in ("largest", "each") and (not isinstance(call, int) or call < 1):
        raise UsageError(f"cannot record call {call!r}: expected 'largest', 'each' or a number from 1 on")
    recorder = _Recorder(inner, call)
    with watched_calls(recorder.keep):
        yield recorder.recorded
    if call == "each" and recorder.problems:
        raise recorder.problems[0]
    if not recorder.recorded.call:
        count = recorder.recorded.call_count
        times = f"called {count_of(count, 'time')}" if count else "not called"
        why = f"it was {times}; calling its .forward() directly is not seen: expected module(...)"
        raise next(iter(recorder.problems), SubjectError(f"cannot record the inputs of {recorder.name}: {why}"))


class _Recorder:
    """Records the calls that ``record_inputs`` asks for."""

    def __init__(self, module: nn.Module, call: int | Literal["largest", "each"]) -> None:
        self._module, self._call, self.name = module, call, type(module).__name__
        self.recorded = RecordedInputs()
        self.problems: list[SubjectError] = []
        self._kinds: dict[object, RecordedInputs] = {}
        self._most = -1
        self._here, self._lock = threading.local(), threading.Lock()

    def keep(self, called: nn.Module, inputs: Inputs, go_on: Callable[[], Any]) -> Any:
        """Records a call if it is wanted, and carries it out."""
        if getattr(called, "_orig_mod", called) is not self._module or getattr(self._here, "is_inside", False):
            return go_on()
        with self._lock:
            self.recorded.call_count += 1
            try:
                self._look_at(*inputs)
            except Exception as error:  # no error here may end the caller's program
                self.problems.append(error if isinstance(error, SubjectError) else SubjectError(first_line(error)))
        self._here.is_inside = True  # a compiled module calls its original, which is no further call
        try:
            return go_on()
        finally:
            self._here.is_inside = False

    def _look_at(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        shapes, number = shapes_of_call(args, kwargs), self.recorded.call_count
        size = sum(map(math.prod, shapes))
        if shapes in self._kinds:
            self._kinds[shapes].call_count += 1
        elif self._call == "each" or (size > self._most if self._call == "largest" else number == self._call):
            if len(self._kinds) == MOST_KINDS:
                return
            found = RecordedInputs.of_call(args, kwargs, self.name, number)
            if self._call == "each":
                self._kinds[shapes] = replace(found, call_count=1)
            if self._call != "each" or size > self._most:
                vars(self.recorded).update({**vars(found), "call_count": number})
                self._most = size
            self.recorded.kinds = list(self._kinds.values())


class UnderAutocast(nn.Module):
    """Runs a module under autocast, as its recorded call ran."""

    def __init__(self, module: nn.Module, device: str, dtype: str) -> None:
        super().__init__()
        self.module = module
        self.device_type = device
        self.dtype_name = dtype

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """Calls the module under autocast."""
        with torch.autocast(self.device_type, dtype=getattr(torch, self.dtype_name)):
            return self.module(*args, **kwargs)


def as_called(module: Any, recorded: RecordedInputs) -> tuple[Any, tuple[str, ...]]:
    """Returns the module, which runs under autocast if the recorded call did, and notes on the recorded inputs."""
    of_how_many = f" of {recorded.call_count}" if recorded.call_count > 1 else ""
    notes = [f"inputs as recorded: call {recorded.call}{of_how_many}"]
    if recorded.autocast is None or not isinstance(module, nn.Module):
        return module, tuple(notes)
    notes.append(f"runs under autocast ({recorded.autocast}), as in the recorded call")
    return UnderAutocast(module, recorded.device, recorded.autocast), tuple(notes)


def part_with_inputs(
    model: Any, args: tuple[Any, ...], kwargs: dict[str, Any], path: str
) -> tuple[nn.Module, RecordedInputs]:
    """
    Finds a module inside a model, and records its inputs while the model runs once in eval mode, without gradients.

    Raises:
        UsageError: The model has no such module.
        SubjectError: The model does not run, or does not call the module.
    """
    part = submodule_of(model, path)
    modes = [(module, module.training) for module in model.modules()]
    try:
        model.eval()
        with record_inputs(part) as recorded, torch.no_grad():
            model(*args, **kwargs)
    except LayoutDoctorError:
        raise
    except Exception as error:
        raise SubjectError(f"cannot run the model to record the inputs of {path!r}: {first_line(error)}") from error
    finally:
        for module, was_training in modes:
            module.training = was_training
    return part, recorded


def submodule_of(model: Any, path: str) -> nn.Module:
    """
    Finds a module inside a model.

    Raises:
        UsageError: The model is no nn.Module, or has no module with this path.
    """
    if not isinstance(model, nn.Module):
        raise UsageError(
            f"cannot take --module {path!r}: the target is a {type(model).__name__}, expected an nn.Module"
        )
    found = {name: module for name, module in model.named_modules() if name}
    if path in found:
        return found[path]
    near = difflib.get_close_matches(path, found, n=3) or [name for name in found if name.endswith(f".{path}")][:3]
    if near:
        raise UsageError(f"cannot find the module {path!r}: did you mean {' or '.join(map(repr, near))}?")
    counts = {name: convolution_module_count(module) for name, module in found.items() if name.count(".") < 2}
    most = sorted((name for name in counts if counts[name]), key=lambda name: -counts[name])[:MOST_SHOWN]
    shown = ", ".join(f"{name} ({counts[name]})" for name in most)
    hint = f"modules with the most convolutions: {shown}" if shown else "no module of the model holds a convolution"
    raise UsageError(f"cannot find the module {path!r}: {hint}")


def convolution_module_count(module: nn.Module) -> int:
    """Counts the nn.Conv* modules in a module, itself included."""
    return sum(isinstance(part, nn.modules.conv._ConvNd) for part in module.modules())
