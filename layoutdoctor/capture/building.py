"""
The compiler's work that needs nobody to wait for it: C++ is built while the next graph is lowered.

Inductor hands every kernel to the C++ compiler and then waits, at the end of each graph; and before the first kernel of
all it builds tests of the processor's vector instructions and a header, one after the other.
"""

from __future__ import annotations

import contextlib
import functools
import importlib
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any, NamedTuple
from unittest import mock

from layoutdoctor.capture.compat import inductor_config, private

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from concurrent.futures import Future
    from types import CodeType, FunctionType

_WORD = "_layoutdoctor_not_run"
_SMALLEST_KERNEL = """
#include <torch/csrc/inductor/cpp_prefix.h>
extern "C" void kernel(float* out_ptr0) { out_ptr0[0] = 0; }
"""


class NotRun(BaseException):
    """Raised where a compiled graph would run that is only to be lowered; no model means to catch it."""


class Postponed:
    """
    Graphs that are lowered and not run, and whose kernels are not waited for, until that is made up for.

    Source:
        ``AsyncCompile.wait(scope)``, called at the end of every generated module, and the module's function ``call``;
        torch 2.13.
    """

    def __init__(self) -> None:
        self._waits: list[Callable[[], None]] = []
        self._closed: list[tuple[FunctionType, CodeType]] = []
        self._is_lowering = False

    @contextlib.contextmanager
    def lowering(self) -> Iterator[None]:
        """A block in which kernels are not waited for, and no generated module runs; backwards are lowered, too."""
        owner = importlib.import_module("torch._inductor.async_compile").AsyncCompile
        original = private("torch._inductor.async_compile.AsyncCompile.wait")

        @functools.wraps(original)
        def wait(*args: Any, **keywords: Any) -> None:
            self._waits.append(functools.partial(original, *args, **keywords))

        with mock.patch.object(owner, "wait", wait), _backward_at_once():
            self._is_lowering = True
            try:
                yield
            finally:
                self._is_lowering = False

    def close(self, module: Any) -> None:
        """
        Lets nobody run a module made while lowering until ``finish``: its function raises ``NotRun``. Where several
        were lowered, all are to be finished before any runs.

        The function itself is changed and changed back, so that nothing of this is left in what is timed.
        """
        function = getattr(module.call, "__func__", module.call)
        is_closed = function.__code__ is _refuse.__code__  # two graphs of the same code have one module
        if self._is_lowering and not is_closed:
            function.__globals__[_WORD] = NotRun
            self._closed.append((function, function.__code__))
            function.__code__ = _refuse.__code__

    def finish(self) -> None:
        """
        Waits for all kernels, and lets the modules run.

        Raises:
            Exception: What the C++ compiler said.
        """
        try:
            while self._waits:
                self._waits.pop()()
        finally:
            for function, code in self._closed:
                function.__code__ = code
                function.__globals__.pop(_WORD, None)
            self._closed.clear()


def _backward_at_once() -> contextlib.AbstractContextManager[Any]:
    """
    A block in which the graph of the backward is lowered with that of the forward, not when it first runs.

    Source:
        ``torch._functorch.config.force_non_lazy_backward_lowering``, torch 2.13. Without it only the forward is.
    """
    name = "force_non_lazy_backward_lowering"
    config: Any = importlib.import_module("torch._functorch.config")
    return config.patch({name: True}) if hasattr(config, name) else contextlib.nullcontext()


def _refuse(*_: Any) -> None:
    raise _layoutdoctor_not_run  # type: ignore[name-defined]  # noqa: F821  # among the globals of who runs it


def prepare_compiler() -> CompilerBegun:
    """
    Begins what Inductor builds once for a CPU before its first kernel, beside whatever is done meanwhile.

    Nothing is lost where it fails: the first compile then does it, and says what is wrong.

    Source:
        ``cpu_vec_isa.supported_vec_isa_list``, whose members are true where their test builds, ``pick_vec_isa`` and
        ``CppPythonBindingsCodeCache.load_pybinding_async``, which makes the header; torch 2.13.
    """
    inductor_config()  # imported here, where the environment is kept
    pool = ThreadPoolExecutor(1, "layoutdoctor-compiler")
    begun = CompilerBegun(pool.submit(_test_instructions), pool.submit(_make_header))
    pool.shutdown(wait=False)
    return begun


class CompilerBegun(NamedTuple):
    """Waiting for ``tests`` is needed before anything is lowered: they would meet themselves."""

    tests: Future[None]
    header: Future[None]


def _test_instructions() -> None:
    with contextlib.suppress(Exception):
        instructions = importlib.import_module("torch._inductor.cpu_vec_isa")
        checker, supported = instructions.x86_isa_checker(), instructions.supported_vec_isa_list
        possible = [isa for isa in supported if all(flag in checker for flag in str(isa).split())]
        with ThreadPoolExecutor(max(len(possible), 1)) as pool:
            list(pool.map(bool, possible))


def _make_header() -> None:
    with contextlib.suppress(Exception):
        cache = importlib.import_module("torch._inductor.codecache").CppPythonBindingsCodeCache
        cache.load_pybinding_async(["float*"], _SMALLEST_KERNEL)
