"""
torch's process-wide and thread-wide switches, modes, hooks and settings, put back as they were before a diagnosis.

Each ``keep_`` function looks now and returns what puts things back; what this torch does not have is passed over.
Faces subjects' state; imports torch. Dynamo's and Inductor's own state is in ``dynamo_state``.

Cannot be put back: the number of inter-operation threads (torch lets it be set once; the diagnosis never does), an
operator, backend or class that the model registers with torch, and what a model does on threads of its own.
"""

from __future__ import annotations

import contextlib
import importlib
import sys
from functools import partial
from typing import TYPE_CHECKING, Any

import torch
from torch.nn.modules import module as nn_module

if TYPE_CHECKING:
    from collections.abc import Callable

    Restore = Callable[[], None]

Settings = dict[str, Any]

MISSING = object()
"""What a switch is set to that this torch lacks, or refuses to tell."""

DEVICE_TYPES = ("cpu", "cuda", "mps", "xpu")
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


def profiler_is_running() -> bool:
    """
    Whether this thread is being profiled already: a second profiler would end the first one.

    Source:
        ``torch.autograd._profiler_enabled``, torch 2.7 to 2.13.
    """
    is_enabled = getattr(torch.autograd, "_profiler_enabled", None)
    return is_enabled is not None and bool(is_enabled())


def keep_switches() -> Restore:
    """
    Switches of the whole process: threads, determinism, precision, cuDNN, oneDNN, cuBLAS, attention kernels.

    Source:
        ``torch/backends``, ``torch/__init__.py``, ``torch.utils.deterministic``; torch 2.7 to 2.13.
    """
    dtype = torch.get_default_dtype()
    thread_count = torch.get_num_threads()
    deterministic = determinism()
    switches = named_switches().values()
    before = [(get, set_, value) for get, set_ in switches if (value := read_switch(get)) is not MISSING]
    benchmark_limit = read_switch(lambda: torch.backends.cudnn.benchmark_limit)
    flushes = _flushes_denormals()

    def restore() -> None:
        if torch.get_default_dtype() != dtype:
            torch.set_default_dtype(dtype)
        if torch.get_num_threads() != thread_count:
            torch.set_num_threads(thread_count)
        if determinism() != deterministic:
            torch.use_deterministic_algorithms(deterministic[0], warn_only=deterministic[1])
        for get, set_, value in before:
            if read_switch(get) != value:
                set_(value)
        if read_switch(lambda: torch.backends.cudnn.benchmark_limit) != benchmark_limit:
            torch.backends.cudnn.benchmark_limit = benchmark_limit
        if _flushes_denormals() != flushes:
            torch.set_flush_denormal(flushes)

    return restore


def determinism() -> tuple[bool, bool]:
    """Whether deterministic algorithms are asked for, and whether their lack is a warning only."""
    return (
        torch.are_deterministic_algorithms_enabled(),
        torch.is_deterministic_algorithms_warn_only_enabled(),
    )


def read_switch(get: Callable[[], Any]) -> Any:
    """
    What a getter says; ``MISSING`` where this torch lacks it, or refuses (old and new precision settings mixed).

    Args:
        get: Of a switch.
    """
    try:
        return get()
    except Exception:
        return MISSING


def named_switches() -> dict[str, tuple[Callable[[], Any], Callable[[Any], None]]]:
    """How each switch behind torch.backends is read and set, by its name, as far as this torch has it."""
    names = [(f"_get_{name}", f"_set_{name}") for name in _SWITCHES]
    found = {g: (getattr(torch._C, g, None), getattr(torch._C, s, None)) for g, s in (*names, *_OTHER_SWITCHES)}
    known = {name: (get, _spread(set_)) for name, (get, set_) in found.items() if get is not None and set_ is not None}
    return {**known, **_precision_switches()}


