"""
Everything of a process and of a caller's model that a diagnosis must leave alone, as one flat table to be compared.

It knows nothing of what layoutdoctor keeps: besides a list of things that can be asked for, it walks over every value
that the modules of torch, numpy and Python's own library hold, so that it finds what nobody thought of.
"""

from __future__ import annotations

import builtins
import functools
import gc
import itertools
import linecache
import logging
import os
import random
import re
import signal
import sys
import tempfile
import threading
import types
import warnings
import zlib
from collections import deque
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
import torch._functorch.aot_autograd as aot_autograd
import torch._inductor.compile_fx as compile_fx
from torch import nn
from torch._inductor.async_compile import AsyncCompile
from torch.utils import _pytree as pytree

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

Snapshot = dict[str, object]

OWN = ("layoutdoctor",)
WALKED = (
    *("torch", "numpy", "triton", "builtins", "concurrent", "contextlib", "ctypes", "functools", "gc", "gzip"),
    *("inspect", "io", "json", "linecache"),
    *("locale", "logging", "multiprocessing", "os", "posixpath", "random", "re", "select", "shutil", "signal"),
    *("subprocess", "sys", "tempfile", "threading", "time", "traceback", "types", "unittest", "warnings", "weakref"),
    *OWN,
)
"""Modules, with all within them, whose values are compared."""

NOT_COMPARED = {
    r"_dispatch_cache|cached_ops|_builtin_table|simple_registry|\._dir$|_schema|_SCHEMA_": "operators, by name",
    r"^re\.|lru|_spec_cache|path_importer_cache|numpy_compat": "memories of pure functions",
    r"functools\.|funcname_cache|handler_cache": "the same",
    r"_cupti_monitor": "a part of torch looked for once",
    r"_unique_id_counter|next_id|DESCRIBER_NEXT_ID|_COUNTER$|_index_iter|_step_counter": "names never given out twice",
    r"CppPythonBindingsCodeCache|CppCodeCache|_loaded_module_names": "machine code that is loaded, found by its source",
    r"^torch\._logging\.structured\.INTERN_TABLE": "files that the trace log has named by number already",
    r"PhiloxStateTracker|_metrics_context_tls|virtualized\.threadlocal|DtypePropagation": "made anew by each compile",
    r"_hash_|_get_dict_|_config$": "settings, which are compared by value",
    r"\.Logger|[lL]og(ger|_registry)?$|loggerDict|LOGGER": "loggers, which are compared one by one",
    r"^tempfile\._name_sequence|^random\._inst": "names that nobody can foresee",
    r"^threading\._(counter|dangling|active|shutdown_locks)": "threads, which are compared by themselves",
    r"^triton\.language\.extra\.modules$": "another name of sys.modules",
    r"^sys\.(modules|last_|exc_|argv|path|stdout|stderr|stdin|flags)|^sys\._": "compared by themselves, or of pytest",
    r"__warningregistry__|^warnings\.": "compared by themselves; a registry is void once the filters changed",
    r"__annotations__|__annotate": "filled when they are asked for",
    r"^layoutdoctor\.measure\.profiling\._header": "what oneDNN says of itself once in a process",
}
"""Names that may differ, by pattern, and why no later work depends on them."""
_SKIP = re.compile("|".join(NOT_COMPARED))

_SIMPLE = (int, float, str, bytes, bool, complex, type(None))


def snapshot(*, model: Any = None, inputs: Any = (), walk: bool = True) -> Snapshot:
    """The state of this process, and of what the caller gave; the walk over all modules takes a second or two."""
    gc.collect()  # what is only waiting to be collected is not left behind
    parts: tuple[Callable[[], Iterator[tuple[str, object]]], ...] = (
        _generators,
        _switches,
        _modes,
        _hooks,
        _settings,
        _compiler,
        _interpreter,
        _surroundings,
        _files_threads_and_children,
        _loggers_and_warnings,
    )
    found: Snapshot = {}
    for part in parts:
        for name, value in part():
            found[f"{part.__name__.strip('_')}: {name}"] = value
    for name, value in (*_of_model(model), *_of_inputs(inputs), *(_walk() if walk else ())):
        found[name] = value
    return found


def differences(before: Snapshot, after: Snapshot) -> list[str]:
    """What is not as it was, one line each; what only the later one has was imported meanwhile, and does not count."""
    found = []
    for name, value in before.items():
        now = after.get(name, "gone")
        if now != value and not (name == _MAY_SHRINK and _has_fewer(now, value)):
            if isinstance(now, dict) and isinstance(value, dict):
                value, now = ({k: v for k, v in a.items() if b.get(k) != v} for a, b in ((value, now), (now, value)))
            found.append(f"{name}: {_short(value)} -> {_short(now)}")
    return found


