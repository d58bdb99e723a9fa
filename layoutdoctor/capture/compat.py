"""
Torch's private names, each with the loss if torch lacks it; and the settings and hooks of compiles that use them.

If torch lacks a name, ``private`` raises UnsupportedTorchError. Only the capture that needs the name is lost, and the
user's compile goes on. The wraps around Inductor's functions call the original and return its result. They record after
the call; only the traced model is recorded before, because Inductor changes it. An error while recording becomes a line
in ``failures``.
"""

from __future__ import annotations

import contextlib
import functools
import inspect
import logging
import pkgutil
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any
from unittest import mock

import torch
from packaging.version import Version

from layoutdoctor.errors import UnsupportedTorchError, UsageError, first_line
from layoutdoctor.state.switches import same_environment

if TYPE_CHECKING:
    from contextlib import AbstractContextManager

OLDEST = (2, 7)
NEWEST = (2, 15)

_CACHES = "fresh compiles of every configuration (a cache hit would hide the graphs)"
_DECISION = "why Inductor chose or refused channels-last"
_GRAPHS = "compiled graphs: their nodes, buffers, conversions and generated code"
_PACKAGES = "graphs that AOTInductor compiles"
_BUFFERS = "buffers and conversions inside compiled graphs"
_KERNELS = "names of generated kernels, and which buffers each of them writes"
_BREAKS = "graph breaks and their reasons"
_RECOMPILES = "why a graph was compiled again"
_RECOMPILE_LIMITS = "a raised recompile limit (many configurations may reach torch's own limit)"
_TRACED = "the text of the model for a reproducer, and lowering for a GPU that is not there"
_EAGER = "operations of the eager iteration"
_TARGET = "lowering for a GPU that is not there"
_COMPILING_STEPS = "which steps of a running program compile (profile() cannot leave them out)"

PRIVATE_NAMES: Mapping[str, str] = {
    "torch._inductor.config.fx_graph_cache": _CACHES,
    "torch._functorch.config.enable_autograd_cache": _CACHES,
    "torch._dynamo.config.recompile_limit": _RECOMPILE_LIMITS,
    "torch._dynamo.config.accumulated_recompile_limit": _RECOMPILE_LIMITS,
    "torch._dynamo.config.suppress_errors": "errors of the compiler (torch may run eager code instead)",
    "torch._inductor.config.layout_optimization": _DECISION,
    "torch._inductor.config.force_layout_optimization": _DECISION,
    "torch._inductor.async_compile.AsyncCompile.pool": "parallel builds of C++ kernels",
    "torch._inductor.cpp_builder.get_cpp_compiler": "a clear error for a missing C++ compiler",
    "torch._inductor.graph.GraphLowering.decide_layout_opt": _DECISION,
    "torch._inductor.graph.GraphLowering.compile_to_module": _GRAPHS,
    "torch._inductor.graph.GraphLowering.codegen_with_cpp_wrapper": _PACKAGES,
    "torch._inductor.scheduler.BaseScheduling": _KERNELS,
    "torch._inductor.codegen.cpp.CppScheduling.define_kernel": _KERNELS,
    "torch._inductor.codegen.triton.TritonScheduling.define_kernel": _KERNELS,
    "torch._inductor.scheduler.BaseSchedulerNode.get_nodes": _BUFFERS,
    "torch._inductor.scheduler.BaseSchedulerNode.get_outputs": _BUFFERS,
    "torch._inductor.scheduler.BaseSchedulerNode.get_name": _BUFFERS,
    "torch._inductor.scheduler.BaseSchedulerNode.is_extern": _BUFFERS,
    "torch._inductor.scheduler.SchedulerBuffer.get_aliases": "which buffers are views of others",
    "torch._inductor.scheduler.SchedulerBuffer.get_mutations": "which buffers write into an input",
    "torch._inductor.ir.Buffer.get_layout": "layouts of buffers, and with them conversions",
    "torch._inductor.ir.Buffer.get_dtype": "element types of buffers, and with them their bytes",
    "torch._inductor.ir.IRNode.get_origin_node": "which operation a library call comes from",
    "torch._inductor.loop_body.MemoryUsageType.LOAD": _BUFFERS,
    "torch._inductor.loop_body.MemoryUsageType.STORE": _BUFFERS,
    "torch._dynamo.utils.counters": _BREAKS,
    "torch._dynamo.utils.guard_failures": _RECOMPILES,
    "torch._dynamo.convert_frame.FRAME_COUNTER": _RECOMPILES,
    "torch._dynamo.callback.callback_handler": _COMPILING_STEPS,
    "torch.autograd._profiler_enabled": "whether another profiler records this thread",
    "torch._C._current_autograd_node": _EAGER,
    "torch.autograd._get_sequence_nr": _EAGER,
    "torch._functorch.aot_autograd.make_boxed_func": _TARGET,
    "torch._inductor.graph.GraphLowering.codegen": _TARGET,
    "torch._inductor.graph.GraphLowering._update_scheduler": _TARGET,
    "torch._inductor.graph.GraphLowering.init_wrapper_code": _TARGET,
    "torch._inductor.compile_fx.compile_fx": _TRACED,
    "torch._inductor.compile_fx.compile_fx_inner": _TARGET,
    "torch._inductor.decomposition.select_decomp_table": _TARGET,
    "torch._inductor.decomposition.is_gpu": _TARGET,
    "torch._inductor.runtime.hints.DeviceProperties.create": _TARGET,
    "torch._dynamo.device_interface.CudaInterface.get_device_properties": _TARGET,
    "torch._dynamo.device_interface.CudaInterface.is_bf16_supported": _TARGET,
    "torch._dynamo.device_interface.CudaInterface.Worker.get_device_properties": _TARGET,
    "torch._C._select_conv_backend": _TARGET,
    "torch._C._ConvBackend": _TARGET,
    "torch._guards.detect_fake_mode": _TARGET,
    "torch._subclasses.fake_tensor.FakeTensorMode.cache_clear": _TARGET,
    "torch._subclasses.fake_tensor.FakeTensor": _TARGET,
}
"""Dotted paths of torch's private names, each with a description of the loss if torch lacks the name."""


