"""
What a compile leaves behind in dynamo, AOTAutograd and Inductor, put back as it was before a diagnosis.

The caller's compiled functions keep their code and their entries; what the diagnosis added goes, so that the caller's
next compile, of the same model or of another one, is the one that it would have been. Faces doctor; imports torch.

Not put back, because nothing that the caller does depends on it:
    - memories of pure functions (``functools.lru_cache``, operator lookups, sympy's, regular expressions);
    - machine code of kernels already loaded (Inductor finds it by its source; Python cannot unload it), and the files
      in Inductor's cache directory, which every process of the user shares by design;
    - counters that names are made of (``bytecode_transformation._unique_id_counter``, ``<eval_with_key>.N``, hook ids):
      a name that is given out twice could be deleted by the one who had it first;
    - Inductor's worker processes and threads, which torch starts with the first compile of a process and keeps;
    - cudagraph trees: torch can drop all of them, the caller's too, or none.
"""

from __future__ import annotations

import contextlib
import dataclasses
import itertools
import re
import sys
from collections import deque
from collections.abc import MutableSet
from typing import TYPE_CHECKING, Any

from layoutdoctor.capture.dynamo_code import (
    keep_cache_entries,
    keep_generated_modules,
    keep_generated_sources,
    keep_guard_finalizers,
    keep_installed_names,
    keep_module_class,
    loaded,
)

if TYPE_CHECKING:
    from collections.abc import Callable

    Restore = Callable[[], None]

# Each row says what it is in a process that has not compiled yet, for a module that the diagnosis is first to import.
# Names as in torch 2.13; one that another torch lacks is passed over.
_VALUES: tuple[tuple[str, str, Any], ...] = (
    ("torch._dynamo.convert_frame", "FRAME_COUNTER", 0),
    ("torch._dynamo.convert_frame", "initial_global_state", None),
    ("torch._dynamo.utils", "CleanupManager.count", 0),
    ("torch._dynamo.utils", "curr_frame", 0),
    ("torch._dynamo.utils", "op_count", 0),
    ("torch._dynamo.eval_frame", "_stance", ...),
    ("torch._dynamo.mutation_guard", "GenerationTracker.generation", 0),
    ("torch._dynamo.pgo", "_CODE_STATE", None),
    ("torch._dynamo.pgo", "_INIT_CODE_STATE", None),
    ("torch._dynamo.pgo", "_LOGGED_DYNAMIC_ALLOWLIST", False),
    ("torch._functorch._aot_autograd.logging_utils", "nth_graph", 0),
    ("torch._functorch._aot_autograd.logging_utils", "model_name", "model"),
    ("torch._subclasses.fake_tensor", "FakeTensorMode.cache_hits", 0),
    ("torch._subclasses.fake_tensor", "FakeTensorMode.cache_misses", 0),
)
_CONTAINERS: tuple[tuple[str, str], ...] = (
    ("torch._dynamo.convert_frame", "FRAME_COMPILE_COUNTER"),
    ("torch._dynamo.eval_frame", "cached_backends"),
    ("torch._dynamo.eval_frame", "dynamo_tls.traced_frame_infos"),
    ("torch._dynamo.pgo", "_CODE_STATE"),  # what automatic dynamic shapes have seen: sizes met, by code
    ("torch._dynamo.pgo", "_INIT_CODE_STATE"),
    ("torch._dynamo.pgo", "_KNOWN_DYNAMIC_SOURCES"),
    ("torch._dynamo.utils", "counters"),
    ("torch._dynamo.utils", "compilation_time_metrics"),
    ("torch._dynamo.utils", "cumulative_time_spent_ns"),
    ("torch._dynamo.utils", "_compilation_metrics"),
    ("torch._dynamo.utils", "graph_break_reasons"),
    ("torch._dynamo.utils", "guard_failures"),
    ("torch._dynamo.utils", "optimus_scuba_log"),
    ("torch._dynamo.utils", "warn_once_cache"),
    ("torch._functorch._aot_autograd.logging_utils", "graph_being_compiled"),
    ("torch._inductor.codecache", "PyCodeCache.linemaps"),
    ("torch._inductor.compile_fx", "FxCompile._compile_stats"),
    ("torch._inductor.template_heuristics.registry", "_HEURISTIC_CACHE"),
    ("torch._inductor.template_heuristics.triton", "BaseHeuristicSingleton._instances"),
    ("torch._logging._internal", "structured_logging_overhead"),
    ("torch._subclasses.fake_tensor", "FakeTensorMode.cache"),
    ("torch._subclasses.fake_tensor", "FakeTensorMode.cache_bypasses"),
    ("torch.utils._stats", "simple_call_counter"),
)
# Numbers of graphs: they stand in generated code (``AOT ID``) and in the names of profiled kernels.
_COUNTS: tuple[tuple[str, str], ...] = (
    ("torch._dynamo.output_graph", "_compile_id_counter"),
    ("torch._functorch.aot_autograd", "AOT_COUNTER"),
    ("torch._inductor.compile_fx", "_graph_counter"),
    ("torch._inductor.graph", "_post_grad_graph_counter"),
    ("torch._inductor.scheduler", "_post_grad_graph_counter"),
)
# Entries by the identity of a code object: those of codes met since go, those of the caller's stay as they are.
_BY_CODE: tuple[tuple[str, str], ...] = (
    ("torch._dynamo.code_context", "code_context.code_context"),
    ("torch._dynamo.eval_frame", "always_optimize_code_objects"),
    ("torch._dynamo.utils", "orig_code_map"),
    ("torch._dynamo.utils", "seen_code_map"),
)
_COUNT = re.compile(r"count\((\d+)\)")