def _spread(set_: Callable[..., None]) -> Callable[[Any], None]:
    """A setter that takes the several values which its getter gives as one tuple."""

    def set_value(value: Any) -> None:
        if isinstance(value, tuple):
            set_(*value)
        else:
            set_(value)

    return set_value


def _precision_switches() -> dict[str, tuple[Callable[[], Any], Callable[[Any], None]]]:
    get, set_ = (
        getattr(torch._C, f"_{name}", None) for name in ("get_fp32_precision_getter", "set_fp32_precision_setter")
    )
    if get is None or set_ is None:  # before torch 2.9
        return {}

    def pair(backend: str, operation: str) -> tuple[Callable[[], Any], Callable[[Any], None]]:
        return lambda: get(backend, operation), lambda value: set_(backend, operation, value)

    return {f"{backend} {operation}": pair(backend, operation) for backend, operation in _PRECISIONS}


def _flushes_denormals() -> bool:
    """Whether this thread's arithmetic takes the smallest numbers for 0: torch sets it and cannot be asked."""
    with contextlib.ExitStack() as stack:
        for mode in (
            torch.no_grad(),
            torch._C.DisableTorchFunction(),
            torch.utils._python_dispatch._disable_current_modes(),
        ):
            stack.enter_context(mode)
        smallest = torch.full((1,), 2.0**-1074, dtype=torch.float64, device="cpu")
        return bool((smallest * 1).item() == 0)


def keep_modes() -> Restore:
    """
    Modes of this thread: grad, autocast, anomaly detection, default device, function and dispatch modes, CUDA device.

    Inference mode is a guard of torch's own, put back with the one that the doctor enters.

    Source:
        ``torch/autograd/grad_mode.py``, ``torch/amp/autocast_mode.py``, ``torch/overrides.py``,
        ``torch/utils/_python_dispatch.py``, ``torch._GLOBAL_DEVICE_CONTEXT``; torch 2.7 to 2.13.
    """
    restores = [_keep_grad_modes(), _keep_autocast(), _keep_mode_stacks(), _keep_cuda_device()]

    def restore() -> None:
        with contextlib.ExitStack() as stack:
            for one in restores:
                stack.callback(one)

    return restore


def _keep_grad_modes() -> Restore:
    grad = torch.is_grad_enabled()
    anomaly = torch.is_anomaly_enabled(), torch.is_anomaly_check_nan_enabled()
    multithreading = torch._C._is_multithreading_enabled()

    def restore() -> None:
        if torch.is_grad_enabled() != grad:
            torch._C._set_grad_enabled(grad)
        if (torch.is_anomaly_enabled(), torch.is_anomaly_check_nan_enabled()) != anomaly:
            torch.set_anomaly_enabled(*anomaly)
        if torch._C._is_multithreading_enabled() != multithreading:
            torch._C._set_multithreading_enabled(multithreading)

    return restore


def _keep_autocast() -> Restore:
    known = [
        device for device in DEVICE_TYPES if read_switch(partial(torch.is_autocast_enabled, device)) is not MISSING
    ]
    before = {device: (torch.is_autocast_enabled(device), torch.get_autocast_dtype(device)) for device in known}
    is_cached, depth = torch.is_autocast_cache_enabled(), _autocast_depth()

    def restore() -> None:
        for device, (enabled, dtype) in before.items():
            if torch.is_autocast_enabled(device) != enabled:
                torch.set_autocast_enabled(device, enabled)
            if torch.get_autocast_dtype(device) != dtype:
                torch.set_autocast_dtype(device, dtype)
        if torch.is_autocast_cache_enabled() != is_cached:
            torch.set_autocast_cache_enabled(is_cached)
        if (difference := _autocast_depth() - depth) != 0:
            step = torch.autocast_decrement_nesting if difference > 0 else torch.autocast_increment_nesting
            for _ in range(abs(difference)):
                step()
            torch.clear_autocast_cache()

    return restore


