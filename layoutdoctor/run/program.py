"""
Runs a user's script unchanged until one of its modules is called, and saves the module with the call's inputs.

Without a module's name, the script runs to its end, and its modules with convolutions are listed with their times.
"""

from __future__ import annotations

import atexit
import contextlib
import difflib
import functools
import os
import re
import runpy
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

import msgspec
import torch
from torch import nn

from layoutdoctor.capture.fx_graph import is_user_file
from layoutdoctor.errors import LayoutDoctorError, SubjectError, UsageError
from layoutdoctor.subjects.load import users_code
from layoutdoctor.subjects.recorded_inputs import (
    MOST_KINDS,
    RecordedInputs,
    as_called,
    convolution_module_count,
    shapes_of_call,
    watched_calls,
)
from layoutdoctor.subjects.subject import LoadedSubject, unwrap
from layoutdoctor.subjects.transport import save_subject
from layoutdoctor.words import listing, shape_words
from layoutdoctor.workers.program import Asked, KindOfCall, ModuleTime, Outcome

if TYPE_CHECKING:
    from contextlib import AbstractContextManager
    from types import FrameType

    Names = Mapping[str, Any]

_MOST_LISTED = 12
_LONGEST_END_SECONDS = 3.0
_INDEX = re.compile(r"\[['\"]?(\w+)['\"]?\]")


class Recorded(BaseException):
    """Raised within a script to end it once everything asked for is recorded."""


def run_as_main(script: Path, arguments: Sequence[str], watching: AbstractContextManager[object]) -> str:
    """
    Runs a script as ``python SCRIPT`` does, inside ``watching``; returns how it ended, such as ``came to its end``.

    Raises:
        SubjectError: The script failed.
    """
    file, how = str(script.resolve()), "came to its end"
    with users_code(script.name, Path(file).parent, file, "run"), watching:
        sys.argv = [str(script), *arguments]
        try:
            runpy.run_path(file, run_name="__main__")
        except Recorded:
            pass
        except SystemExit as stop:
            how = "came to its end" if stop.code in (None, 0) else f"ended with sys.exit({stop.code!r})"
    return how


def leave(outcome: Outcome, directory: Path) -> NoReturn:
    """Writes the outcome, calls what the script has registered with ``atexit``, and ends the process."""
    outcome.write(directory)
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(Exception):  # the script may have closed the stream
            stream.flush()
    with contextlib.suppress(BaseException):  # the script may have registered the removal of temporary folders
        atexit._run_exitfuncs()
    os._exit(0)  # does not wait for threads that the script has left


def main(words: Sequence[str]) -> NoReturn:
    """
    Runs the script and leaves the outcome in a file.

    Args:
        words: Path of a private directory, an ``Asked`` as JSON, path of the script, arguments of the script.
    """
    directory, asked, script = Path(words[0]), msgspec.json.decode(words[1], type=Asked), Path(words[2])
    path = None if asked.module is None else _INDEX.sub(r".\1", asked.module)
    try:
        if asked.steps is not None:
            from layoutdoctor.run.profiled import profiled  # imported only if it is needed

            outcome = profiled(script, words[3:], asked, path, directory)
        else:
            outcome = _Program(script, path, directory, asked.call_count).run(words[3:])
    except LayoutDoctorError as error:
        outcome = Outcome.of_error(error)
    leave(outcome, directory)