def private(path: str) -> Any:
    """
    Looks up a private name of torch.

    Args:
        path: Dotted path of the name, a key of ``PRIVATE_NAMES``.

    Raises:
        UnsupportedTorchError: This torch has no such name, or the lookup raises another error.
    """
    assert path in PRIVATE_NAMES
    try:
        return _look_up(path)
    except Exception as error:  # an unknown torch may raise anything
        raise UnsupportedTorchError(f"torch {torch.__version__} has no {path} ({first_line(error)})") from error


def _look_up(path: str) -> Any:
    owner, _, name = path.rpartition(".")
    return getattr(_owner(owner), name)


@functools.cache
def _owner(path: str) -> Any:
    """Imports a module or class of torch. The cache saves a slow lookup at every operation of an eager iteration."""
    return pkgutil.resolve_name(path)


def _lost_names(*, with_target: bool) -> str:
    """Lists the losses from private names that this torch lacks: each loss once, with the missing names."""
    blame: dict[str, list[str]] = {}
    for path, loses in PRIVATE_NAMES.items():
        if with_target or loses != _TARGET:
            try:
                _look_up(path)
            except Exception as error:  # an unknown torch may raise anything
                missing = isinstance(error, (AttributeError, ImportError))
                problem = "is missing" if missing else f"raises {first_line(error)}"
                blame.setdefault(loses, []).append(f"{path} {problem}")
    return "; ".join(f"{what} ({', '.join(names)})" for what, names in blame.items())


