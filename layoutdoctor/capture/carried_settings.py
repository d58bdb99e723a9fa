"""
What a process has set torch to, read here and set in another process, so that a copy of the model runs there likewise.

Faces subjects' transport; imports torch. What is put back within one process is in ``torch_state``, whose tables say
which switches there are.
"""

from __future__ import annotations

import importlib
import sys
from typing import Any

import torch

from layoutdoctor.capture.torch_state import (
    DEVICE_TYPES,
    MISSING,
    config_modules,
    determinism,
    named_switches,
    read_switch,
)

Settings = dict[str, Any]


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