def _autocast_depth() -> int:
    """How many autocast regions this thread is in."""
    torch.autocast_increment_nesting()
    return int(torch.autocast_decrement_nesting())


def _keep_mode_stacks() -> Restore:
    contexts: Any = getattr(torch, "_GLOBAL_DEVICE_CONTEXT", None)
    context = getattr(contexts, "device_context", None)
    devices: Any = sys.modules.get("torch.utils._device")
    current = getattr(devices, "CURRENT_DEVICE", None)
    function_modes = _function_modes()
    dispatch_modes = _dispatch_modes()

    def restore() -> None:
        if contexts is not None and getattr(contexts, "device_context", None) is not context:
            contexts.device_context = context
            if context is None:
                del contexts.device_context  # torch 2.7 asks whether it is there, not whether it is None
        if (known := sys.modules.get("torch.utils._device")) is not None:
            known.CURRENT_DEVICE = current  # type: ignore[attr-defined]
        if not _are_same(_function_modes(), function_modes):
            for _ in _function_modes():
                torch._C._pop_torch_function_stack()
            for mode in function_modes:
                torch._C._push_on_torch_function_stack(mode)
        if not _are_same(_dispatch_modes(), dispatch_modes):
            for _ in _dispatch_modes():
                torch._C._pop_torch_dispatch_stack(None)
            for mode in dispatch_modes:
                torch._C._push_on_torch_dispatch_stack(mode)

    return restore


def _function_modes() -> list[Any]:
    return [torch._C._get_function_stack_at(index) for index in range(torch._C._len_torch_function_stack())]


def _dispatch_modes() -> list[Any]:
    return [torch._C._get_dispatch_stack_at(index) for index in range(torch._C._len_torch_dispatch_stack())]


def _are_same(first: list[Any], second: list[Any]) -> bool:
    return len(first) == len(second) and all(one is other for one, other in zip(first, second, strict=True))


def _keep_cuda_device() -> Restore:
    device = torch.cuda.current_device() if torch.cuda.is_initialized() else None

    def restore() -> None:
        if device is not None and torch.cuda.current_device() != device:
            torch.cuda.set_device(device)

    return restore


def keep_hooks() -> Restore:
    """
    Hooks that torch calls for every module, optimizer and saved tensor, and how it prints.

    Source:
        ``torch.nn.modules.module._global_*``, ``torch.optim.optimizer._global_*``, ``torch._tensor_str.PRINT_OPTS``,
        ``torch._C._autograd._top_saved_tensors_default_hooks``; torch 2.7 to 2.13.
    """
    optimizer = sys.modules.get("torch.optim.optimizer")
    registries: list[tuple[Any, str, Any, dict[Any, Any]]] = [
        (owner, name, value, dict(value) if isinstance(value, dict) else {})
        for owner in (nn_module, optimizer)
        for name, value in list(vars(owner).items() if owner is not None else ())
        if name.startswith("_global_") and (value is None or isinstance(value, (dict, bool)))
    ]
    print_options = torch._tensor_str.PRINT_OPTS
    printing = dict(vars(print_options))
    saved_tensors = _saved_tensor_hooks()

    def restore() -> None:
        for owner, name, value, contents in registries:
            if getattr(owner, name) is not value:
                setattr(owner, name, value)
            if isinstance(value, dict) and value != contents:
                value.clear()
                value.update(contents)
        vars(print_options).update(printing)
        while (now := _saved_tensor_hooks()) is not None and now != saved_tensors:
            torch._C._autograd._pop_saved_tensors_default_hooks()

    return restore


def _saved_tensor_hooks() -> Any:
    top = getattr(torch._C._autograd, "_top_saved_tensors_default_hooks", None)
    return None if top is None else top(True)


