"""
Does the work that every compile starts with, once, in the process from which the worker processes are forked.

Inductor is imported, the processor's best vector instructions are tested, the precompiled header of all kernels is
built, and one small model is compiled, so that all modules of Inductor are imported. No other thread may be left when
a worker is forked, because a fork keeps only the thread that called it.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import importlib
import os
import signal
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest import mock

import torch

from layoutdoctor.capture.compat import inductor_config, missing_cpp_compiler

_SMALLEST_KERNEL = """
#include <torch/csrc/inductor/cpp_prefix.h>
extern "C" void kernel(float* out_ptr0) { out_ptr0[0] = 0; }
"""
_LONGEST_WAIT_SECONDS = 600
_LONGEST_TUNING_SECONDS = 60


def may_use_gpu() -> bool:
    """Whether there is a GPU. A child process asks, because forks of a process that asked CUDA cannot use CUDA."""
    return _succeeded(_forked(torch.cuda.is_available))


def import_compiler() -> None:
    """
    Prepares this process for forks that compile for a GPU, without using CUDA itself.

    Source:
        ``torch/_inductor/runtime/benchmarking.py`` asks at its import whether there is a GPU, by NVML if NVML answers
        (``torch.cuda.device_count``); torch 2.11.
    """
    inductor_config().compile_threads = 1  # the workers compile in parallel; a pool would disturb timings
    with contextlib.suppress(Exception):  # NVML does not answer, or this torch has no such function
        if torch.cuda._device_count_nvml() > 0:
            for name in ("compile_fx", "freezing", "codegen.triton", "runtime.triton_heuristics"):
                importlib.import_module(f"torch._inductor.{name}")
            tune_one_at_a_time()


def tune_one_at_a_time() -> None:
    """
    Lets only one process at a time benchmark the configurations of a Triton kernel.

    While another process uses the GPU, a configuration that is not the fastest may win, and Inductor caches it.

    Source:
        ``torch/_inductor/runtime/triton_heuristics.py``, ``CachingAutotuner.benchmark_all_configs``; torch 2.7 to 2.14.
    """
    tuner = importlib.import_module("torch._inductor.runtime.triton_heuristics").CachingAutotuner
    locks = importlib.import_module("torch.utils._filelock")
    path, original = Path(tempfile.gettempdir()) / "tuning.lock", tuner.benchmark_all_configs

    @functools.wraps(original)
    def one_at_a_time(self: Any, *args: Any, **kwargs: Any) -> Any:
        with contextlib.ExitStack() as stack:
            with contextlib.suppress(Exception):  # if another process takes too long, goes on without the lock
                stack.enter_context(locks.FileLock(path, timeout=_LONGEST_TUNING_SECONDS))
            return original(self, *args, **kwargs)

    tuner.benchmark_all_configs = one_at_a_time


def warm_up_compiler(*, builds: bool) -> None:
    """
    Prepares this process, which must have no other thread, for forks that compile.

    A part that fails is skipped: the first compile then does this part itself and reports its error.

    Args:
        builds: Whether to build the precompiled header in a further process. The build occupies a processor for some
            seconds, and would disturb the timing of a diagnosis that builds no kernels.

    Source:
        ``cpu_vec_isa.supported_vec_isa_list``, whose members are true if a test program works;
        ``config.cpp.vec_isa_ok``, which replaces that test; ``CppPythonBindingsCodeCache.load_pybinding``, which builds
        the precompiled header; ``codecache._precompile_header``; torch 2.13.
    """
    config = inductor_config()
    config.compile_threads = 1  # a process pool would need threads in this process
    can_build = missing_cpp_compiler() is None
    test = _forked(_best_instructions_work) if can_build else None
    with contextlib.suppress(Exception):
        _compile_once()
    if test is not None and _succeeded(test):
        with contextlib.suppress(Exception):
            config.cpp.vec_isa_ok = True
            instructions = importlib.import_module("torch._inductor.cpu_vec_isa")
            instructions.valid_vec_isa_list.cache_clear()
            instructions.pick_vec_isa()
    if can_build:
        with contextlib.suppress(Exception):
            _share_headers()
        if builds:
            _forked(_build_header)
        with contextlib.suppress(Exception):
            _generate_once()


def _forked(work: Callable[[], bool]) -> int:
    """Starts a silent process that does the work, and returns its id; exit status 0 if the work returned True."""
    pid = os.fork()
    if pid:
        return pid
    status = 1
    with contextlib.suppress(BaseException):
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        os.setpgid(0, 0)
        null = os.open(os.devnull, os.O_RDWR)
        os.dup2(null, 1)
        os.dup2(null, 2)
        status = 0 if work() else 1
    os._exit(status)


def _succeeded(pid: int) -> bool:
    with contextlib.suppress(ChildProcessError):
        return os.waitpid(pid, 0)[1] == 0
    return False


def _best_instructions_work() -> bool:
    instructions = importlib.import_module("torch._inductor.cpu_vec_isa")
    checker, supported = instructions.x86_isa_checker(), instructions.supported_vec_isa_list
    possible = [isa for isa in supported if all(flag in checker for flag in str(isa).split())]
    return bool(possible) and bool(possible[0])


def _build_header() -> bool:
    torch.set_num_threads(1)
    cache = importlib.import_module("torch._inductor.codecache").CppPythonBindingsCodeCache
    cache.load_pybinding(["float*"], _SMALLEST_KERNEL)
    return True


def _compile_once() -> None:
    """Compiles a model that needs no C++ kernel."""
    net = torch.nn.Conv2d(8, 16, 3).eval().to(memory_format=torch.channels_last)
    image = torch.randn(1, 8, 8, 8).to(memory_format=torch.channels_last)
    with torch.no_grad():
        torch.compile(net)(image)
    torch._dynamo.reset()
    importlib.import_module("torch._inductor.freezing")  # the one module that this compile does not import


def _generate_once() -> None:
    """Generates the code of C++ kernels and stops before the first one is built."""
    owner = importlib.import_module("torch._inductor.codecache").CppPythonBindingsCodeCache
    layers = (torch.nn.Conv2d(8, 16, 3), torch.nn.BatchNorm2d(16), torch.nn.ReLU(), torch.nn.MaxPool2d(2))
    net = torch.nn.Sequential(*layers).eval()
    with torch.no_grad(), mock.patch.object(owner, "load_pybinding", _stop), contextlib.suppress(Exception):
        torch.compile(net)(torch.randn(1, 8, 8, 8))
    torch._dynamo.reset()


def _stop(*_: Any, **__: Any) -> None:
    raise RuntimeError("nothing is built now")


def _share_headers() -> None:
    """
    Makes the forked processes share the path of the precompiled header, one path for each set of compiler options.

    By itself, every process preprocesses the header to find the path, which takes two seconds. Here the first process
    writes the path to a file, and the other processes read this file.
    """
    cache = importlib.import_module("torch._inductor.codecache")
    locks = importlib.import_module("torch.utils._filelock")
    original = cache._precompile_header
    folder = Path(tempfile.mkdtemp(prefix=f"layoutdoctor-{os.getppid()}-headers-"))

    @functools.cache
    def shared(header: str, line: str) -> str:
        known = folder / hashlib.sha256(f"{header} {line}".encode()).hexdigest()[:16]
        with locks.FileLock(f"{known}.lock", timeout=_LONGEST_WAIT_SECONDS):
            if not known.exists():
                part = known.with_suffix(".part")
                part.write_text(original(header, line, **commands[header, line]), encoding="utf-8")
                part.replace(known)
            return known.read_text(encoding="utf-8")

    commands: dict[tuple[str, str], Any] = {}

    def precompile(header: str, line: str, **command: Any) -> str:
        commands[header, line] = command
        return shared(header, line)

    cache._precompile_header = precompile  # type: ignore[attr-defined]
