"""
Everything of the process that a diagnosis, or the model it runs, may disturb: put back when it ends, however it ends.

Faces doctor and loading; imports measure's randomness and capture's torch state. What a compile leaves behind in dynamo
and Inductor is capture's ``dynamo_state``.
"""

from __future__ import annotations

import contextlib
import gc
import locale
import logging
import os
import signal
import sys
import tempfile
import threading
import warnings
from pathlib import Path
from typing import TYPE_CHECKING, Any

from layoutdoctor.errors import first_line
from layoutdoctor.state.randomness import keep_random_state
from layoutdoctor.state.switches import (
    keep_compiler_settings,
    keep_hooks,
    keep_modes,
    keep_switches,
    keep_torch_logging,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    Restore = Callable[[], None]

_DESCRIPTORS = {0: "stdin", 1: "stdout", 2: "stderr"}


@contextlib.contextmanager
def preserved_state() -> Iterator[None]:
    """
    Runs a block and puts back afterwards what it changed, the model's own doings included.

    Kept: random number generators; torch's switches, modes, hooks, print options and settings (``capture.torch_state``
    names them); environment variables, current folder, file-creation mask, locale, signal handlers, an alarm, processor
    affinity; file descriptors 0 to 2, ``sys.stdin`` and its like, import paths, hooks, limits and tracing functions;
    warning filters, loggers with their handlers, numpy's error and print settings, garbage collection.

    Cannot be put back: what a model writes to files or sends elsewhere; modules imported meanwhile, and what they
    registered; functions registered with atexit; threads and processes that the model itself starts; variables of the
    model's own module and objects that only it can reach; a warning shown once already may be shown once more.

    Warns:
        RuntimeWarning: Something could not be put back.
    """
    problems: list[str] = []
    try:
        with contextlib.ExitStack() as stack:  # an interrupt in one does not keep the others from running
            for what, keep in _KEPT:
                stack.callback(_put_back, _look_at(keep, what, problems), what, problems)
            yield
    finally:
        if problems:
            warnings.warn(f"not put back after the diagnosis: {'; '.join(problems)}", RuntimeWarning, stacklevel=4)


def _look_at(keep: Callable[[], Restore], what: str, problems: list[str]) -> Restore:
    try:
        return keep()
    except Exception as error:  # another torch: what cannot be kept is said, and the rest is kept
        problems.append(f"{what} ({first_line(error)})")
        return _nothing


def _put_back(restore: Restore, what: str, problems: list[str]) -> None:
    try:
        restore()
    except Exception as error:  # the result of the diagnosis is worth more than one setting
        problems.append(f"{what} ({first_line(error)})")


def _keep_surroundings() -> Restore:
    """What the operating system keeps for the process, and where Python looks for files."""
    environment = dict(os.environ)
    folder, mask = _current_folder(), _file_mask()
    places = locale.setlocale(locale.LC_ALL)
    affinity = os.sched_getaffinity(0) if hasattr(os, "sched_getaffinity") else None
    temporary = tempfile.tempdir

    def restore() -> None:
        tempfile.tempdir = temporary
        for name in os.environ.keys() - environment.keys():
            del os.environ[name]
        for name, value in environment.items():
            if os.environ.get(name) != value:
                os.environ[name] = value
        if _file_mask() != mask:
            os.umask(mask)
        if locale.setlocale(locale.LC_ALL) != places:
            locale.setlocale(locale.LC_ALL, places)
        if affinity is not None and os.sched_getaffinity(0) != affinity:
            os.sched_setaffinity(0, affinity)
        if folder is not None and _current_folder() != folder:
            os.chdir(folder)

    return restore


def _current_folder() -> Path | None:
    try:
        return Path.cwd()
    except OSError:  # it was deleted
        return None


def _file_mask() -> int:
    """The mask for new files; from Linux's own record, because asking means setting, and other threads may write."""
    with contextlib.suppress(OSError, StopIteration, ValueError):
        lines = Path("/proc/self/status").read_text(encoding="ascii", errors="replace").splitlines()
        return int(next(line.split()[1] for line in lines if line.startswith("Umask:")), 8)
    mask = os.umask(0o077)
    os.umask(mask)
    return mask


def _keep_signals() -> Restore:
    """Signal handlers and a running alarm; only the main thread can set them, so only there can they have changed."""
    if threading.current_thread() is not threading.main_thread():
        return _nothing
    handlers = {number: signal.getsignal(number) for number in signal.valid_signals()}
    is_alarmed = hasattr(signal, "getitimer") and signal.getitimer(signal.ITIMER_REAL)[0] > 0
    wakeup = signal.set_wakeup_fd(-1)
    signal.set_wakeup_fd(wakeup)

    def restore() -> None:
        if hasattr(signal, "setitimer") and not is_alarmed:
            signal.setitimer(signal.ITIMER_REAL, 0)
        for number, handler in handlers.items():
            if handler is not None and signal.getsignal(number) != handler:  # None: not installed by Python
                signal.signal(number, handler)
        signal.set_wakeup_fd(wakeup)

    return restore


def _keep_interpreter() -> Restore:
    """Python's own hooks, paths and limits."""
    hooks = {name: getattr(sys, name) for name in ("displayhook", "excepthook", "unraisablehook", "breakpointhook")}
    lists = [
        (name, found, list(found))
        for name in ("argv", "path", "path_hooks", "meta_path")
        if (found := getattr(sys, name)) is not None
    ]
    modules = set(sys.modules)
    recursion, switching = sys.getrecursionlimit(), sys.getswitchinterval()
    bytecode = sys.dont_write_bytecode
    pairs: tuple[tuple[Callable[[], Any], Callable[[Any], None]], ...] = (
        (sys.gettrace, sys.settrace),
        (sys.getprofile, sys.setprofile),
        (threading.gettrace, threading.settrace),
        (threading.getprofile, threading.setprofile),
    )
    tracing = [(get, set_, get()) for get, set_ in pairs]
    thread_hook, stack_size = threading.excepthook, threading.stack_size()

    def restore() -> None:
        for name, hook in hooks.items():
            setattr(sys, name, hook)
        for name, found, contents in lists:
            installed = [item for item in getattr(sys, name) if _came_with_an_import(item, contents, modules)]
            setattr(sys, name, found)
            found[:] = [*contents, *installed]
        sys.setrecursionlimit(recursion)
        sys.setswitchinterval(switching)
        sys.dont_write_bytecode = bytecode
        for get, set_, function in tracing:
            if get() is not function:
                set_(function)
        threading.excepthook = thread_hook
        threading.stack_size(stack_size)

    return restore


def _came_with_an_import(item: Any, before: list[Any], modules: set[str]) -> bool:
    """Whether a module imported meanwhile installed this hook: it stays, and needs it (six finds its parts so)."""
    owner = getattr(item, "__module__", None)
    return item not in before and isinstance(owner, str) and owner not in modules and owner in sys.modules


def _keep_streams() -> Restore:
    """File descriptors 0 to 2 and the streams that Python made of them."""
    streams = {f"{dunder}{name}{dunder}": None for name in _DESCRIPTORS.values() for dunder in ("", "__")}
    before = {name: getattr(sys, name) for name in streams}
    closed = {name: getattr(stream, "closed", True) for name, stream in before.items()}
    numbers = {name: _number_of(stream) for name, stream in before.items()}
    saved: dict[int, tuple[int, bool]] = {}
    for number in _DESCRIPTORS:
        with contextlib.suppress(OSError):  # one that is closed cannot be kept
            saved[number] = (os.dup(number), os.get_inheritable(number))

    def restore() -> None:
        for stream in (sys.stdout, sys.stderr):
            with contextlib.suppress(Exception):  # what was printed goes where it would have gone
                stream.flush()
        for number, (copy, inheritable) in saved.items():
            try:
                os.dup2(copy, number, inheritable)
            finally:
                os.close(copy)
        opened: dict[int, Any] = {}  # sys.stdout and sys.__stdout__ are one stream, and stay one
        for name, stream in before.items():
            if getattr(stream, "closed", True) and not closed[name] and numbers[name] is not None:
                if id(stream) not in opened:
                    opened[id(stream)] = _reopened(stream, numbers[name])
                stream = opened[id(stream)]
            setattr(sys, name, stream)

    return restore


def _number_of(stream: Any) -> int | None:
    with contextlib.suppress(Exception):
        number = stream.fileno()
        return number if number in _DESCRIPTORS else None
    return None


def _reopened(stream: Any, number: int | None) -> Any:
    """Another stream for a descriptor whose own was closed, which nothing opens again."""
    mode = "r" if number == 0 else "w"
    encoding, errors = getattr(stream, "encoding", None), getattr(stream, "errors", None)
    return open(number or 0, mode, encoding=encoding, errors=errors, closefd=False)


def _keep_warnings() -> Restore:
    kept = contextlib.ExitStack()
    kept.enter_context(warnings.catch_warnings())
    once = dict(getattr(warnings, "onceregistry", {}))

    def restore() -> None:
        kept.close()
        with contextlib.suppress(AttributeError):
            warnings.onceregistry.clear()  # type: ignore[attr-defined]
            warnings.onceregistry.update(once)  # type: ignore[attr-defined]

    return restore


def _keep_loggers() -> Restore:
    """Every logger that there is: its level, handlers, filters and switches, and those of the handlers."""
    manager = logging.getLogger().manager
    known = [
        logging.getLogger(),
        *(item for item in list(manager.loggerDict.values()) if isinstance(item, logging.Logger)),
    ]
    before = [
        (
            item,
            item.level,
            item.propagate,
            item.disabled,
            item.handlers,
            list(item.handlers),
            item.filters,
            list(item.filters),
        )
        for item in known
    ]
    handlers = {id(handler): handler for item in known for handler in item.handlers}.values()
    of_handlers = [(handler, handler.level, handler.formatter, list(handler.filters)) for handler in handlers]
    disabled, factory = manager.disable, logging.getLogRecordFactory()
    last_resort, raises = logging.lastResort, logging.raiseExceptions

    def restore() -> None:
        for item, level, propagate, is_off, owned, contents, filters, contents_of_filters in before:
            if item.level != level:
                item.setLevel(level)
            item.propagate, item.disabled = propagate, is_off
            item.handlers, item.filters = owned, filters
            owned[:], filters[:] = contents, contents_of_filters
        for handler, level, formatter, filters in of_handlers:
            if handler.level != level:
                handler.setLevel(level)
            handler.formatter = formatter
            handler.filters[:] = filters
        if manager.disable != disabled:
            logging.disable(disabled)
        logging.setLogRecordFactory(factory)
        logging.lastResort, logging.raiseExceptions = last_resort, raises

    return restore


def _keep_garbage_collection() -> Restore:
    enabled, threshold, flags, callbacks = gc.isenabled(), gc.get_threshold(), gc.get_debug(), list(gc.callbacks)

    def restore() -> None:
        (gc.enable if enabled else gc.disable)()
        gc.set_threshold(*threshold)
        gc.set_debug(flags)
        gc.callbacks[:] = callbacks

    return restore


def _keep_numpy() -> Restore:
    numpy: Any = sys.modules.get("numpy")
    if not hasattr(numpy, "geterr"):
        return _nothing
    errors, call, printing = numpy.geterr(), numpy.geterrcall(), numpy.get_printoptions()

    def restore() -> None:
        numpy.seterr(**errors)
        numpy.seterrcall(call)
        if numpy.get_printoptions() != printing:
            numpy.set_printoptions(**printing)

    return restore


def _nothing() -> None:
    """What there is to put back where nothing can have changed."""


# Put back from the last to the first: switches of torch while its modes are still the block's would meet those.
_KEPT: tuple[tuple[str, Callable[[], Restore]], ...] = (
    ("garbage collection", _keep_garbage_collection),
    ("signal handlers", _keep_signals),
    ("Python's hooks and limits", _keep_interpreter),
    ("standard streams", _keep_streams),
    ("warning filters", _keep_warnings),
    ("loggers", _keep_loggers),
    ("environment, folder or locale", _keep_surroundings),
    ("numpy's settings", _keep_numpy),
    ("random number generators", keep_random_state),
    ("torch's logging", keep_torch_logging),
    ("compiler settings", keep_compiler_settings),
    ("torch's hooks", keep_hooks),
    ("torch's switches", keep_switches),
    ("torch's modes", keep_modes),
)
