"""
Everything of the process that a diagnosis may disturb, put back when it ends, also when it ends by an exception.

Faces doctor and loading; imports measure's randomness. Dynamo's caches are capture's business.
"""

from __future__ import annotations

import contextlib
import importlib
import logging
import os
import sys
import warnings
from typing import TYPE_CHECKING, Any

import torch

from layoutdoctor.measure.randomness import keep_random_state

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    Restore = Callable[[], None]

_CONFIG_MODULES = ("torch._inductor.config", "torch._dynamo.config", "torch._functorch.config")
_MISSING = object()


@contextlib.contextmanager
def preserved_state() -> Iterator[None]:
    """
    Runs a block and puts back afterwards what it changed.

    Kept: random number generators, grad mode, default dtype and device, thread count, determinism, cuDNN and oneDNN
    switches, warning filters, environment variables, ``sys.path``, ``sys.argv``, levels of torch's loggers, and the
    settings of Inductor, dynamo and AOTAutograd. Not touched: autocast, inference mode, inter-operation threads.
    """
    restores = [take() for take in _SNAPSHOTS]
    try:
        yield
    finally:
        with contextlib.ExitStack() as stack:  # one that raises does not keep the others from running
            for restore in restores:
                stack.callback(restore)


def _keep_torch_switches() -> Restore:
    grad_enabled = torch.is_grad_enabled()
    dtype = torch.get_default_dtype()
    device = torch.get_default_device()
    thread_count = torch.get_num_threads()
    deterministic = (
        torch.are_deterministic_algorithms_enabled(),
        torch.is_deterministic_algorithms_warn_only_enabled(),
    )
    cudnn = torch.backends.cudnn.benchmark, torch.backends.cudnn.deterministic, torch.backends.cudnn.enabled
    mkldnn = torch.backends.mkldnn.enabled

    def restore() -> None:
        torch.set_grad_enabled(grad_enabled)
        torch.set_default_dtype(dtype)
        if torch.get_default_device() != device:
            torch.set_default_device(device)
        if torch.get_num_threads() != thread_count:
            torch.set_num_threads(thread_count)
        torch.use_deterministic_algorithms(deterministic[0], warn_only=deterministic[1])
        if (torch.backends.cudnn.benchmark, torch.backends.cudnn.deterministic, torch.backends.cudnn.enabled) != cudnn:
            torch.backends.cudnn.benchmark, torch.backends.cudnn.deterministic, torch.backends.cudnn.enabled = cudnn
        if torch.backends.mkldnn.enabled != mkldnn:
            torch.backends.mkldnn.set_flags(mkldnn)

    return restore


def _keep_process_state() -> Restore:
    environment = dict(os.environ)
    path, argv = list(sys.path), list(sys.argv)
    kept_warnings = contextlib.ExitStack()
    kept_warnings.enter_context(warnings.catch_warnings())

    def restore() -> None:
        for name in os.environ.keys() - environment.keys():
            del os.environ[name]
        for name, value in environment.items():
            if os.environ.get(name) != value:
                os.environ[name] = value
        sys.path[:] = path
        sys.argv[:] = argv
        kept_warnings.close()

    return restore


def _keep_log_levels() -> Restore:
    levels = {name: logger.level for name, logger in _torch_loggers().items()}

    def restore() -> None:
        for name, logger in _torch_loggers().items():
            level = levels.get(name, logging.NOTSET)
            if logger.level != level and name in levels:
                logger.setLevel(level)

    return restore


def _torch_loggers() -> dict[str, logging.Logger]:
    known = logging.getLogger().manager.loggerDict.items()
    return {
        name: logger
        for name, logger in known
        if isinstance(logger, logging.Logger) and (name == "torch" or name.startswith("torch."))
    }


def _keep_compiler_settings() -> Restore:
    # get_config_copy and attribute access are the same from torch 2.7 to 2.13; a snapshot takes under a millisecond.
    settings: dict[str, dict[str, Any]] = {}
    for name in _CONFIG_MODULES:
        settings[name] = importlib.import_module(name).get_config_copy()

    def restore() -> None:
        for name, before in settings.items():
            module: Any = sys.modules[name]
            for key, value in module.get_config_copy().items():
                old = before.get(key, _MISSING)
                if old is not _MISSING and old != value:
                    setattr(module, key, old)

    return restore


_SNAPSHOTS: tuple[Callable[[], Restore], ...] = (
    keep_random_state,
    _keep_torch_switches,
    _keep_process_state,
    _keep_log_levels,
    _keep_compiler_settings,
)
