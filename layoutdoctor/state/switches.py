"""
Seeds random numbers, and copies torch's switches and settings from the caller's process to a worker.

Switches that this version of torch lacks are skipped.
"""

from __future__ import annotations

import contextlib
import importlib
import os
import random
import sys
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any

import torch
from torch.utils.hooks import RemovableHandle

from layoutdoctor.errors import UsageError

if TYPE_CHECKING:
    Switch = tuple[Callable[[], Any], Callable[..., object]]  # getter and setter

Settings = dict[str, Any]

# Names of pairs ``torch._C._get_NAME`` (without arguments) and ``torch._C._set_NAME``; torch 2.7 to 2.13. The public
# setters of torch.backends are not used, because they refuse if a program has frozen the flags.
_SWITCHES = (
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
)
# Pairs of a getter and a setter whose names differ.
_OTHER_SWITCHES = (
    ("_get_cudnn_sdp_enabled", "_set_sdp_use_cudnn"),
    ("_get_flash_sdp_enabled", "_set_sdp_use_flash"),
    ("_get_math_sdp_enabled", "_set_sdp_use_math"),
    ("_get_mem_efficient_sdp_enabled", "_set_sdp_use_mem_efficient"),
    ("_get_linalg_preferred_backend", "_set_linalg_preferred_backend"),
    ("_get_blas_preferred_backend", "_set_blas_preferred_backend"),
)
# ``torch.backends.*.fp32_precision``. General settings come first: a setting without a value returns the general value.
_PRECISIONS = (
    ("generic", "all"),
    ("cuda", "all"),
    ("mkldnn", "all"),
    *((backend, operation) for backend in ("cuda", "mkldnn") for operation in ("matmul", "conv", "rnn")),
)
SWITCH_NAMES = {"cudnn.benchmark": "cudnn_benchmark"}
"""Switches that a configuration may set: names below ``torch.backends``, with the names in ``_SWITCHES``."""


def seed_all(seed: int) -> None:
    """
    Seeds torch, Python and, if imported, numpy; only for layoutdoctor's own processes. A GPU is seeded on first use.

    Args:
        seed: From 0 to 2**32 - 1.
    """
    torch.manual_seed(seed)
    random.seed(seed)
    if hasattr(numpy := sys.modules.get("numpy"), "random"):  # not there yet while another thread imports numpy
        numpy.random.seed(seed)  # type: ignore[union-attr]


@contextlib.contextmanager
def switched(switches: Mapping[str, bool]) -> Iterator[None]:
    """
    Sets library switches such as ``cudnn.benchmark`` for a block; afterwards each has its old value.

    Raises:
        UsageError: A switch is not known.
    """
    unknown = sorted(switches.keys() - SWITCH_NAMES.keys())
    if unknown:
        raise UsageError(f"cannot set the library switch {unknown[0]!r}: expected {', '.join(SWITCH_NAMES)}")
    names = {SWITCH_NAMES[name]: value for name, value in switches.items()}
    before = {name: getattr(torch._C, f"_get_{name}")() for name in names}
    try:
        for name, value in names.items():
            getattr(torch._C, f"_set_{name}")(value)
        yield
    finally:
        for name, value in before.items():
            getattr(torch._C, f"_set_{name}")(value)


def hooks_on_all_modules() -> bool:
    """
    Whether global hooks are registered, which every module of this process calls.

    Source:
        ``torch/nn/modules/module.py``, torch 2.7 to 2.14.
    """
    kinds = ("forward", "forward_pre", "backward", "backward_pre")
    return any(getattr(torch.nn.modules.module, f"_global_{kind}_hooks", None) for kind in kinds)