_MAY_SHRINK = "weakref.finalize._registry"
"""What earlier tests left has finalizers that go with it whenever it is collected."""


def _has_fewer(now: object, once: object) -> bool:
    """Of two tables, as a walk describes them: kind, length, entries."""
    return isinstance(now, tuple) and isinstance(once, tuple) and now[0] == once[0] and now[1] < once[1]


def _short(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 160 else f"{text[:80]} ... {text[-70:]}"


def _generators() -> Iterator[tuple[str, object]]:
    yield "torch", _bytes_of(torch.default_generator.get_state())
    yield "random", random.getstate()
    yield "numpy", repr(np.random.get_state())
    for name in ("cuda", "xpu", "mtia"):
        device = getattr(torch, name)
        if device.is_initialized():
            yield name, [_bytes_of(state) for state in device.get_rng_state_all()]
        yield f"{name}, seeds waiting", [id(call) for call in device._lazy_seed_tracker.get_calls()]
        yield f"{name}, calls waiting", len(device._queued_calls)
        yield f"{name}, initialised", device.is_initialized()


def _switches() -> Iterator[tuple[str, object]]:
    backends = torch.backends
    yield "default dtype", torch.get_default_dtype()
    yield "default device", torch.get_default_device()
    yield "threads", (torch.get_num_threads(), torch.get_num_interop_threads())
    yield "deterministic", torch.are_deterministic_algorithms_enabled()
    yield "deterministic, warn only", torch.is_deterministic_algorithms_warn_only_enabled()
    yield "deterministic, fill", torch.utils.deterministic.fill_uninitialized_memory
    yield "matmul precision", torch.get_float32_matmul_precision()
    yield "warn always", torch.is_warn_always_enabled()
    yield "print options", repr(vars(torch._tensor_str.PRINT_OPTS))
    yield "quantized engine", backends.quantized.engine
    for name in ("enabled", "benchmark", "benchmark_limit", "deterministic", "allow_tf32", "fp32_precision"):
        yield f"cudnn.{name}", getattr(backends.cudnn, name)
    for name in ("enabled", "deterministic", "allow_tf32", "fp32_precision"):
        yield f"mkldnn.{name}", getattr(backends.mkldnn, name)
    for owner in (backends.cuda.matmul, backends.cudnn.conv, backends.cudnn.rnn, backends.mkldnn.matmul):
        yield f"precision {owner}", owner.fp32_precision
    for name in ("allow_tf32", "allow_fp16_reduced_precision_reduction", "allow_bf16_reduced_precision_reduction"):
        yield f"cuda.matmul.{name}", getattr(backends.cuda.matmul, name)
    for name in ("flash", "mem_efficient", "math", "cudnn"):
        yield f"sdp {name}", getattr(backends.cuda, f"{name}_sdp_enabled")()
    yield "linalg library", str(backends.cuda.preferred_linalg_library())
    yield "blas library", str(backends.cuda.preferred_blas_library())
    yield "nnpack", torch._C._get_nnpack_enabled()
    yield "denormals", float(torch.tensor([2.0**-1074], dtype=torch.float64, device="cpu").mul(1).item())


def _modes() -> Iterator[tuple[str, object]]:
    yield "grad", torch.is_grad_enabled()
    yield "inference", torch.is_inference_mode_enabled()
    yield "anomaly", (torch.is_anomaly_enabled(), torch.is_anomaly_check_nan_enabled())
    yield "function modes", [id(mode) for mode in torch.overrides._get_current_function_mode_stack()]
    yield "default device context", id(getattr(torch._GLOBAL_DEVICE_CONTEXT, "device_context", None))
    for device in ("cpu", "cuda"):
        yield f"autocast {device}", (torch.is_autocast_enabled(device), torch.get_autocast_dtype(device))
    yield "autocast cache", torch.is_autocast_cache_enabled()
    torch.autocast_increment_nesting()
    yield "autocast depth", torch.autocast_decrement_nesting()
    yield "profiler", (torch.autograd._profiler_enabled(), torch.autograd.profiler._is_profiler_enabled)
    yield "tracing", (torch._C._get_tracing_state(), torch.compiler.is_compiling())
    yield "compile context", (torch._guards.TracingContext.try_get(), torch._guards.CompileContext.try_get())
    yield "stance", repr(torch._dynamo.eval_frame._stance)
    yield "frame callback", torch._C._dynamo.eval_frame.get_eval_frame_callback()


def _hooks() -> Iterator[tuple[str, object]]:
    for name, value in vars(nn.Module).items():
        yield f"nn.Module.{name}", id(value)
    for name, value in vars(torch.Tensor).items():
        yield f"torch.Tensor.{name}", id(value)


def _settings() -> Iterator[tuple[str, object]]:
    for name, module in list(sys.modules.items()):
        if name.startswith("torch") and hasattr(type(module), "get_config_copy"):
            for key, value in module.get_config_copy().items():  # type: ignore[attr-defined]
                yield f"{name}.{key}", repr(value)
    state = torch._logging._internal.log_state
    yield "set_logs", (sorted(state.artifact_names), sorted(state.log_qname_to_level.items()))


def _compiler() -> Iterator[tuple[str, object]]:
    from torch._dynamo import convert_frame, pgo, utils
    from torch._inductor.codecache import PyCodeCache

    entries = torch._C._dynamo.eval_frame._debug_get_cache_entry_list
    codes = [code for code in (weak() for weak in convert_frame.input_codes.seen) if code is not None]
    yield "codes", sorted((code.co_filename, code.co_firstlineno, len(entries(code))) for code in codes)
    yield "frames", (convert_frame.FRAME_COUNTER, dict(convert_frame.FRAME_COMPILE_COUNTER))
    yield "counters", {name: dict(counter) for name, counter in utils.counters.items()}
    yield "guard failures", {id(code): len(reasons) for code, reasons in utils.guard_failures.items()}
    yield "metrics", [id(metrics) for metrics in utils._compilation_metrics]
    yield "shapes met", repr(pgo._CODE_STATE)
    yield "backends", list(torch._dynamo.eval_frame.cached_backends)
    yield "graph numbers", (repr(aot_autograd.AOT_COUNTER), repr(compile_fx._graph_counter))
    yield "generated modules", [id(module) for module in PyCodeCache.modules]
    yield "generated modules by name", sorted(name for name in sys.modules if ".compile_tasks." in name)
    yield "traced sources", sorted(torch.fx.graph_module._loader.eval_cache)
    yield "fake results", len(torch._subclasses.fake_tensor.FakeTensorMode.cache)
    yield "cleanup", sorted(hook.name for hooks in utils.CleanupManager.instance.values.values() for hook in hooks)
    names = ("__import_", "__compiled_fn", "__resume_at", "__builtins_dict")
    for key, module in list(sys.modules.items()):
        left = sorted(name for name in list(getattr(module, "__dict__", ())) if str(name).startswith(names))
        if left or key.startswith(OWN):
            yield f"names in {key}", left


def _interpreter() -> Iterator[tuple[str, object]]:
    for name in ("stdin", "stdout", "stderr"):
        yield f"sys.{name}", id(getattr(sys, name))
    for name in ("argv", "path"):
        yield f"sys.{name}", (id(getattr(sys, name)), list(getattr(sys, name)))
    yield "recursion limit", sys.getrecursionlimit()
    yield "builtins", sorted(name for name in vars(builtins) if name != "_")
    yield "garbage collection", gc.isenabled()
    yield "subjects", sorted(name for name in sys.modules if name.startswith("_layoutdoctor"))
    yield "lines", sorted(name for name in linecache.cache if name.startswith(("<eval_with_key>", "/tmp")))


def _surroundings() -> Iterator[tuple[str, object]]:
    names = sorted(name for name in os.environ if name != "PYTEST_CURRENT_TEST")
    yield "variables", names
    for name in names:
        yield f"variable {name}", os.environ[name]
    yield "folder", str(Path.cwd())
    yield "signals", {int(number): id(signal.getsignal(number)) for number in signal.valid_signals()}


def _files_threads_and_children() -> Iterator[tuple[str, object]]:
    open_files: dict[int, object] = {}
    for entry in list(Path("/proc/self/fd").iterdir()):
        try:
            # Whoever else deletes the file changes nothing of this process.
            target, stat = str(entry.readlink()).removesuffix(" (deleted)"), os.fstat(int(entry.name))
        except OSError:  # the one that lists them
            continue
        open_files[int(entry.name)] = (target, stat.st_dev, stat.st_ino, os.get_inheritable(int(entry.name)))
    yield "descriptors", open_files
    # Inductor's one pool starts a thread when a kernel waits and none is free; it is torch's own, and stays.
    pool = AsyncCompile.pool()._threads if AsyncCompile.pool.cache_info().currsize else set()
    yield "threads", sorted(thread.name for thread in threading.enumerate() if thread not in pool)
    children: list[str] = []
    for task in Path("/proc/self/task").iterdir():
        children += (task / "children").read_text(encoding="ascii").split()
    yield "children", sorted(children)
    names = (path.name for path in Path(tempfile.gettempdir()).iterdir())
    yield "temporary files", sorted(name for name in names if name.startswith(("layoutdoctor", "tmp")))


def _loggers_and_warnings() -> Iterator[tuple[str, object]]:
    root = logging.getLogger()
    loggers = {"root": root, **{n: x for n, x in root.manager.loggerDict.items() if isinstance(x, logging.Logger)}}
    for name, logger in loggers.items():
        yield f"logger {name}", (logger.level, logger.propagate, logger.disabled, list(map(id, logger.handlers)))
    yield "logging", root.manager.disable
    yield "filters", (id(warnings.filters), list(map(str, warnings.filters)))
    yield "showwarning", (id(warnings.showwarning), id(warnings._showwarnmsg_impl))  # type: ignore[attr-defined]


def _bytes_of(tensor: torch.Tensor) -> object:
    flat = tensor.detach().cpu().contiguous().reshape(-1)
    return zlib.crc32(flat.view(torch.uint8).numpy().tobytes()) if flat.numel() else 0


def _of_tensor(tensor: torch.Tensor) -> object:
    if tensor.layout != torch.strided or tensor.is_meta:
        return id(tensor)
    grad = tensor.grad if tensor.is_leaf else None
    return {
        "identity": id(tensor),
        "storage": (tensor.untyped_storage().data_ptr(), tensor.data_ptr(), tensor.storage_offset()),
        "layout": (tuple(tensor.shape), tensor.stride(), tensor.dtype, tensor.device),
        "version": tensor._version,
        "requires_grad": (tensor.requires_grad, tensor.is_leaf, id(tensor.grad_fn)),
        "hooks": [id(hook) for hook in (tensor._backward_hooks or {}).values()],
        "attributes": sorted(vars(tensor)),
        "values": _bytes_of(tensor),
        "gradient": None if grad is None else (id(grad), grad.data_ptr(), grad.stride(), _bytes_of(grad)),
    }


def _of_model(model: Any) -> Iterator[tuple[str, object]]:
    if not isinstance(model, nn.Module):
        return
    for name, tensor in (*model.named_parameters(), *model.named_buffers()):
        for what, value in _items(_of_tensor(tensor)):
            yield f"model: {name}: {what}", value
    for name, part in model.named_modules():
        where = f"model: {name or 'itself'}"
        yield f"{where}: mode", part.training
        for key, value in vars(part).items():
            yield f"{where}: {key}", id(value)
            if isinstance(value, dict):
                yield f"{where}: {key}, contents", [(str(k), id(v)) for k, v in value.items()]
            elif isinstance(value, (list, set)) and all(isinstance(item, _SIMPLE) for item in value):
                yield f"{where}: {key}, contents", sorted(map(repr, value))
    for cls in {cls for part in model.modules() for cls in type(part).__mro__}:
        for key, value in vars(cls).items():
            if cls is not object and not key.startswith("__"):
                yield f"model: class {cls.__name__}: {key}", id(value)


def _of_inputs(inputs: Any) -> Iterator[tuple[str, object]]:
    for index, leaf in enumerate(pytree.tree_leaves(inputs)):
        for what, value in _items(_of_tensor(leaf) if isinstance(leaf, torch.Tensor) else repr(leaf)):
            yield f"input {index}: {what}", value


def _items(value: object) -> list[tuple[str, object]]:
    return list(value.items()) if isinstance(value, dict) else [("identity", value)]


def _walk() -> Iterator[tuple[str, object]]:
    """Every value that a module holds, and every one that a class defined in it holds."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # old names of torch warn when they are looked at
        for name, module in list(sys.modules.items()):
            if not isinstance(module, types.ModuleType) or not f"{name}.".startswith(_PREFIXES):
                continue
            for key, value in list(vars(module).items()):
                path = f"{name}.{key}"
                if not _is_skipped(path):
                    yield path, _description(value)
                if isinstance(value, type) and getattr(value, "__module__", None) == name:
                    for inner, held in list(vars(value).items()):
                        if not inner.startswith("__") and not _is_skipped(f"{path}.{inner}"):
                            yield f"{path}.{inner}", _description(held)


@functools.cache
def _is_skipped(path: str) -> bool:
    return _SKIP.search(path) is not None


_PREFIXES = tuple(f"{name}." for name in WALKED)


def _description(value: Any, depth: int = 0) -> object:
    """What can be compared of a value: simple ones as they are, containers by what is in them, others by identity."""
    kind = type(value)
    if isinstance(value, _SIMPLE) and kind in _SIMPLE:
        return repr(value) if kind in (float, complex) else value  # NaN is not even equal to itself
    if kind is itertools.count:
        return repr(value)
    if isinstance(value, (dict, list, set, deque)):
        held = list(value.values()) if isinstance(value, dict) else list(value)
        inner = [_description(item, depth + 1) for item in held[:200]] if depth < 1 and kind is not set else None
        return (kind.__name__, len(held), inner)
    if kind is torch.Tensor:
        return (id(value), value._version)
    return (kind.__name__, id(value))