def notes_on_torch(version: str | None = None, *, with_target: bool = False) -> tuple[str, ...]:
    """
    Returns at most one note on this torch for the report; empty if the version was checked and has every private name.

    Args:
        version: Version in the form of ``torch.__version__``; None for the imported torch.
        with_target: Whether the diagnosis lowers for a GPU that is not there.

    Raises:
        UnsupportedTorchError: The torch is older than any that was checked.
    """
    text = str(torch.__version__) if version is None else version
    known = _release(text)
    if known is not None and known < OLDEST:
        raise UnsupportedTorchError(
            f"cannot diagnose with torch {text}: expected {_dotted(OLDEST)} or newer, the oldest that layoutdoctor was "
            "checked with; upgrade torch, or record a trace with torch.profiler and run `layoutdoctor show` on it"
        )
    lost = _lost_names(with_target=with_target)
    is_checked = known is not None and known <= NEWEST
    if is_checked:
        return (f"torch {text} lacks private names that layoutdoctor reads; lost: {lost}",) if lost else ()
    range_ = f"the versions layoutdoctor was checked with ({_dotted(OLDEST)} to {_dotted(NEWEST)})"
    unknown = f"torch {text} is newer than {range_}" if known is not None else f"torch {text} is none of {range_}"
    if lost:
        return (f"{unknown}; lost: {lost}",)
    return (
        f"{unknown}: every private name is there, but Inductor's decisions are explained by the rules of torch "
        f"{_dotted(NEWEST)}",
    )


def _release(version: str) -> tuple[int, int] | None:
    """Returns the major and minor number of a version, also of a nightly build; None if the text has none."""
    try:
        major, minor, *_ = Version(version.partition("+")[0]).release
    except ValueError:  # InvalidVersion is a ValueError
        return None
    return major, minor


def _dotted(version: Sequence[int]) -> str:
    return ".".join(str(part) for part in version)


def inductor_config() -> Any:
    """Returns Inductor's configuration module; raises UnsupportedTorchError if it cannot be imported."""
    try:
        with same_environment():
            import torch._inductor.config as config  # the import takes seconds: only if a model is compiled
    except ImportError as error:
        raise UnsupportedTorchError(
            f"cannot compile with torch {torch.__version__}: {first_line(error)}; expected a torch with Inductor"
        ) from error
    return config


def profiler_runs() -> bool:
    """Whether a profiler of torch records this thread; False if not known. A second profiler would end the first."""
    with contextlib.suppress(UnsupportedTorchError):
        return bool(private("torch.autograd._profiler_enabled")())
    return False


@contextlib.contextmanager
def lowering_every_graph() -> Iterator[None]:
    """A block without caches of graphs: a cache hit would skip ``GraphLowering``, where graphs are captured."""
    import torch._functorch.config as functorch_config

    with (
        _patched(inductor_config(), {"fx_graph_remote_cache": False, "fx_graph_cache": False}),
        _patched(functorch_config, {"enable_autograd_cache": False, "enable_remote_autograd_cache": False}),
    ):
        yield


@contextlib.contextmanager
def on_compiles(begins: Callable[[], None]) -> Iterator[None]:
    """
    A block in which ``begins`` is called each time torch.compile begins to compile, in the thread that compiles.

    Raises:
        UnsupportedTorchError: This torch has no such callbacks.

    Source:
        ``CompilationCallbackHandler.run_start_callbacks``, torch/_dynamo/callback.py, torch 2.7 to 2.13. A callback
        registered there would be lost at ``torch._dynamo.reset()``.
    """
    handler = private("torch._dynamo.callback.callback_handler")
    original = handler.run_start_callbacks

    def run_start_callbacks(*args: Any) -> Any:
        begins()
        return original(*args)

    with mock.patch.object(handler, "run_start_callbacks", run_start_callbacks):
        yield


@contextlib.contextmanager
def compile_settings(global_options: Mapping[str, Any]) -> Iterator[None]:
    """
    A block in which every graph is lowered again, while kernels of equal source are compiled only once.

    The caches of AOTAutograd and of FX graphs are off. The kernel caches stay on, so that all configurations share
    equal C++ and Triton kernels. A backward graph is lowered together with its forward graph, not when it first runs.
    Sizes become symbolic as in the user's own program, for example behind a graph break that several sizes reach.

    Args:
        global_options: Inductor settings that act only when set globally, such as ``freezing``.

    Source:
        ``torch/_inductor/config.py``, ``torch/_functorch/config.py``, ``torch/_dynamo/config.py``; torch 2.7 to 2.15.
        A setting that torch lacks is skipped; ``PRIVATE_NAMES`` says what is then lost.
    """
    import torch._dynamo.config as dynamo_config
    import torch._functorch.config as functorch_config

    inductor, functorch = dict(global_options), {"force_non_lazy_backward_lowering": True}
    dynamo = {"suppress_errors": False}
    # Torch can keep the shapes of a job between processes; a diagnosis neither reads nor writes such a profile.
    dynamo |= {"automatic_dynamic_local_pgo": False, "automatic_dynamic_remote_pgo": False}
    with contextlib.ExitStack() as stack:
        stack.enter_context(lowering_every_graph())
        stack.enter_context(without_recompile_limit())
        for module, values in ((inductor_config(), inductor), (functorch_config, functorch), (dynamo_config, dynamo)):
            stack.enter_context(_patched(module, values))
        yield


