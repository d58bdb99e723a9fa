"""
torch's process-wide and thread-wide switches, modes and settings, carried from the caller's process to a worker's.

What this torch does not have is passed over.
"""

from __future__ import annotations

import contextlib
import importlib
import os
import sys
from functools import partial
from typing import TYPE_CHECKING, Any

import torch
from torch.utils.hooks import RemovableHandle

from layoutdoctor.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    Switch = tuple[Callable[[], Any], Callable[[Any], None]]  # how it is read, and how it is set

Settings = dict[str, Any]

MISSING = object()
"""What a switch is set to that this torch lacks, or refuses to tell."""

_DEVICE_TYPES = ("cpu", "cuda", "mps", "xpu")
"""Where autocast may be on."""

# Pairs ``torch._C._get_NAME`` and ``torch._C._set_NAME``, the getters without arguments (torch 2.7 to 2.13). They are
# behind torch.backends, whose own setters refuse where a program has frozen them.
_SWITCHES = (
    "autograd_fallback_mode",
    "cpu_allow_fp16_reduced_precision_reduction",
    "cublas_allow_bf16_reduced_precision_reduction",
    "cublas_allow_fp16_accumulation",
    "cublas_allow_fp16_reduced_precision_reduction",
    "cublas_allow_tf32",
    "cudnn_allow_tf32",
    "cudnn_benchmark",
    "cudnn_deterministic",
    "cudnn_enabled",
    "deterministic_fill_uninitialized_memory",
    "float32_matmul_precision",
    "math_sdp_allow_fp16_bf16_reduction",
    "miopen_immediate",
    "mkldnn_deterministic",
    "mkldnn_enabled",
    "nnpack_enabled",
    "onednn_allow_tf32",
    "qengine",
    "warnAlways",
)
LIBRARY_SWITCHES = {"cudnn.benchmark": "cudnn_benchmark"}
"""Switches that a configuration may set, under ``torch.backends``, and their names among those above."""

# The same with setters of another name.
_OTHER_SWITCHES = (
    ("_get_cudnn_sdp_enabled", "_set_sdp_use_cudnn"),
    ("_get_flash_sdp_enabled", "_set_sdp_use_flash"),
    ("_get_math_sdp_enabled", "_set_sdp_use_math"),
    ("_get_mem_efficient_sdp_enabled", "_set_sdp_use_mem_efficient"),
    ("_get_overrideable_sdp_enabled", "_set_sdp_use_overrideable"),
    ("_get_linalg_preferred_backend", "_set_linalg_preferred_backend"),
    ("_get_blas_preferred_backend", "_set_blas_preferred_backend"),
)
# ``torch.backends.*.fp32_precision``, the general ones first: the others answer with theirs where they have none.
_PRECISIONS = (
    ("generic", "all"),
    ("cuda", "all"),
    ("mkldnn", "all"),
    *((backend, operation) for backend in ("cuda", "mkldnn") for operation in ("matmul", "conv", "rnn")),
)


@contextlib.contextmanager
def switched(switches: Mapping[str, bool]) -> Iterator[None]:
    """
    A block that runs under switches of libraries, such as ``cudnn.benchmark``; each is put back behind it.

    Raises:
        UsageError: One is not known.
    """
    unknown = sorted(switches.keys() - LIBRARY_SWITCHES.keys())
    if unknown:
        raise UsageError(f"cannot set the library switch {unknown[0]!r}: expected {', '.join(LIBRARY_SWITCHES)}")
    names = {LIBRARY_SWITCHES[name]: value for name, value in switches.items()}
    before = {name: getattr(torch._C, f"_get_{name}")() for name in names}
    try:
        for name, value in names.items():
            getattr(torch._C, f"_set_{name}")(value)
        yield
    finally:
        for name, value in before.items():
            getattr(torch._C, f"_set_{name}")(value)


def profiler_is_running() -> bool:
    """
    Whether this thread is being profiled already: a second profiler would end the first one.

    Source:
        ``torch.autograd._profiler_enabled``, torch 2.7 to 2.13.
    """
    is_enabled = getattr(torch.autograd, "_profiler_enabled", None)
    return is_enabled is not None and bool(is_enabled())


def read_switch(get: Callable[[], Any]) -> Any:
    """What a getter says; ``MISSING`` where this torch lacks it, or refuses (old and new precision settings mixed)."""
    try:
        return get()
    except Exception:
        return MISSING


def _switches() -> dict[str, Switch]:
    """
    How each switch of the whole process is read and set, by its name, as far as this torch has it.

    Source:
        ``torch/backends``, ``torch/__init__.py``, ``torch.utils.deterministic``; torch 2.7 to 2.13.
    """
    names = [(f"_get_{name}", f"_set_{name}") for name in _SWITCHES]
    found = {g: (getattr(torch._C, g, None), getattr(torch._C, s, None)) for g, s in (*names, *_OTHER_SWITCHES)}
    known = {name: (get, _spread(set_)) for name, (get, set_) in found.items() if get is not None and set_ is not None}
    cudnn, printing = torch.backends.cudnn, vars(torch._tensor_str.PRINT_OPTS)
    return {
        "dtype": (torch.get_default_dtype, torch.set_default_dtype),
        "threads": (torch.get_num_threads, torch.set_num_threads),
        "determinism": (_determinism, lambda asked: torch.use_deterministic_algorithms(asked[0], warn_only=asked[1])),
        **known,
        **_precision_switches(),
        "benchmark limit": (lambda: cudnn.benchmark_limit, lambda limit: setattr(cudnn, "benchmark_limit", limit)),
        # Torch cannot be asked whether this thread's arithmetic takes the smallest numbers for 0.
        "denormals": (lambda: sys.float_info.min / 2 == 0, torch.set_flush_denormal),
        "printing": (lambda: dict(printing), printing.update),
    }