class DynamoState:
    """
    The compiler's process-wide state before a diagnosis, to be put back after it.

    Source:
        ``torch._dynamo.reset()``, which lists most of it, and a comparison of everything that torch's modules hold
        before and after a compile (torch 2.13).
    """

    def __init__(self) -> None:
        self._restores: list[Restore] = []
        for keep in _KEEPERS:
            with contextlib.suppress(Exception):  # a torch that moved its names keeps its own state
                self._restores.append(keep())

    def restore(self) -> None:
        """Puts it back, as far as this torch lets us; never raises."""
        for restore in self._restores:
            with contextlib.suppress(Exception):
                restore()


def _keep_values() -> Restore:
    before = [(path, name, loaded(path, name, initial)) for path, name, initial in _VALUES]

    def restore() -> None:
        for path, name, value in before:
            if value is not ... and loaded(path, name, ...) is not ...:
                with contextlib.suppress(Exception):
                    _set(path, name, value)

    return restore


def _keep_containers() -> Restore:
    restores: list[Restore] = []
    later: list[tuple[str, str]] = []
    for path, name in _CONTAINERS:
        if path not in sys.modules:
            later.append((path, name))
            continue
        with contextlib.suppress(Exception):
            kept = _keep_contents(loaded(path, name, None))
            if kept is not None:
                restores.append(kept)

    def restore() -> None:
        for kept in restores:
            with contextlib.suppress(Exception):
                kept()
        for path, name in later:
            container = loaded(path, name, None)
            if hasattr(container, "clear"):
                container.clear()

    return restore


def _keep_contents(value: Any) -> Restore | None:
    """What puts the contents of a container back in place, of those within it too; None for anything else."""
    if isinstance(value, dict):
        items = dict(value.items())
        inner = [kept for kept in map(_keep_contents, items.values()) if kept is not None]

        def refill() -> None:
            value.clear()
            for key, item in items.items():  # not update(), which adds where the dict is a Counter
                value[key] = item

    elif isinstance(value, (list, deque, MutableSet)):
        held = list(value)
        inner = [kept for kept in map(_keep_contents, held) if kept is not None]

        def refill() -> None:
            value.clear()
            value.extend(held) if isinstance(value, (list, deque)) else [value.add(item) for item in held]

    elif _is_changeable_record(value):
        return _keep_contents(vars(value))
    else:
        return None

    def restore() -> None:
        refill()
        for kept in inner:
            kept()

    return restore


def _is_changeable_record(value: Any) -> bool:
    parameters = getattr(value, "__dataclass_params__", None)
    is_instance = dataclasses.is_dataclass(value) and not isinstance(value, type)
    return is_instance and hasattr(value, "__dict__") and not getattr(parameters, "frozen", True)


def _keep_counts() -> Restore:
    before = [(path, name, _peek(path, name)) for path, name in _COUNTS]

    def restore() -> None:
        for path, name, number in before:
            if number is not None and _peek(path, name) not in (None, number):
                _set(path, name, itertools.count(number))

    return restore


def _peek(path: str, name: str) -> int | None:
    """The number that an ``itertools.count`` would give next; None where there is no such thing."""
    if path not in sys.modules:
        return 0
    found = _COUNT.fullmatch(repr(loaded(path, name, None)))
    return int(found[1]) if found else None


def _keep_entries_by_code() -> Restore:
    before = {(path, name): set(getattr(loaded(path, name, None), "values", ())) for path, name in _BY_CODE}

    def restore() -> None:
        for (path, name), known in before.items():
            entries = loaded(path, name, None)
            for key in set(getattr(entries, "values", ())) - known:
                entries._remove_id(key)

    return restore


def _keep_metrics() -> Restore:
    """Inductor's counts of what it generated (``torch._inductor.metrics``): every number and list in that module."""
    name = "torch._inductor.metrics"
    before = dict(vars(sys.modules[name])) if name in sys.modules else None
    lists = [_keep_contents(value) for value in (before or {}).values() if isinstance(value, list)]

    def restore() -> None:
        module = sys.modules.get(name)
        if module is None:
            return
        if before is None:
            module.reset()
            return
        for key, value in before.items():
            if type(value) is int:
                setattr(module, key, value)
        for kept in lists:
            if kept is not None:
                kept()

    return restore


def _set(path: str, name: str, value: Any) -> None:
    *parents, last = name.split(".")
    owner = loaded(path, ".".join(parents), None) if parents else sys.modules.get(path)
    setattr(owner, last, value)


# Values come last: some of them are containers that were filled anew.
_KEEPERS: tuple[Callable[[], Restore], ...] = (
    keep_cache_entries,
    keep_guard_finalizers,
    keep_installed_names,
    _keep_containers,
    _keep_counts,
    _keep_entries_by_code,
    _keep_metrics,
    keep_generated_modules,
    keep_generated_sources,
    keep_module_class,
    _keep_values,
)
