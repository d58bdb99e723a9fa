"""
What a compile leaves behind in dynamo, AOTAutograd and Inductor, put back as it was before a diagnosis.

The caller's compiled functions keep their code and their entries; what the diagnosis added goes, so that the caller's
next compile, of the same model or of another one, is the one that it would have been.

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
import linecache
import re
import sys
import weakref
from collections import deque
from collections.abc import MutableSet
from functools import partial
from typing import TYPE_CHECKING, Any

from layoutdoctor.state.switches import nothing

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import CodeType, ModuleType

    from layoutdoctor.state.switches import Restore

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
    ("torch._inductor.codecache", "FxGraphCachePickler._pickleable_type_cache"),
    ("torch._inductor.codecache", "PyCodeCache.linemaps"),
    ("torch._inductor.compile_fx", "FxCompile._compile_stats"),
    ("torch._inductor.template_heuristics.registry", "_HEURISTIC_CACHE"),
    ("torch._inductor.template_heuristics.triton", "BaseHeuristicSingleton._instances"),
    ("torch._logging._internal", "log_state.artifact_names"),  # what ``torch._logging.set_logs`` remembers
    ("torch._logging._internal", "log_state.log_qname_to_level"),
    ("torch._logging._internal", "structured_logging_overhead"),
    ("torch._subclasses.fake_tensor", "FakeTensorMode.cache"),
    ("torch._subclasses.fake_tensor", "FakeTensorMode.cache_bypasses"),
    ("torch.compiler._cache", "CacheArtifactManager._new_cache_artifacts"),  # for ``save_cache_artifacts``
    ("torch.compiler._cache", "CacheArtifactManager._seen_artifacts"),
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
_INSTALLED = ("__import_", "__builtins_dict__", "__compiled_fn_", "__resume_at_")
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


def _keep_value(path: str, name: str, initial: Any) -> Restore:
    value = _loaded(path, name, initial)

    def restore() -> None:
        if value is not ... and _loaded(path, name, ...) is not ...:
            _set(path, name, value)

    return restore


def _keep_container(path: str, name: str) -> Restore:
    if path in sys.modules:
        return _keep_contents(_loaded(path, name, None))

    def restore() -> None:
        container = _loaded(path, name, None)
        if hasattr(container, "clear"):
            container.clear()

    return restore


def _keep_contents(value: Any) -> Restore:
    """What puts the contents of a container back in place, of those within it too; nothing for anything else."""
    if isinstance(value, dict):
        items = dict(value.items())
        inner = [_keep_contents(item) for item in items.values()]

        def refill() -> None:
            value.clear()
            for key, item in items.items():  # not update(), which adds where the dict is a Counter
                value[key] = item

    elif isinstance(value, (list, deque, MutableSet)):
        held = list(value)
        inner = [_keep_contents(item) for item in held]

        def refill() -> None:
            value.clear()
            value.extend(held) if isinstance(value, (list, deque)) else [value.add(item) for item in held]

    elif _is_changeable_record(value):
        return _keep_contents(vars(value))
    else:
        return nothing

    def restore() -> None:
        refill()
        for kept in inner:
            kept()

    return restore


def _is_changeable_record(value: Any) -> bool:
    parameters = getattr(value, "__dataclass_params__", None)
    is_instance = dataclasses.is_dataclass(value) and not isinstance(value, type)
    return is_instance and hasattr(value, "__dict__") and not getattr(parameters, "frozen", True)


def _keep_count(path: str, name: str) -> Restore:
    number = _peek(path, name)

    def restore() -> None:
        if number is not None and _peek(path, name) not in (None, number):
            _set(path, name, itertools.count(number))

    return restore


def _peek(path: str, name: str) -> int | None:
    """The number that an ``itertools.count`` would give next; None where there is no such thing."""
    if path not in sys.modules:
        return 0
    found = _COUNT.fullmatch(repr(_loaded(path, name, None)))
    return int(found[1]) if found else None


def _keep_entries_by_code(path: str, name: str) -> Restore:
    known = set(getattr(_loaded(path, name, None), "values", ()))

    def restore() -> None:
        entries = _loaded(path, name, None)
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
            kept()

    return restore


def _set(path: str, name: str, value: Any) -> None:
    *parents, last = name.split(".")
    owner = _loaded(path, ".".join(parents), None) if parents else sys.modules.get(path)
    setattr(owner, last, value)


def _keep_cache_entries() -> Restore:
    """
    Compiled code, by the code it was compiled from.

    Source:
        ``convert_frame.input_codes``, ``_debug_get_cache_entry_list``, ``ExtraState.invalidate`` (the way guards on
        dead objects invalidate an entry); torch 2.7 to 2.13.
    """
    from torch._dynamo import convert_frame

    trackers = [convert_frame.input_codes, convert_frame.output_codes]
    # Codes are kept alive meanwhile: an id may be used again once its object is gone. So are the entries.
    known = [{id(code): code for code in _live_codes(tracker)} for tracker in trackers]
    entries = {key: _cache_entries(code) for key, code in known[0].items()}

    def restore() -> None:
        from torch._C._dynamo import eval_frame

        for code in _live_codes(trackers[0]):
            if id(code) not in known[0]:
                eval_frame.reset_code(code)
                continue
            for entry in _cache_entries(code):
                if not any(entry is mine for mine in entries[id(code)]):
                    _invalidate(entry)
        for code in _live_codes(trackers[1]):
            if id(code) not in known[1]:
                _clean_up_after(code)
        for tracker, before in zip(trackers, known, strict=True):
            _forget_codes(tracker, before)

    return restore


def _live_codes(tracker: Any) -> list[CodeType]:
    codes = (weak() for weak in tracker.seen)
    return [code for code in codes if code is not None]


def _cache_entries(code: CodeType) -> list[Any]:
    from torch._C._dynamo.eval_frame import _debug_get_cache_entry_list

    return list(_debug_get_cache_entry_list(code))


def _invalidate(entry: Any) -> None:
    from torch._dynamo.guards import DeletedGuardManagerWrapper

    manager = entry.guard_manager
    if getattr(manager, "extra_state", None) is not None:
        manager.extra_state.invalidate(entry, DeletedGuardManagerWrapper("layoutdoctor: the diagnosis is over"))


def _clean_up_after(code: CodeType) -> None:
    """
    Takes what compiled code needs (``__compiled_fn_3``, ``__resume_at_8_4``) out of the globals of the code it is for.

    It goes with the code object; but torch 2.13 never lets go of one that a graph break cut.

    Source:
        ``torch._dynamo.utils.CleanupManager``, torch 2.7 to 2.13.
    """
    manager = _loaded("torch._dynamo.utils", "CleanupManager.instance", None)
    if manager is not None and code in manager:
        manager._remove_id(id(code))


def _forget_codes(tracker: Any, known: dict[int, CodeType]) -> None:
    """Takes codes met since out of dynamo's list, which would otherwise grow for as long as the process lives."""
    kept = [weak for weak in tracker.seen if id(weak()) in known]
    tracker.seen[:] = kept  # a weak reference that goes does not call back
    tracker.seen_ids.clear()
    tracker.seen_ids.update(known)