@contextlib.contextmanager
def building_kernels(count: int) -> Iterator[None]:
    """
    A block in which Inductor builds up to ``count`` C++ kernels in parallel; Inductor's threads end with the block.

    Source:
        ``AsyncCompile.submit``, torch/_inductor/async_compile.py; torch 2.7 to 2.14.
    """
    try:
        with inductor_config().patch(compile_threads=count):
            yield
    finally:
        with contextlib.suppress(UnsupportedTorchError, AttributeError):
            pool = private("torch._inductor.async_compile.AsyncCompile.pool")
            if pool.cache_info().currsize:
                pool().shutdown()
                pool.cache_clear()


def without_recompile_limit() -> AbstractContextManager[None]:
    """A block in which a model is compiled for hundreds of shapes; by default, the ninth shape runs in eager mode."""
    import torch._dynamo.config as dynamo_config

    return _patched(dynamo_config, {"recompile_limit": 512, "accumulated_recompile_limit": 4096})


def _patched(module: Any, values: Mapping[str, Any]) -> AbstractContextManager[None]:
    """A block with these settings; a setting that this torch lacks is skipped."""
    return module.patch(**{name: value for name, value in values.items() if hasattr(module, name)})


def compile_arguments_of(compiled: object) -> dict[str, Any]:
    """
    Finds the arguments that torch.compile was called with: ``mode`` or ``options``, ``dynamic``, ``fullgraph``.

    Returns:
        The arguments by name; empty if Inductor did not compile the object, or if this torch hides the arguments.

    Source:
        The context behind ``get_compiler_config``, ``innermost_backend``, torch/_dynamo/eval_frame.py;
        ``_TorchCompileInductorWrapper``, torch/__init__.py, torch 2.13.
    """
    with contextlib.suppress(Exception):  # another torch may keep the arguments elsewhere
        context = inspect.getclosurevars(compiled.get_compiler_config).nonlocals["self"]  # type: ignore[attr-defined]
        backend = context.callback
        while hasattr(backend, "_torchdynamo_orig_backend"):
            backend = backend._torchdynamo_orig_backend
        if not isinstance(backend, torch._TorchCompileInductorWrapper):
            return {}
        options, dynamic = dict(backend.config), backend.dynamic
        modes = torch._inductor.list_mode_options(dynamic=dynamic).items()
        mode = next((mode for mode, listed in modes if options and listed == options), None)
        found = {"mode": mode, "dynamic": dynamic, "fullgraph": context.fullgraph or None}
        found["options"] = options if options and mode is None else None
        return {name: value for name, value in found.items() if value is not None}
    return {}


def have_torch_check(given: Mapping[str, Any]) -> None:
    """
    Has torch check the values of arguments for ``torch.compile``.

    Raises:
        UsageError: Torch refuses a value.
    """
    try:
        torch.compile(lambda: None, **given)
    except Exception as error:  # torch raises several types
        shown = ", ".join(f"{name}={value!r}" for name, value in given.items())
        reason = first_line(error).partition(", known options are")[0]
        raise UsageError(f"cannot compile with {shown}: {reason}") from error


