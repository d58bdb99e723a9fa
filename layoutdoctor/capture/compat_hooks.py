"""
Wraps around Inductor that let the capture see decisions, graphs and kernels, and that can never break a compile.

Every wrap calls torch's own function first, with exactly what it was given, and returns exactly what that returned;
only then it looks, and whatever goes wrong while looking becomes a line in ``failures``.
"""

from __future__ import annotations

import contextlib
import functools
import inspect
import logging
from collections import Counter
from typing import TYPE_CHECKING, Any
from unittest import mock

import torch

from layoutdoctor.capture.compat import private
from layoutdoctor.errors import first_line

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

_SPURIOUS_LOG_LINE = "Conv inputs meta not found"
"""Logged at every inference decision by a ``for ... else`` in ``decide_layout_opt`` (torch 2.7 to 2.15): no reason."""

_LOGGER = "torch._inductor.graph"


class InductorHooks:
    """
    Three wraps around Inductor, all undone on exit.

    Attributes:
        on_decision: Called with (graph module, result, log lines, is_inference) after each layout decision.
        on_graph: Called with (GraphLowering, module, [(kernel name, node names, source)]) after code generation.
        lowered_count: Graphs that were lowered; None where this torch does not let us see them.

    Source:
        ``GraphLowering.decide_layout_opt`` (static method), ``GraphLowering.compile_to_module``
        (torch/_inductor/graph.py) and ``define_kernel`` of every ``BaseScheduling`` (torch/_inductor/scheduler.py);
        torch 2.7, 2.11, 2.13 and 2.15.
    """

    def __init__(
        self,
        on_decision: Callable[[Any, bool, list[str], bool | None], None],
        on_graph: Callable[[Any, Any, list[tuple[str, list[str], str]]], None],
    ) -> None:
        self.on_decision = on_decision
        self.on_graph = on_graph
        self.lowered_count: int | None = None
        self._failures: Counter[str] = Counter()
        self._kernels: list[tuple[str, list[str], str]] = []
        self._stack = contextlib.ExitStack()

    @property
    def failures(self) -> list[str]:
        """What was not recorded, and why, each thing once; the compile itself went on."""
        return [f"{what} ({count} times)" if count > 1 else what for what, count in self._failures.items()]

    def __enter__(self) -> InductorHooks:
        for what, install in (
            ("layout decisions", self._wrap_decision),
            ("compiled graphs", self._wrap_compile),
            ("generated kernels", self._wrap_kernels),
        ):
            with self.guard(what):
                install()
        return self

    def __exit__(self, *exception: object) -> None:
        with self.guard("whether the hooks were undone"):
            self._stack.close()

    @contextlib.contextmanager
    def guard(self, what: str) -> Iterator[None]:
        """Turns any failure of ours into a note: the user's compile must not see it."""
        try:
            yield
        except Exception as error:  # whatever it is, the compile goes on
            self._failures[f"{what}: {first_line(error)}"] += 1

    def _wrap(self, owner: Any, name: str, recording: Callable[[Callable[..., Any]], Callable[..., Any]]) -> None:
        """Replaces a method by one that records, of the same kind: static, of the class, or of the object."""
        found = inspect.getattr_static(owner, name)
        kind = type(found) if isinstance(found, (staticmethod, classmethod)) else None
        original = found.__func__ if kind is not None else found
        if not inspect.isroutine(original):
            raise TypeError(f"{owner.__name__}.{name} is no function, but a {type(original).__name__}")
        wrapped: Any = functools.wraps(original)(recording(original))
        self._stack.enter_context(mock.patch.object(owner, name, wrapped if kind is None else kind(wrapped)))

    def _wrap_decision(self) -> None:
        private("torch._inductor.graph.GraphLowering.decide_layout_opt")

        def recording(original: Callable[..., Any]) -> Callable[..., Any]:
            def decide_layout_opt(*args: Any, **keywords: Any) -> Any:
                with contextlib.ExitStack() as stack:
                    lines: list[str] = []
                    with self.guard("Inductor's log of a layout decision"):
                        lines = stack.enter_context(_collected_log(_LOGGER))
                    result = original(*args, **keywords)
                with self.guard("a layout decision"):
                    given = inspect.signature(original).bind(*args, **keywords).arguments
                    self._note_decision(given, result, lines)
                return result

            return decide_layout_opt

        self._wrap(_graph_lowering(), "decide_layout_opt", recording)

    def _note_decision(self, given: dict[str, Any], result: Any, lines: list[str]) -> None:
        modules = [value for value in given.values() if isinstance(value, torch.fx.GraphModule)]
        if not modules or not isinstance(result, bool):
            raise TypeError(f"expected a graph and True or False, got {', '.join(given)} and {type(result).__name__}")
        is_inference = given.get("is_inference")
        self.on_decision(modules[0], result, lines, is_inference if isinstance(is_inference, bool) else None)

    def _wrap_compile(self) -> None:
        private("torch._inductor.graph.GraphLowering.compile_to_module")

        def recording(original: Callable[..., Any]) -> Callable[..., Any]:
            def compile_to_module(*args: Any, **keywords: Any) -> Any:
                # A graph may be lowered while another one is (autotuning, sub-graphs): each has kernels of its own.
                outer, self._kernels = self._kernels, []
                try:
                    module = original(*args, **keywords)
                    own = self._kernels
                finally:
                    self._kernels = outer
                self.lowered_count = (self.lowered_count or 0) + 1
                with self.guard("a compiled graph"):
                    self.on_graph(args[0], module, own)
                return module

            return compile_to_module

        self._wrap(_graph_lowering(), "compile_to_module", recording)
        self.lowered_count = 0

    def _wrap_kernels(self) -> None:
        base = private("torch._inductor.scheduler.BaseScheduling")
        for path in ("torch._inductor.codegen.cpp.CppScheduling", "torch._inductor.codegen.triton.TritonScheduling"):
            with self.guard("generated kernels"):  # its subclasses must exist to be wrapped
                private(f"{path}.define_kernel")
        for scheduling in _subclasses(base):
            if "define_kernel" in scheduling.__dict__:
                with self.guard("generated kernels"):
                    self._wrap(scheduling, "define_kernel", self._recording_kernel)

    def _recording_kernel(self, original: Callable[..., Any]) -> Callable[..., Any]:
        def define_kernel(*args: Any, **keywords: Any) -> Any:
            name = original(*args, **keywords)
            with self.guard("a generated kernel"):
                _, source, nodes, *_ = inspect.signature(original).bind(*args, **keywords).args
                flat = [inner for node in nodes if hasattr(node, "get_nodes") for inner in node.get_nodes()]
                first = name[0] if isinstance(name, tuple) else name
                if not isinstance(first, str) or not isinstance(source, str):
                    got = f"{type(first).__name__} and {type(source).__name__}"
                    raise TypeError(f"expected a name and a source, got {got}")
                self._kernels.append((first, [str(inner.get_name()) for inner in flat], source))
            return name

        return define_kernel


def _graph_lowering() -> Any:
    from torch._inductor.graph import GraphLowering

    return GraphLowering


def _subclasses(cls: type) -> list[type]:
    found: dict[type, None] = {}
    direct: list[type] = cls.__subclasses__()
    for subclass in direct:
        found[subclass] = None
        found.update(dict.fromkeys(_subclasses(subclass)))
    return list(found)


@contextlib.contextmanager
def _collected_log(name: str) -> Iterator[list[str]]:
    """What a logger says at DEBUG level meanwhile, without letting more than before through to its handlers."""
    lines: list[str] = []
    logger = logging.getLogger(name)
    level, effective = logger.level, logger.getEffectiveLevel()

    def collect(record: logging.LogRecord) -> bool:
        with contextlib.suppress(Exception):  # a message whose arguments do not fit it
            message = record.getMessage()
            if message != _SPURIOUS_LOG_LINE:
                lines.append(message)
        return record.levelno >= effective

    logger.addFilter(collect)
    logger.setLevel(logging.DEBUG)
    try:
        yield lines
    finally:
        logger.setLevel(level)
        logger.removeFilter(collect)