def _determinism() -> tuple[bool, bool]:
    """Whether deterministic algorithms are asked for, and whether their lack is a warning only."""
    return (
        torch.are_deterministic_algorithms_enabled(),
        torch.is_deterministic_algorithms_warn_only_enabled(),
    )


def _spread(set_: Callable[..., None]) -> Callable[[Any], None]:
    """A setter that takes the several values which its getter gives as one tuple."""

    def set_value(value: Any) -> None:
        if isinstance(value, tuple):
            set_(*value)
        else:
            set_(value)

    return set_value


def _precision_switches() -> dict[str, Switch]:
    get, set_ = (
        getattr(torch._C, f"_{name}", None) for name in ("get_fp32_precision_getter", "set_fp32_precision_setter")
    )
    if get is None or set_ is None:  # before torch 2.9
        return {}

    def pair(backend: str, operation: str) -> Switch:
        return lambda: get(backend, operation), lambda value: set_(backend, operation, value)

    return {f"{backend} {operation}": pair(backend, operation) for backend, operation in _PRECISIONS}


def _autocast() -> dict[str, Switch]:
    found: dict[str, Switch] = {
        "autocast cache": (torch.is_autocast_cache_enabled, torch.set_autocast_cache_enabled),
        "autocast depth": (_autocast_depth, _set_autocast_depth),
    }
    enabled = torch.is_autocast_enabled, torch.set_autocast_enabled
    dtype = torch.get_autocast_dtype, torch.set_autocast_dtype
    for device in _DEVICE_TYPES:
        for what, (get, set_) in (("enabled", enabled), ("dtype", dtype)):
            found[f"autocast {device} {what}"] = partial(get, device), partial(set_, device)
    return found


def _autocast_depth() -> int:
    torch.autocast_increment_nesting()
    return int(torch.autocast_decrement_nesting())


def _set_autocast_depth(depth: int) -> None:
    difference = depth - _autocast_depth()
    for _ in range(abs(difference)):
        (torch.autocast_increment_nesting if difference > 0 else torch.autocast_decrement_nesting)()
    torch.clear_autocast_cache()


@contextlib.contextmanager
def same_environment() -> Iterator[None]:
    """
    A block after which the environment is as it was before.

    Source:
        ``TORCHINDUCTOR_CACHE_DIR`` is set by ``import torch._dynamo`` (torch/_dynamo/package.py, torch 2.13).
    """
    before = dict(os.environ)
    try:
        yield
    finally:
        for name in os.environ.keys() - before.keys():
            del os.environ[name]
        for name, value in before.items():
            if os.environ.get(name) != value:
                os.environ[name] = value


def config_modules() -> dict[str, Any]:
    """Every module in which torch keeps settings of a compiler, by its name."""
    # The three that a compile reads: loaded now, because a model may change one of them before anything is compiled.
    with same_environment():  # as they are imported they make a folder, and say where
        import torch._dynamo.config
        import torch._functorch.config
        import torch._inductor.config  # noqa: F401

    return {
        name: module
        for name, module in list(sys.modules.items())
        if name.startswith("torch.") and hasattr(type(module), "get_config_copy")
    }


def current_settings() -> Settings:
    """
    What this process and thread has set: ``sys.path``, the default device, autocast, switches, compilers' settings.

    Of the settings of Inductor, dynamo and AOTAutograd those that differ from their defaults; modes other than a
    default device and autocast, such as a user's own ``TorchFunctionMode``, stay behind.

    Source:
        ``_is_default``, torch/utils/_config_module.py, torch 2.7 to 2.15.
    """
    return {
        "path": list(sys.path),
        "recursion limit": sys.getrecursionlimit(),
        "hooks": RemovableHandle.next_id,
        "device": torch.get_default_device(),
        "switches": {
            name: value
            for name, (get, _) in {**_switches(), **_autocast()}.items()
            if (value := read_switch(get)) is not MISSING and value is not None
        },
        "compilers": {
            name: {
                key: value
                for key, value in module.get_config_copy().items()
                if hasattr(module, "_is_default") and not module._is_default(key)
            }
            for name, module in config_modules().items()
        },
    }


def apply_settings(settings: Settings) -> None:
    """Sets this process, which must be one of our own, as another one with the same torch was."""
    sys.path[:] = settings["path"]
    sys.setrecursionlimit(max(settings["recursion limit"], sys.getrecursionlimit()))
    # A model's hooks travel with their numbers; one of ours under the same number would take the place of its.
    RemovableHandle.next_id = max(settings["hooks"], RemovableHandle.next_id)
    if settings["device"] != torch.get_default_device():
        torch.set_default_device(settings["device"])
    switches = {**_switches(), **_autocast()}
    for name, value in settings["switches"].items():
        get, set_ = switches[name]
        if read_switch(get) != value:
            set_(value)
    for name, values in settings["compilers"].items():
        for key, value in values.items():
            setattr(importlib.import_module(name), key, value)
