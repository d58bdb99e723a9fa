"""
torch's private names, all in this file: each with where it stands and the torch version it was checked in.

Nothing here decides anything about layouts. Faces the rest of ``capture``; a name that is missing in another torch
costs the capture that needs it, never the user's compile.
"""

from __future__ import annotations

import contextlib
import functools
import logging
from typing import TYPE_CHECKING, Any
from unittest import mock

import torch

from layoutdoctor.errors import UnsupportedTorchError, first_line

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping
    from types import CodeType

_SPURIOUS_LOG_LINE = "Conv inputs meta not found"
"""Logged at every inference decision by a ``for ... else`` in ``decide_layout_opt`` (torch 2.7 to 2.13): no reason."""


def inductor_config() -> Any:
    """
    Inductor's settings.

    Raises:
        UnsupportedTorchError: This torch has no Inductor.
    """
    try:
        import torch._inductor.config as config  # seconds of import, only when a model is compiled
    except ImportError as error:
        raise UnsupportedTorchError(
            f"cannot compile with torch {torch.__version__}: {first_line(error)}; expected a torch with Inductor"
        ) from error
    return config


@contextlib.contextmanager
def compile_settings(global_options: Mapping[str, Any]) -> Iterator[None]:
    """
    Settings under which every graph is lowered afresh, while compiled kernels are shared by source.

    The FX-graph and AOTAutograd caches are off (a hit skips GraphLowering, so nothing would be captured); the kernel
    caches stay, so that equal C++ and Triton kernels are compiled once for all configurations. Shapes stay static and
    the recompile limit is raised, since several configurations share the code objects of one model.

    Args:
        global_options: Inductor settings that act only when set globally, such as ``freezing``.

    Source:
        ``torch/_inductor/config.py``, ``torch/_functorch/config.py``, ``torch/_dynamo/config.py``; torch 2.7-2.13.
    """
    import torch._dynamo.config as dynamo_config
    import torch._functorch.config as functorch_config

    inductor = {"fx_graph_cache": False, "fx_graph_remote_cache": False, **global_options}
    functorch = {"enable_autograd_cache": False, "enable_remote_autograd_cache": False}
    dynamo = {"recompile_limit": 512, "cache_size_limit": 512, "accumulated_recompile_limit": 4096}
    dynamo |= {"automatic_dynamic_shapes": False, "suppress_errors": False}
    with contextlib.ExitStack() as stack:
        for module, values in ((inductor_config(), inductor), (functorch_config, functorch), (dynamo_config, dynamo)):
            known = {name: value for name, value in values.items() if _has_setting(module, name)}
            stack.enter_context(module.patch(**known))
        yield


def distinct_options(name: str) -> dict[str, str]:
    """
    An option without effect on generated code that makes one compile's options differ from all others'.

    Dynamo compares backends by their options, so a frame behind a graph break could reuse another configuration's code.

    Args:
        name: Unique within the diagnosis.

    Source:
        ``aot_inductor.serialized_in_spec``, text that only AOTInductor's packaging reads; torch 2.7 to 2.13.
    """
    known = getattr(inductor_config().aot_inductor, "serialized_in_spec", None)
    return {"aot_inductor.serialized_in_spec": f"layoutdoctor {name}"} if isinstance(known, str) else {}


def missing_cpp_compiler() -> str | None:
    """
    What keeps Inductor from compiling for a CPU, in a sentence; None where a C++ compiler works.

    Source:
        ``torch._inductor.cpp_builder.get_cpp_compiler``, torch 2.7 to 2.13.
    """
    try:
        from torch._inductor.cpp_builder import get_cpp_compiler

        get_cpp_compiler()
    except ImportError:
        return None  # another torch: the compile itself will say
    except Exception as error:  # InvalidCxxCompiler, or what the search for a compiler raised
        return (
            f"cannot compile for the CPU: Inductor found no working C++ compiler ({first_line(error)}); "
            "install g++ (Debian: apt-get install g++) or set CXX, then run again"
        )
    return None


def _has_setting(module: Any, name: str) -> bool:
    try:
        getattr(module, name)
    except AttributeError:
        return False
    return True