def missing_cpp_compiler() -> str | None:
    """
    Explains in a sentence why Inductor cannot compile for a CPU; None if a C++ compiler works or torch cannot say.

    Source:
        ``torch._inductor.cpp_builder.get_cpp_compiler``, torch 2.7 to 2.15.
    """
    try:
        private("torch._inductor.cpp_builder.get_cpp_compiler")()
    except (UnsupportedTorchError, TypeError):
        return None  # an unknown torch: the compile itself reports a missing compiler
    except Exception as error:  # InvalidCxxCompiler, or what the search for a compiler raised
        return (
            "cannot compile for the CPU: Inductor found no working C++ compiler; install g++ (Debian: apt-get install "
            f"g++) or set CXX, then run again; Inductor said: {first_line(error)}"
        )
    return None


def counts_backward_convolutions() -> bool:
    """
    Whether this torch's layout decision looks at ``aten.convolution_backward``.

    Source:
        The text of ``GraphLowering.decide_layout_opt``: torch 2.7, 2.11 and 2.13 do not name it, 2.15 does.
    """
    return "convolution_backward" in inspect.getsource(private("torch._inductor.graph.GraphLowering.decide_layout_opt"))


def triton_version() -> str | None:
    """Returns the version of Triton; None if it is not installed."""
    try:
        import triton
    except ImportError:
        return None
    return str(triton.__version__)


_SPURIOUS_LOG_LINE = "Conv inputs meta not found"
"""Line that ``decide_layout_opt`` logs for every inference graph (torch 2.7 to 2.15); it explains nothing."""


