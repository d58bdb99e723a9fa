"""
What compiled code leaves in a process, taken away again: its entries, its modules, and the names and hooks it needs.

Each ``keep_`` function looks now and returns what takes away what came since. Faces ``dynamo_state``; imports torch.
"""

from __future__ import annotations

import linecache
import sys
import weakref
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import CodeType, ModuleType

    Restore = Callable[[], None]

_INSTALLED = ("__import_", "__builtins_dict__", "__compiled_fn_", "__resume_at_")


def keep_cache_entries() -> Restore:
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
    manager = loaded("torch._dynamo.utils", "CleanupManager.instance", None)
    if manager is not None and code in manager:
        manager._remove_id(id(code))


def _forget_codes(tracker: Any, known: dict[int, CodeType]) -> None:
    """Takes codes met since out of dynamo's list, which would otherwise grow for as long as the process lives."""
    kept = [weak for weak in tracker.seen if id(weak()) in known]
    tracker.seen[:] = kept  # a weak reference that goes does not call back
    tracker.seen_ids.clear()
    tracker.seen_ids.update(known)


def keep_generated_modules() -> Restore:
    """
    The Python modules that Inductor loads for each graph, which hold a frozen model's weights.

    Source:
        ``PyCodeCache.modules`` (torch 2.7 to 2.15) and ``modules_no_attr`` (not in 2.7), torch/_inductor/codecache.py.
    """
    known = {id(module): module for module in _generated_modules()}

    def restore() -> None:
        cache = loaded("torch._inductor.codecache", "PyCodeCache", None)
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
    return list(getattr(loaded("torch._inductor.codecache", "PyCodeCache", None), "modules", ()))


def keep_generated_sources() -> Restore:
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
    found = getattr(loaded("torch.fx.graph_module", "_loader", None), "eval_cache", None)
    return found if isinstance(found, dict) else {}


def keep_module_class() -> Restore:
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


def keep_guard_finalizers() -> Restore:
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


def keep_installed_names() -> Restore:
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
        waiting = getattr(loaded("torch._dynamo.utils", "CleanupManager.instance", None), "values", {})
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


def loaded(path: str, name: str, default: Any) -> Any:
    """
    A dotted attribute of a module, where that is loaded.

    Args:
        path: The module.
        name: The attribute.
        default: Given where one of them is not there.
    """
    found: Any = sys.modules.get(path)
    for part in name.split("."):
        found = getattr(found, part, default)
        if found is default:
            break
    return found