def _switches() -> dict[str, Switch]:
    """
    Returns the getter and the setter of each switch that this torch has.

    Source:
        ``torch/backends``, ``torch/__init__.py``, ``torch.utils.deterministic``; torch 2.7 to 2.13.
    """
    pairs = [*((f"_get_{name}", f"_set_{name}") for name in _SWITCHES), *_OTHER_SWITCHES]
    found: dict[str, Switch] = {
        "dtype": (torch.get_default_dtype, torch.set_default_dtype),
        "threads": (torch.get_num_threads, torch.set_num_threads),
        "determinism": (_determinism, lambda on, warns: torch.use_deterministic_algorithms(on, warn_only=warns)),
        # Torch has no getter for this: half of the smallest normal number is 0 if denormals are flushed.
        "denormals": (lambda: sys.float_info.min / 2 == 0, torch.set_flush_denormal),
        **{name: (getattr(torch._C, name), getattr(torch._C, set_)) for name, set_ in pairs if hasattr(torch._C, name)},
    }
    precision = "_get_fp32_precision_getter", "_set_fp32_precision_setter"
    if hasattr(torch._C, precision[0]):  # from torch 2.9 on
        get, set_ = (getattr(torch._C, name) for name in precision)
        found |= {str(place): (partial(get, *place), partial(set_, *place)) for place in _PRECISIONS}
    for device in ("cpu", "cuda", "mps", "xpu"):
        enabled = partial(torch.is_autocast_enabled, device), partial(torch.set_autocast_enabled, device)
        dtype = partial(torch.get_autocast_dtype, device), partial(torch.set_autocast_dtype, device)
        found |= {f"autocast {device} enabled": enabled, f"autocast {device} dtype": dtype}
    return found


def _determinism() -> tuple[bool, bool]:
    return (
        torch.are_deterministic_algorithms_enabled(),
        torch.is_deterministic_algorithms_warn_only_enabled(),
    )


def _read(switch: Switch) -> Any:
    """Reads a switch; None if torch refuses because a program mixed old and new settings of precision."""
    try:
        return switch[0]()
    except Exception:
        return None


@contextlib.contextmanager
def same_environment() -> Iterator[None]:
    """
    Restores the environment variables after a block.

    Source:
        ``TORCHINDUCTOR_CACHE_DIR`` is set by ``import torch._dynamo`` (torch/_dynamo/package.py, torch 2.13).
    """
    before = dict(os.environ)
    try:
        yield
    finally:
        for name in os.environ.keys() - before.keys():
            del os.environ[name]
        os.environ.update({name: value for name, value in before.items() if os.environ.get(name) != value})


def current_settings() -> Settings:
    """
    Reads the settings of this process and thread: ``sys.path``, default device, autocast, compilers and others.

    Settings of torch's config modules (Inductor, Dynamo, AOTAutograd, ...) are included only if they differ from their
    defaults. Modes other than default device and autocast, such as a ``TorchFunctionMode``, are not included.

    Source:
        ``_is_default``, torch/utils/_config_module.py, torch 2.7 to 2.15.
    """
    # A compile reads these modules. They are imported now: a model may change a setting before its first compile.
    with same_environment():  # the imports make a cache folder and set a variable to its path
        import torch._dynamo.config
        import torch._functorch.config
        import torch._inductor.config

    compilers = [name for name, module in [*sys.modules.items()] if hasattr(type(module), "get_config_copy")]
    return {
        "path": list(sys.path),
        "recursion limit": sys.getrecursionlimit(),
        "hooks": RemovableHandle.next_id,
        "device": torch.get_default_device(),
        "switches": {name: value for name, one in _switches().items() if (value := _read(one)) is not None},
        "compilers": {
            name: {
                key: value
                for key, value in sys.modules[name].get_config_copy().items()
                if not sys.modules[name]._is_default(key)
            }
            for name in compilers
            if name.startswith("torch.")
        },
    }


def apply_settings(settings: Settings) -> None:
    """Applies the settings of another process with the same torch. Only layoutdoctor's own processes may do this."""
    sys.path[:] = settings["path"]
    sys.setrecursionlimit(max(settings["recursion limit"], sys.getrecursionlimit()))
    # A model's hooks keep their ids in this process; a new hook with such an id would replace the model's hook.
    RemovableHandle.next_id = max(settings["hooks"], RemovableHandle.next_id)
    if settings["device"] != torch.get_default_device():
        torch.set_default_device(settings["device"])
    switches = _switches()
    for name, value in settings["switches"].items():
        if _read(switches[name]) != value:
            switches[name][1](*(value if isinstance(value, tuple) else (value,)))
    for name, values in settings["compilers"].items():
        for key, value in values.items():
            setattr(importlib.import_module(name), key, value)