class InductorHooks:
    """
    Records compiles: wraps functions of Inductor on entry, and undoes all wraps on exit.

    Attributes:
        on_traced: Called with each graph that dynamo hands to Inductor, before Inductor changes it.
        on_decision: Called with (graph module, result, log lines, is_inference) after each layout decision.
        on_graph: Called with (GraphLowering, generated code, [(kernel name, node names, source)]) after code
            generation. The code is a loaded Python module or, from AOTInductor, the texts of wrapper and kernels.
        lowered_count: Number of graphs that were lowered; None if this torch does not let us see them.

    Source:
        ``compile_fx`` (torch/_inductor/compile_fx.py), ``GraphLowering.decide_layout_opt`` (static method) and
        ``GraphLowering.compile_to_module`` (torch/_inductor/graph.py), ``define_kernel`` of every ``BaseScheduling``
        (torch/_inductor/scheduler.py); torch 2.7, 2.11, 2.13 and 2.15. ``GraphLowering.codegen_with_cpp_wrapper`` of
        AOTInductor, torch 2.13.
    """

    def __init__(
        self,
        on_decision: Callable[[Any, bool, list[str], bool], None],
        on_graph: Callable[[Any, Any, list[tuple[str, list[str], str]]], None],
        on_traced: Callable[[Any], None] = lambda _: None,
    ) -> None:
        self.on_decision = on_decision
        self.on_graph = on_graph
        self.on_traced = on_traced
        self._is_compiling = False
        self.lowered_count: int | None = None
        self._failures: Counter[str] = Counter()
        self._kernels: list[tuple[str, list[str], str]] = []
        self._stack = contextlib.ExitStack()

    @property
    def failures(self) -> list[str]:
        """Parts of the capture that failed, each once with its reason; the compile itself went on."""
        return [f"{what} ({count} times)" if count > 1 else what for what, count in self._failures.items()]

    def __enter__(self) -> InductorHooks:
        lowering = "torch._inductor.graph.GraphLowering"
        wraps: tuple[tuple[str, str, Callable[..., Any]], ...] = (
            ("traced model", "torch._inductor.compile_fx.compile_fx", self._recording_tracing),
            ("layout decisions", f"{lowering}.decide_layout_opt", self._recording_decision),
            ("compiled graphs", f"{lowering}.compile_to_module", self._recording_graph),
            ("packaged graphs", f"{lowering}.codegen_with_cpp_wrapper", self._recording_package),
        )
        for what, path, recording in wraps:
            with self.guard(what):
                private(path)
                owner, _, name = path.rpartition(".")
                self._wrap(_owner(owner), name, recording)
        with self.guard("generated kernels"):
            self._wrap_kernels()
        return self

    def __exit__(self, *exception: object) -> None:
        self._stack.close()

    @contextlib.contextmanager
    def guard(self, what: str) -> Iterator[None]:
        """Turns an error while recording into a note: the user's compile must not see it."""
        try:
            yield
        except Exception as error:  # the compile goes on after any error
            self._failures[f"{what}: {first_line(error)}"] += 1

    def _wrap(self, owner: Any, name: str, recording: Callable[[Callable[..., Any]], Callable[..., Any]]) -> None:
        """Replaces a function of a class or module by a wrap that records."""
        is_static = isinstance(inspect.getattr_static(owner, name), staticmethod)
        original = getattr(owner, name)
        wrapped: Any = functools.wraps(original)(recording(original))
        self._stack.enter_context(mock.patch.object(owner, name, staticmethod(wrapped) if is_static else wrapped))

    def _recording_tracing(self, original: Callable[..., Any]) -> Callable[..., Any]:
        def compile_fx(*args: Any, **keywords: Any) -> Any:
            calls_itself, self._is_compiling = self._is_compiling, True
            if not calls_itself:
                with self.guard("the traced model"):
                    self.on_traced(args[0] if args else keywords["model_"])
            try:
                return original(*args, **keywords)
            finally:
                self._is_compiling = calls_itself

        return compile_fx

    def _recording_decision(self, original: Callable[..., Any]) -> Callable[..., Any]:
        def decide_layout_opt(*args: Any, **keywords: Any) -> Any:
            with contextlib.ExitStack() as stack:
                lines: list[str] = []
                with self.guard("Inductor's log of a layout decision"):
                    lines = stack.enter_context(_collected_log())
                result = original(*args, **keywords)
            with self.guard("a layout decision"):
                given = inspect.signature(original).bind(*args, **keywords).arguments
                self.on_decision(given["gm"], bool(result), lines, given["is_inference"])
            return result

        return decide_layout_opt

    def _recording_package(self, original: Callable[..., Any]) -> Callable[..., Any]:
        return self._recording_graph(original, is_package=True)

    def _recording_graph(self, original: Callable[..., Any], *, is_package: bool = False) -> Callable[..., Any]:
        if not is_package:
            self.lowered_count = self.lowered_count or 0

        def generate(*args: Any, **keywords: Any) -> Any:
            lowering = args[0]
            if getattr(lowering, "aot_mode", False) != is_package:  # one wrapped function may call the other
                return original(*args, **keywords)
            # A graph may be lowered during the lowering of another (autotuning, sub-graphs): each has its own kernels.
            outer, self._kernels = self._kernels, []
            try:
                generated = original(*args, **keywords)
                own = self._kernels
            finally:
                self._kernels = outer
            if not getattr(lowering, "is_const_graph", False):
                self.lowered_count = (self.lowered_count or 0) + 1
                with self.guard("a compiled graph"):
                    self.on_graph(lowering, generated, own)
            return generated

        return generate

    def _wrap_kernels(self) -> None:
        base = private("torch._inductor.scheduler.BaseScheduling")
        for path in ("torch._inductor.codegen.cpp.CppScheduling", "torch._inductor.codegen.triton.TritonScheduling"):
            with self.guard("generated kernels"):  # imports the subclass, which must exist to be wrapped
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
                self._kernels.append((str(first), [str(inner.get_name()) for inner in flat], source))
            return name

        return define_kernel


def _subclasses(cls: type) -> list[type]:
    direct: list[type] = cls.__subclasses__()
    return list(dict.fromkeys(found for subclass in direct for found in (subclass, *_subclasses(subclass))))


@contextlib.contextmanager
def _collected_log() -> Iterator[list[str]]:
    """A block that collects all log lines of Inductor's graph module; the log's handlers get no more than before."""
    lines: list[str] = []
    logger = logging.getLogger("torch._inductor.graph")
    level, effective = logger.level, logger.getEffectiveLevel()

    def collect(record: logging.LogRecord) -> bool:
        if record.getMessage() != _SPURIOUS_LOG_LINE:
            lines.append(record.getMessage())
        return record.levelno >= effective

    logger.addFilter(collect)
    logger.setLevel(logging.DEBUG)
    try:
        yield lines
    finally:
        logger.setLevel(level)
        logger.removeFilter(collect)