def _keep_generated_modules() -> Restore:
    """
    The Python modules that Inductor loads for each graph, which hold a frozen model's weights.

    Source:
        ``PyCodeCache.modules`` (torch 2.7 to 2.15) and ``modules_no_attr`` (not in 2.7), torch/_inductor/codecache.py.
    """
    known = {id(module): module for module in _generated_modules()}

    def restore() -> None:
        cache = _loaded("torch._inductor.codecache", "PyCodeCache", None)
        added = [module for module in _generated_modules() if id(module) not in known]
        for module in added:
            if sys.modules.get(module.__name__) is module:
                del sys.modules[module.__name__]
        ids = {id(module) for module in added}
        cache.modules[:] = [module for module in cache.modules if id(module) not in ids]
        by_path = getattr(cache, "modules_no_attr", {})  # not in torch 2.7
        for path in [path for path, module in by_path.items() if id(module) in ids]:
            del by_path[path]

    return restore


def _generated_modules() -> list[ModuleType]:
    return list(getattr(_loaded("torch._inductor.codecache", "PyCodeCache", None), "modules", ()))


def _keep_generated_sources() -> Restore:
    """Sources of traced graphs, kept for tracebacks (``torch.fx.graph_module._loader``), and of files read for one."""
    known = set(_traced_sources())
    lines = set(linecache.cache)

    def restore() -> None:
        sources = _traced_sources()
        for key in set(sources) - known:
            del sources[key]
        for key in set(linecache.cache) - lines:
            linecache.cache.pop(key, None)

    return restore


def _traced_sources() -> dict[str, str]:
    found = getattr(_loaded("torch.fx.graph_module", "_loader", None), "eval_cache", None)
    return found if isinstance(found, dict) else {}