class _Program:
    """
    A script whose calls of modules are watched.

    Args:
        path: The wanted module, such as ``pipe.vae.decoder``; None lists the modules.
        directory: Folder in which the module is saved, once for each kind of call.
        call_count: Number of calls of the module after which the script is ended.
    """

    def __init__(self, script: Path, path: str | None, directory: Path, call_count: int = 1) -> None:
        self._script, self._path, self._directory, self._calls_left = script, path, directory, call_count
        self._kinds: dict[object, KindOfCall] = {}
        self._file = str(script.resolve())
        self._outcome: Outcome | None = None
        self._was_found = False
        self._owner = os.getpid()
        self._thread = threading.local()
        self._names: dict[int, tuple[str, nn.Module]] = {}  # keeps the modules alive, so that no id is used again
        self._looked_for: dict[int, nn.Module] = {}
        self._seconds: dict[int, list[float]] = {}
        self._at_the_latest = threading.Timer(_LONGEST_END_SECONDS, leave)  # for a script that catches Recorded
        self._at_the_latest.daemon = True

    def run(self, arguments: Sequence[str]) -> Outcome:
        """
        Runs the script; returns the saved calls of the wanted module, or the list of modules if no module is wanted.

        Raises:
            SubjectError: The script failed, or did not call the module.
            UsageError: The script has no such module.
        """
        begin = time.perf_counter()
        try:
            how = run_as_main(self._script, arguments, watched_calls(self._call))
        except SubjectError as error:
            if self._kinds:
                return self._recorded(str(error))
            before = "" if self._path is None else f"; {self._path} was not called until then"
            raise SubjectError(f"{error}{before}") from error
        finally:
            self._at_the_latest.cancel()
        if self._outcome is not None:
            return self._outcome
        if self._kinds:
            return self._recorded(f"{self._script.name} {how}")
        if self._path is None:
            return Outcome(modules=self._listed(time.perf_counter() - begin))
        raise self._never_called(self._path, how, arguments)

    def _call(self, module: nn.Module, inputs: tuple[tuple[Any, ...], dict[str, Any]], go_on: Callable[[], Any]) -> Any:
        if os.getpid() != self._owner:  # a process that the script forked
            return go_on()
        if self._outcome is not None:
            raise Recorded
        if self._path is not None and self._is_wanted(module, self._path):
            self._record(module, self._path, *inputs)
        is_outermost = not getattr(self._thread, "is_inside", False)
        if is_outermost:
            self._name(module)
        elif id(module) not in self._names or isinstance(module, nn.modules.conv._ConvNd):
            return go_on()
        self._thread.is_inside, begin = True, time.perf_counter()
        try:
            return go_on()
        finally:
            if self._path is None and torch.cuda.is_initialized():  # the list shows times
                torch.cuda.synchronize()
            self._seconds.setdefault(id(module), []).append(time.perf_counter() - begin)
            self._thread.is_inside = not is_outermost

    def _is_wanted(self, module: nn.Module, path: str) -> bool:
        for found in modules_called(path):
            self._was_found |= isinstance(found, nn.Module)
            if found is module:
                return True
        return False

    def _record(self, module: nn.Module, path: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """
        Saves the module with the inputs of a call, unless a call of the same kind was saved before.

        When no more calls are wanted or can be saved, an exception ends the script, which can still close its files.
        """
        self._calls_left -= 1
        try:
            shapes = shapes_of_call(args, kwargs)
            known = self._kinds.get(shapes)
            if known is not None:
                self._kinds[shapes] = msgspec.structs.replace(known, call_count=known.call_count + 1)
            elif len(self._kinds) == MOST_KINDS:
                self._outcome = self._recorded(f"{path} got more than {MOST_KINDS} kinds of inputs")
            else:
                self._kinds[shapes] = self._saved(module, path, args, kwargs)
            if self._calls_left == 0:
                self._outcome = self._recorded()
        except LayoutDoctorError as error:
            self._outcome = self._recorded(str(error)) if self._kinds else Outcome.of_error(error)
        if self._outcome is None:
            return
        if threading.current_thread() is not threading.main_thread():
            leave(self._outcome, self._directory)  # an exception would end this thread only
        self._at_the_latest.args = (self._outcome, self._directory)
        self._at_the_latest.start()
        raise Recorded

    def _recorded(self, why_no_more: str | None = None) -> Outcome:
        return Outcome(message=why_no_more, calls=tuple(self._kinds.values()))

    def _saved(self, module: nn.Module, path: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> KindOfCall:
        directory = self._directory / str(len(self._kinds))
        directory.mkdir(mode=0o700)
        inner, notes, compiled = unwrap(module)
        recorded = RecordedInputs.of_call(args, kwargs, path)
        called, more = as_called(inner, recorded)
        given, name = (recorded.args, recorded.kwargs), f"{self._script.name} ({path})"
        subject = LoadedSubject(name, called, *given, (*notes, *more), self._file, compiled)
        # The call's autocast and gradient modes are off here: the subject or the mode of the diagnosis sets them.
        without_autocast = torch.autocast(recorded.device, enabled=False)
        with torch.inference_mode(mode=False), torch.enable_grad(), without_autocast:
            save_subject(subject, directory)
        words = listing(map(shape_words, shapes_of_call(args, kwargs)), None)
        return KindOfCall(shapes=words, folder=directory.name)

    def _name(self, module: nn.Module) -> None:
        """
        Finds the script's name for a module, and for the modules around and inside it.

        If there are several names, scopes without any ``self.`` name come first, and outer functions before inner ones.
        """
        if id(module) in self._looked_for:
            return
        self._looked_for[id(module)] = module
        scopes = _scopes(lambda frame: frame.f_code.co_filename == self._file)
        known = [dict(_modules_of(names)) for names in scopes]
        holding = [found for found in known if any(part is module for part in found.values())]
        holding.reverse()
        holding.sort(key=lambda found: any(name.startswith("self.") for name in found))
        for found in holding:
            for name, part in found.items():
                self._names.setdefault(id(part), (name, part))

    def _listed(self, seconds: float) -> tuple[ModuleTime, ...]:
        """Lists up to ``_MOST_LISTED`` called modules that contain convolutions, the longest total time first."""
        found = []
        for key, (name, module) in self._names.items():
            count = convolution_module_count(module)
            times = self._seconds.get(key, [])
            if times and count and not isinstance(module, nn.modules.conv._ConvNd):
                share = min(sum(times) / seconds, 1.0)
                found.append(ModuleTime(name=name, convolution_count=count, call_count=len(times), share=share))
        return tuple(sorted(found, key=lambda one: (-one.share, one.name))[:_MOST_LISTED])

    def _never_called(self, path: str, how: str, arguments: Sequence[str]) -> LayoutDoctorError:
        script = self._script.name
        if self._was_found:
            return SubjectError(
                f"cannot diagnose {path}: {script} {how} without calling it; calling its .forward() directly is not "
                "seen: call the module"
            )
        near = difflib.get_close_matches(path, [name for name, _ in self._names.values()], n=3)
        if near:
            return UsageError(f"cannot find {path} in {script}: did you mean {' or '.join(near)}?")
        listed = ", ".join(one.name for one in self._listed(1.0)[:4])
        called = (
            f"it called these modules with convolutions: {listed}"
            if listed
            else "it called no module with convolutions in its own process; other processes are not watched"
        )
        hint = "" if arguments else "; put arguments for the script after --"
        return UsageError(f"cannot find {path} in {script}, which {how}: {called}{hint}")


def modules_called(path: str) -> Iterator[Any]:
    """Yields the values of a path such as ``pipe.vae.decoder`` in the running functions, the innermost one first."""
    root, *rest = path.split(".")
    for names in _scopes(lambda frame: _knows(frame, root)):
        yield functools.reduce(_part_of, rest, names.get(root))


def _scopes(is_wanted: Callable[[FrameType], bool]) -> Iterator[Names]:
    """Yields local and global names of each running function of the user, the innermost first; last, the script's."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        if is_user_file(frame.f_code.co_filename) and is_wanted(frame):
            yield frame.f_locals
            yield frame.f_globals
        frame = frame.f_back
    yield vars(sys.modules["__main__"])


def _knows(frame: FrameType, name: str) -> bool:
    code = frame.f_code
    return name in frame.f_globals or name in (*code.co_varnames, *code.co_cellvars, *code.co_freevars)


def _part_of(value: Any, name: str) -> Any:
    """Returns an attribute, or an entry of a list or mapping; None if there is no such part."""
    try:
        if isinstance(value, (list, tuple)):
            return value[int(name)]
        return value[name] if isinstance(value, Mapping) else getattr(value, name)
    except Exception:  # a property may raise anything
        return None


def _modules_of(names: Names) -> Iterator[tuple[str, nn.Module]]:
    """Yields path and module: for modules among the values and their attributes, and for all modules inside them."""
    for name, value in list(names.items()):
        around = [(name, value)]
        if not isinstance(value, (nn.Module, type)):
            around = [(f"{name}.{part}", one) for part, one in list(getattr(value, "__dict__", {}).items())]
        for prefix, one in around:
            if isinstance(one, nn.Module):
                yield from one.named_modules(prefix=prefix)