def keep_compiler_settings() -> Restore:
    """
    The settings of Inductor, dynamo, AOTAutograd and of every other part of torch that keeps them in the same way.

    Source:
        ``torch/utils/_config_module.py``: ``get_config_copy`` and attribute access, the same from torch 2.7 to 2.13.
    """
    settings = {name: module.get_config_copy() for name, module in config_modules().items()}

    def restore() -> None:
        for name, module in config_modules().items():
            before = settings.get(name, {})
            for key, value in module.get_config_copy().items():
                old = before.get(key, MISSING)
                if old is not MISSING and old != value:
                    setattr(module, key, old)

    return restore


def config_modules() -> dict[str, Any]:
    """Every module in which torch keeps settings of a compiler, by its name."""
    # The three that a compile reads: loaded now, because a model may change one of them before anything is compiled.
    import torch._dynamo.config
    import torch._functorch.config
    import torch._inductor.config  # noqa: F401

    return {
        name: module
        for name, module in list(sys.modules.items())
        if name.startswith("torch.") and hasattr(type(module), "get_config_copy")
    }


def keep_torch_logging() -> Restore:
    """
    What ``torch._logging.set_logs`` remembers; the loggers themselves are kept with all others.

    Source:
        ``torch._logging._internal.log_state``, torch 2.7 to 2.13.
    """
    from torch._logging import _internal

    state = getattr(_internal, "log_state", None)
    levels = dict(getattr(state, "log_qname_to_level", {}))
    artifacts = set(getattr(state, "artifact_names", ()))

    def restore() -> None:
        if state is None:
            return
        for container, before in ((state.log_qname_to_level, levels), (state.artifact_names, artifacts)):
            if container != before:
                container.clear()
                container.update(before)

    return restore


def current_settings() -> Settings:
    """
    What this process and thread has set: threads, dtype, device, determinism, autocast, switches, compilers' settings.

    Of the settings of Inductor, dynamo and AOTAutograd those that differ from their defaults; modes other than a
    default device and autocast, such as a user's own ``TorchFunctionMode``, stay behind.

    Source:
        ``_is_default``, torch/utils/_config_module.py, torch 2.7 to 2.15.
    """
    return {
        "recursion limit": sys.getrecursionlimit(),
        "threads": torch.get_num_threads(),
        "dtype": torch.get_default_dtype(),
        "device": torch.get_default_device(),
        "determinism": determinism(),
        "autocast": [(name, *_autocast(name)) for name in DEVICE_TYPES if _autocast(name)[0]],
        "switches": {
            name: value
            for name, (get, _) in named_switches().items()
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
    """
    Sets this process, which must be one of our own, as another one was.

    Args:
        settings: From ``current_settings`` in a process with the same torch.
    """
    sys.setrecursionlimit(max(settings["recursion limit"], sys.getrecursionlimit()))
    torch.set_num_threads(settings["threads"])
    torch.set_default_dtype(settings["dtype"])
    if settings["device"] != torch.get_default_device():
        torch.set_default_device(settings["device"])
    is_deterministic, warns_only = settings["determinism"]
    if is_deterministic:
        torch.use_deterministic_algorithms(is_deterministic, warn_only=warns_only)
    for name, _, dtype, is_cached in settings["autocast"]:
        torch.set_autocast_dtype(name, dtype)
        torch.set_autocast_enabled(name, True)
        torch.set_autocast_cache_enabled(is_cached)
        torch.autocast_increment_nesting()
    switches = named_switches()
    for name, value in settings["switches"].items():
        get, set_ = switches[name]
        if read_switch(get) != value:
            set_(value)
    for name, values in settings["compilers"].items():
        for key, value in values.items():
            setattr(importlib.import_module(name), key, value)


def _autocast(device: str) -> tuple[bool, torch.dtype | None, bool]:
    try:
        is_enabled = torch.is_autocast_enabled(device)
        return is_enabled, torch.get_autocast_dtype(device) if is_enabled else None, torch.is_autocast_cache_enabled()
    except RuntimeError:  # a device that this torch knows nothing of
        return False, None, False
