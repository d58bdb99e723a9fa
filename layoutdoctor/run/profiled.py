"""Runs a script under ``profile()``. Each step is a step of the script's optimizer, or a call of one of its modules."""

from __future__ import annotations

import contextlib
import functools
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import nn
from torch.optim.optimizer import register_optimizer_step_post_hook

from layoutdoctor.errors import SubjectError
from layoutdoctor.files.writing import RECORDING_SUFFIX
from layoutdoctor.recording.saved import save_recording
from layoutdoctor.run.in_process import Profile
from layoutdoctor.run.program import Recorded, modules_called, run_as_main
from layoutdoctor.workers.program import Outcome

if TYPE_CHECKING:
    from layoutdoctor.workers.program import Asked

_RECORDING = f"steps{RECORDING_SUFFIX}"


def profiled(script: Path, arguments: Sequence[str], asked: Asked, path: str | None, directory: Path) -> Outcome:
    """
    Runs a script, records some of its steps, and saves the recording in a file.

    Args:
        path: The module whose calls are steps, such as ``model.encoder``. None takes the steps of the optimizer or,
            without an optimizer, the calls of the module that takes the longest time.
        directory: Folder for the recording.

    Raises:
        SubjectError: The script failed before anything was recorded.
        TraceError: The graphs and the trace could not be joined to a recording.
    """
    assert asked.steps is not None
    profile = Profile(asked.steps, name=script.name)
    steps = _Steps(profile, path, ends=asked.ends)
    message = None
    try:
        how = run_as_main(script, arguments, steps.watching())
    except SubjectError as error:
        if not profile.kept_count:
            raise
        message = str(error)
    else:
        if not profile.kept_count:
            message = f"{script.name} {how} after {profile.step_count} steps: too few to record a warm step"
    save_recording(profile.recording, directory / _RECORDING)
    return Outcome(message=message, recording=_RECORDING)


class _Steps:
    """
    Ends a step of a profile whenever a step of the script has ended.

    Attributes:
        profile: The profile; its block is open while the script is watched.

    Args:
        ends: Whether the script is ended once enough steps are recorded.
    """

    def __init__(self, profile: Profile, path: str | None, *, ends: bool) -> None:
        self.profile = profile
        self._path, self._ends = path, ends
        self._optimizer: torch.optim.Optimizer | None = None
        self._depth = 0
        self._seconds: dict[int, float] = {}  # total time of each module, without its first call, which warms up
        self._modules: list[nn.Module] = []  # kept alive, so that no id is used again
        self._busiest: int | None = None

    @contextlib.contextmanager
    def watching(self) -> Iterator[None]:
        """A block in which the script's steps are watched; compiled code stays compiled."""
        call, seen = nn.Module.__call__, self._call

        # torch.profiler's Python tracer takes the local variable "self" of this function as the called module.
        @functools.wraps(call)
        def watched(self: nn.Module, *args: Any, **kwargs: Any) -> Any:
            # A call that dynamo traces is not a call of the script; the branch leaves nothing in the graph.
            if torch.compiler.is_compiling():
                return call(self, *args, **kwargs)
            return seen(self, functools.partial(call, self, *args, **kwargs))

        hook = register_optimizer_step_post_hook(self._stepped) if self._path is None else None
        nn.Module.__call__ = watched
        try:
            with self.profile:
                yield
        finally:
            nn.Module.__call__ = call
            if hook is not None:
                hook.remove()

    def _call(self, module: nn.Module, go_on: Callable[[], Any]) -> Any:
        if self._optimizer is not None or self._depth or not self.profile.is_here:
            return go_on()
        if self._path is not None:
            is_wanted = any(found is module for found in modules_called(self._path))
            result = go_on()
            if is_wanted:
                self._step()
            return result
        self._depth, begin = 1, time.perf_counter()
        try:
            result = go_on()
        finally:
            self._depth = 0
            if id(module) in self._seconds:
                self._seconds[id(module)] += time.perf_counter() - begin
            else:
                self._modules.append(module)
                self._seconds[id(module)] = 0.0
        is_forward_of_training = module.training and torch.is_grad_enabled()
        if self._seconds[id(module)] == max(self._seconds.values()) and not is_forward_of_training:
            if self._busiest != id(module):  # the step that ends here began with a call of another module
                self._busiest = id(module)
                self.profile.leave_out()
            self._step()
        return result

    def _stepped(self, optimizer: torch.optim.Optimizer, *_: object) -> None:
        if not self.profile.is_here:
            return
        self._optimizer = self._optimizer or optimizer
        if self._optimizer is optimizer:
            self._step()

    def _step(self) -> None:
        self.profile.step()
        if self._ends and self.profile.has_enough:
            raise Recorded