def _keep_module_class() -> Restore:
    """
    ``nn.Module`` itself: the first compile of a process wraps its ``__init__`` and ``__setstate__``.

    Source:
        ``torch/_dynamo/mutation_guard.py``, torch 2.7 to 2.15.
    """
    from torch.nn import Module

    names = ("__init__", "__setstate__", "__setattr__")
    # Torch 2.15 marks a wrapped class by the third, earlier ones by the first; one that stayed would keep dynamo from
    # ever wrapping it again.
    marks = ("___needs_generation_tag_patch", "___needs_mutation_patch", "___has_generation_tag_patch")
    before = dict(vars(Module))

    def restore() -> None:
        ours = {name for name in names if vars(Module).get(name) is not before.get(name) and _is_dynamos(name)}
        for name in ours:
            setattr(Module, name, before[name])
        for name in marks if ours else ():
            if name in before:
                setattr(Module, name, before[name])
            elif name in vars(Module):
                delattr(Module, name)

    return restore


def _is_dynamos(name: str) -> bool:
    from torch.nn import Module

    code = getattr(vars(Module).get(name), "__code__", None)
    return code is not None and code.co_filename.endswith("mutation_guard.py")


def _keep_guard_finalizers() -> Restore:
    """
    What is to happen when an object goes that a guard names; for a class or a module, that is never.

    Until then each of them keeps a guard alive, and with it the compiled code and all that it refers to.

    Source:
        ``CheckFunctionManager.id_ref``, torch/_dynamo/guards.py, torch 2.7 to 2.13; Python's ``weakref.finalize``.
    """
    known = set(_finalizers())

    def restore() -> None:
        for finalizer in _finalizers():
            if finalizer in known:
                continue
            _, function, _, _ = finalizer.peek() or (None, None, None, None)
            owner = getattr(getattr(function, "func", None), "__self__", None)
            if type(owner).__module__ == "torch._dynamo.guards":
                finalizer.detach()

    return restore


def _finalizers() -> list[Any]:
    return list(getattr(weakref.finalize, "_registry", ()))


def _keep_installed_names() -> Restore:
    """
    Names that dynamo puts among the globals of the code it traces, which are the caller's.

    Names of modules (``__import_torch_dot_nn``) stay there for good, and so does what an attempt to trace left that
    came to nothing; the others go with the code that they belong to.

    Source:
        ``OutputGraph.import_source``, ``install_global_by_id`` and ``install_builtins_dict_in_fglobals``,
        ``CleanupManager``; torch 2.7 to 2.13.
    """
    known = _installed_names()

    def restore() -> None:
        waiting = getattr(_loaded("torch._dynamo.utils", "CleanupManager.instance", None), "values", {})
        hooks = [hook for hooks in waiting.values() for hook in hooks]
        awaited = {(id(hook.scope), hook.name) for hook in hooks}  # dynamo itself will delete these, and must find them
        for key, names in _installed_names().items():
            namespace = vars(sys.modules[key])
            for name in names - known.get(key, set()):
                if (id(namespace), name) not in awaited:
                    namespace.pop(name, None)  # a module may be known by two names

    return restore


def _installed_names() -> dict[str, set[str]]:
    found: dict[str, set[str]] = {}
    for key, module in list(sys.modules.items()):
        namespace = getattr(module, "__dict__", None)
        names = {name for name in list(namespace or ()) if isinstance(name, str) and name.startswith(_INSTALLED)}
        if names:
            found[key] = names
    return found


def _loaded(path: str, name: str, default: Any) -> Any:
    """A dotted attribute of a module, where that is loaded; the default where one of them is not there."""
    found: Any = sys.modules.get(path)
    for part in name.split("."):
        found = getattr(found, part, default)
        if found is default:
            break
    return found


# Values come last: some of them are containers that were filled anew.
_KEEPERS: tuple[Callable[[], Restore], ...] = (
    _keep_cache_entries,
    _keep_guard_finalizers,
    _keep_installed_names,
    *(partial(_keep_container, *row) for row in _CONTAINERS),
    *(partial(_keep_count, *row) for row in _COUNTS),
    *(partial(_keep_entries_by_code, *row) for row in _BY_CODE),
    _keep_metrics,
    _keep_generated_modules,
    _keep_generated_sources,
    _keep_module_class,
    *(partial(_keep_value, *row) for row in _VALUES),
)