class InductorHooks:
    """
    Three wraps around Inductor, all undone on exit, none of which can break a compile.

    Attributes:
        on_decision: Called with (graph module, result, log lines, is_inference) after each layout decision.
        on_graph: Called with (GraphLowering, module, [(kernel name, node names, source)]) after code generation.
        failures: What went wrong in a hook, in words; the compile itself went on.

    Source:
        ``GraphLowering.decide_layout_opt`` (static method), ``GraphLowering.compile_to_module``
        (torch/_inductor/graph.py) and ``define_kernel`` of every ``BaseScheduling`` (torch/_inductor/scheduler.py);
        the same in torch 2.7, 2.11, 2.13 and 2.15.
    """

    def __init__(
        self,
        on_decision: Callable[[Any, bool, list[str], bool | None], None],
        on_graph: Callable[[Any, Any, list[tuple[str, list[str], str]]], None],
    ) -> None:
        self.on_decision = on_decision
        self.on_graph = on_graph
        self.failures: list[str] = []
        self._kernels: list[tuple[str, list[str], str]] = []
        self._stack = contextlib.ExitStack()

    def __enter__(self) -> InductorHooks:
        for install in (self._wrap_decision, self._wrap_compile, self._wrap_kernels):
            with self._guard(f"cannot hook into Inductor of torch {torch.__version__}"):
                install()
        return self

    def __exit__(self, *exception: object) -> None:
        self._stack.close()

    @contextlib.contextmanager
    def _guard(self, what: str) -> Iterator[None]:
        """Turns any failure of ours into a note: the user's compile must not see it."""
        try:
            yield
        except Exception as error:  # whatever it is, the compile goes on
            self.failures.append(f"{what}: {first_line(error)}")

    def _wrap_decision(self) -> None:
        from torch._inductor.graph import GraphLowering

        original = GraphLowering.decide_layout_opt

        @functools.wraps(original)
        def decide_layout_opt(graph_module: Any, *args: Any, **keywords: Any) -> Any:
            with _collected_log("torch._inductor.graph") as lines:
                result = original(graph_module, *args, **keywords)
            with self._guard("layout decision not recorded"):
                self.on_decision(graph_module, bool(result), lines, keywords.get("is_inference"))
            return result

        self._stack.enter_context(
            mock.patch.object(GraphLowering, "decide_layout_opt", staticmethod(decide_layout_opt))
        )

    def _wrap_compile(self) -> None:
        from torch._inductor.graph import GraphLowering

        original = GraphLowering.compile_to_module

        @functools.wraps(original)
        def compile_to_module(graph: Any, *args: Any, **keywords: Any) -> Any:
            self._kernels = []
            module = original(graph, *args, **keywords)
            with self._guard("graph not recorded"):
                self.on_graph(graph, module, list(self._kernels))
            return module

        self._stack.enter_context(mock.patch.object(GraphLowering, "compile_to_module", compile_to_module))

    def _wrap_kernels(self) -> None:
        import torch._inductor.codegen.cpp
        import torch._inductor.codegen.triton  # noqa: F401 - its subclasses must exist to be wrapped
        from torch._inductor.scheduler import BaseScheduling

        for scheduling in _subclasses(BaseScheduling):
            if "define_kernel" in scheduling.__dict__:
                wrapped = self._recording(scheduling.__dict__["define_kernel"])
                self._stack.enter_context(mock.patch.object(scheduling, "define_kernel", wrapped))

    def _recording(self, original: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(original)
        def define_kernel(scheduling: Any, source: str, nodes: Any, *args: Any, **keywords: Any) -> Any:
            name = original(scheduling, source, nodes, *args, **keywords)
            with self._guard("kernel not recorded"):
                flat = [inner for node in nodes if hasattr(node, "get_nodes") for inner in node.get_nodes()]
                first = name[0] if isinstance(name, tuple) else name
                self._kernels.append((str(first), [inner.get_name() for inner in flat], source))
            return name

        return define_kernel


def _subclasses(cls: type) -> set[type]:
    direct: set[type] = set(cls.__subclasses__())
    return direct.union(*(_subclasses(subclass) for subclass in direct))


@contextlib.contextmanager
def _collected_log(name: str) -> Iterator[list[str]]:
    """What a logger says at DEBUG level meanwhile, without letting more than before through to its own handlers."""
    lines: list[str] = []
    logger = logging.getLogger(name)

    class Collector(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            message = record.getMessage()
            if message != _SPURIOUS_LOG_LINE:
                lines.append(message)

    before = (logger.level, logger.propagate, logger.handlers[:])
    collector = Collector(logging.DEBUG)
    logger.handlers = [collector]
    logger.setLevel(logging.DEBUG)
    logger.propagate = False
    try:
        yield lines
    finally:
        logger.setLevel(before[0])
        logger.propagate, logger.handlers = before[1], before[2]


class DynamoState:
    """
    Dynamo's process-wide state before a diagnosis, to be put back after it.

    The caller's compiled functions keep their code: only cache entries added since are invalidated.

    Source:
        ``convert_frame.input_codes``, ``utils.counters``, ``_debug_get_cache_entry_list``, ``ExtraState.invalidate``
        (the way guards on dead objects invalidate an entry); torch 2.7 to 2.13.
    """

    def __init__(self) -> None:
        from torch._dynamo import convert_frame, utils

        self._counters = {name: counter.copy() for name, counter in utils.counters.items()}
        self._guard_failures = {code: list(reasons) for code, reasons in getattr(utils, "guard_failures", {}).items()}
        self._codes = {id(code): code for code in _live_codes(convert_frame)}
        # The entries themselves are kept, not their ids: an id may be used again once its object is gone.
        self._entries = {key: _cache_entries(code) for key, code in self._codes.items()}
        self._reasons = len(getattr(utils, "graph_break_reasons", ()))
        self._compiles = convert_frame.FRAME_COUNTER
        self._compile_counts = dict(convert_frame.FRAME_COMPILE_COUNTER)

    def restore(self) -> None:
        """Puts it back, as far as this torch lets us; never raises."""
        for part in (self._restore_counters, self._restore_caches, self._restore_frames):
            with contextlib.suppress(Exception):  # a torch that moved its names keeps its own state
                part()

    def _restore_counters(self) -> None:
        from torch._dynamo import utils

        utils.counters.clear()
        utils.counters.update(self._counters)
        del getattr(utils, "graph_break_reasons", [])[self._reasons :]
        if hasattr(utils, "guard_failures"):
            utils.guard_failures.clear()
            utils.guard_failures.update(self._guard_failures)

    def _restore_caches(self) -> None:
        from torch._C._dynamo import eval_frame
        from torch._dynamo import convert_frame

        for code in _live_codes(convert_frame):
            if id(code) not in self._codes:
                eval_frame.reset_code(code)
                continue
            for entry in _cache_entries(code):
                if not any(entry is known for known in self._entries[id(code)]):
                    _invalidate(entry)

    def _restore_frames(self) -> None:
        from torch._dynamo import convert_frame

        convert_frame.FRAME_COUNTER = self._compiles
        convert_frame.FRAME_COMPILE_COUNTER.clear()
        convert_frame.FRAME_COMPILE_COUNTER.update(self._compile_counts)


def _live_codes(convert_frame: Any) -> list[CodeType]:
    codes = (weak() for weak in convert_frame.input_codes.seen)
    return [code for code in codes if code is not None]


def _cache_entries(code: CodeType) -> list[Any]:
    from torch._C._dynamo.eval_frame import _debug_get_cache_entry_list

    return list(_debug_get_cache_entry_list(code))


def _invalidate(entry: Any) -> None:
    from torch._dynamo.guards import DeletedGuardManagerWrapper

    manager = entry.guard_manager
    if getattr(manager, "extra_state", None) is not None:
        manager.extra_state.invalidate(entry, DeletedGuardManagerWrapper("layoutdoctor: the diagnosis is over"))


def graph_break_counters() -> dict[str, int]:
    """Dynamo's graph breaks so far, by reason (``torch._dynamo.utils.counters``, torch 2.7-2.13)."""
    from torch._dynamo import utils

    return dict(utils.counters["graph_break"])


def next_frame_number() -> int:
    """
    The number that dynamo will give to the next frame it meets; a guard's text starts with that of its frame.

    Source:
        ``torch._dynamo.convert_frame.FRAME_COUNTER``, torch 2.7 to 2.13.
    """
    from torch._dynamo import convert_frame

    return int(convert_frame.FRAME_COUNTER)


def guard_failure_reasons() -> dict[int, tuple[str, ...]]:
    """
    Dynamo's reasons for compiling a frame again so far, by the identity of its code.

    Source:
        ``torch._dynamo.utils.guard_failures``, torch 2.7 to 2.13.
    """
    from torch._dynamo import utils

    failures = getattr(utils, "guard_failures", {})
    return {
        id(code): tuple(str(getattr(reason, "reason", reason)) for reason in reasons)
        for code, reasons in failures.items()
    }


def triton_version() -> str | None:
    """Version of Triton, where it is installed."""
    try:
        import triton
    except ImportError:
        return None
    return str(triton.__version__)


def running_autograd_node() -> Any | None:
    """The autograd node that runs now, None outside backward (``_current_autograd_node``, torch 2.7-2.13)."""
    return torch._C._current_autograd_node()


def last_sequence_number() -> int:
    """Sequence number of the newest autograd node (``torch.autograd._get_sequence_nr``, as proxy_tensor reads it)."""
    return int(torch.autograd._get_sequence_nr()) - 1
