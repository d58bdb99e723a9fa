"""The inputs that a module of some program really gets: kept while that program runs, to be diagnosed with."""

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
    One call of a module, as it came: give it to ``diagnose`` in place of an example input.

    Attributes:
        args: Positional arguments; copies, with the strides that they had. ``kwargs`` likewise.
        call: The number of the call, from 1 on; 0 before the first.
        call_count: How often the module was called; of one of several ``kinds``, with inputs of these shapes.
        kinds: With ``call="each"`` the first call of each kind, that is, of each set of input shapes.
        autocast: The dtype of autocast around it, such as ``bfloat16``; None without autocast.
        device: The device of its first tensor, such as ``cuda``; the CPU without a tensor.
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
        The inputs of the call that is under way.

        Raises:
            SubjectError: They cannot be copied.
        """
        try:
            tensors = input_tensors(args, kwargs)
            device = tensors[0].device.type if tensors else "cpu"
            dtype = torch.get_autocast_dtype(device) if torch.is_autocast_enabled(device) else None
            with torch.inference_mode(mode=False):  # a tensor made in that mode could never be trained on
                args, kwargs = copy_inputs(args, kwargs)
        except Exception as error:  # whatever a tensor's own class raises
            why = f"they cannot be copied: {first_line(error)}"
            raise SubjectError(f"cannot record the inputs of {name}: {why}") from error
        autocast = None if dtype is None else str(dtype).removeprefix("torch.")
        return cls(args, kwargs, number, number, autocast, device)


def shapes_of_call(args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[tuple[int, ...], ...]:
    """The shapes of the tensors that a call gets: calls with the same shapes are of one kind."""
    return tuple(tuple(tensor.shape) for tensor in input_tensors(args, kwargs))


_watchers: list[OnCall] = []
_watching = contextlib.ExitStack()
_lock = threading.Lock()


@contextlib.contextmanager
def watched_calls(on_call: OnCall) -> Iterator[None]:
    """
    A block in which every call of a module is watched; compiled callers run eagerly, or they would hide it.

    No module holds anything of this, so that it can be copied, saved and scripted meanwhile.

    Args:
        on_call: Gets the module, its positional and keyword arguments, and what carries out the call.
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
    """Begins it, for all threads: a stance of torch.compile holds in all of them."""
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
    Keeps the inputs of a module while the program around it runs; compiled callers run eagerly meanwhile.

    Args:
        module: A module of any program, such as ``pipe.vae.decoder``; of a compiled one the module inside.
        call: Which call to keep, from 1 on; ``largest`` keeps the first with the most elements. ``each`` also keeps the
            first of each kind, up to 64, as ``kinds`` of the result: diagnose each, and ``make_policy`` with their
            ``call_count`` as weights.

    Raises:
        UsageError: It is no module, or there is no such call.
        SubjectError: At the end: the module was not called, or not so often, or its inputs cannot be copied.
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
        why = f"it was {times}; a call of its .forward() is none: expected module(...)"
        raise next(iter(recorder.problems), SubjectError(f"cannot record the inputs of {recorder.name}: {why}"))


class _Recorder:
    """Keeps what ``record_inputs`` is to keep."""

    def __init__(self, module: nn.Module, call: int | Literal["largest", "each"]) -> None:
        self._module, self._call, self.name = module, call, type(module).__name__
        self.recorded = RecordedInputs()
        self.problems: list[SubjectError] = []
        self._kinds: dict[object, RecordedInputs] = {}
        self._most = -1
        self._here, self._lock = threading.local(), threading.Lock()

    def keep(self, called: nn.Module, inputs: Inputs, go_on: Callable[[], Any]) -> Any:
        """Looks at a call, and carries it out."""
        if getattr(called, "_orig_mod", called) is not self._module or getattr(self._here, "is_inside", False):
            return go_on()
        with self._lock:
            self.recorded.call_count += 1
            try:
                self._look_at(*inputs)
            except Exception as error:  # nothing of this may end the caller's program
                self.problems.append(error if isinstance(error, SubjectError) else SubjectError(first_line(error)))
        self._here.is_inside = True  # a compiled module calls the one inside
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
    """A module as it was called: under autocast."""

    def __init__(self, module: nn.Module, device: str, dtype: str) -> None:
        super().__init__()
        self.module = module
        self.device_type = device
        self.dtype_name = dtype

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """What the module gives under autocast."""
        with torch.autocast(self.device_type, dtype=getattr(torch, self.dtype_name)):
            return self.module(*args, **kwargs)


def as_called(module: Any, recorded: RecordedInputs) -> tuple[Any, tuple[str, ...]]:
    """The module as it was called, and notes on that."""
    of_how_many = f" of {recorded.call_count}" if recorded.call_count > 1 else ""
    notes = [f"inputs as recorded: call {recorded.call}{of_how_many}"]
    if recorded.autocast is None or not isinstance(module, nn.Module):
        return module, tuple(notes)
    notes.append(f"runs under autocast ({recorded.autocast}), as it was called")
    return UnderAutocast(module, recorded.device, recorded.autocast), tuple(notes)


def part_with_inputs(
    model: Any, args: tuple[Any, ...], kwargs: dict[str, Any], path: str
) -> tuple[nn.Module, RecordedInputs]:
    """
    A module inside a model with the inputs that it gets when the model runs once, in eval mode and without gradients.

    Raises:
        UsageError: There is no such module.
        SubjectError: The model does not run, or does not call it.
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
        raise SubjectError(f"cannot run the model to see what {path!r} gets: {first_line(error)}") from error
    finally:
        for module, was_training in modes:
            module.training = was_training
    return part, recorded


def submodule_of(model: Any, path: str) -> nn.Module:
    """
    A module inside a model.

    Raises:
        UsageError: The model is no module, or has none of that path.
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
    hint = f"those with convolutions are {shown}" if shown else "no module of it holds a convolution"
    raise UsageError(f"cannot find the module {path!r}: {hint}")


def convolution_module_count(module: nn.Module) -> int:
    """How many nn.Conv* modules there are in a module, itself included."""
    return sum(isinstance(part, nn.modules.conv._ConvNd) for part in module.modules())
