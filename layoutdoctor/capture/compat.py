"""
What ``capture`` asks of torch's private parts, each answer with where it stands and the torch it was checked in.

The names themselves are in ``compat_names``, the wraps around Inductor in ``compat_hooks``. Nothing here decides
anything about layouts. A name that is missing in another torch raises UnsupportedTorchError: it costs the capture that
needs it, never the user's compile.
"""

from __future__ import annotations

import contextlib
import importlib
import inspect
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from packaging.version import Version

from layoutdoctor.errors import UnsupportedTorchError, first_line

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

OLDEST = (2, 7)
NEWEST = (2, 15)
CHECKED = ("2.7.1", "2.11.0", "2.13.0", "2.15.0")
"""What ``.ci/version_matrix.py`` was run with (benchmarks/results/version_matrix.json)."""


@dataclass(frozen=True)
class PrivateName:
    """
    One private name.

    Attributes:
        module: Where it stands.
        name: Its name there, with dots where it belongs to a class.
        loses: What is not known, or not kept, without it.
        parameters: Names of arguments that we read or pass; empty where it is no function.
        only: ``target`` for what is needed only to lower for a GPU that is not there; None for any diagnosis.
        checked: Versions of torch in which it was seen to be there and to do what is expected.
    """

    module: str
    name: str
    loses: str
    parameters: tuple[str, ...] = ()
    only: str | None = None
    checked: tuple[str, ...] = CHECKED

    @property
    def path(self) -> str:
        """Module and name."""
        return f"{self.module}.{self.name}"


_CACHES = "fresh compiles of every configuration (a cache may answer, and then no graph is seen)"
_DECISION = "why Inductor chose or left channels-last"
_GRAPHS = "compiled graphs: their nodes, buffers, conversions and generated code"
_BUFFERS = "buffers and conversions inside compiled graphs"
_KERNELS = "names of generated kernels, and which buffers each of them writes"
_BREAKS = "graph breaks and their reasons"
_RECOMPILES = "why a graph was compiled again"
_RECOMPILE_LIMITS = "a raised limit of recompiles (many configurations may meet torch's own)"
_EAGER = "operations of the eager iteration"
_TARGET = "lowering for a GPU that is not there"

PRIVATE_NAMES: tuple[PrivateName, ...] = (
    PrivateName("torch._inductor.config", "fx_graph_cache", _CACHES),
    PrivateName("torch._functorch.config", "enable_autograd_cache", _CACHES),
    PrivateName("torch._dynamo.config", "recompile_limit", _RECOMPILE_LIMITS),
    PrivateName("torch._dynamo.config", "accumulated_recompile_limit", _RECOMPILE_LIMITS),
    PrivateName("torch._dynamo.config", "automatic_dynamic_shapes", "static shapes (sizes may become symbolic)"),
    PrivateName("torch._dynamo.config", "suppress_errors", "errors of the compiler (it may fall back to eager code)"),
    PrivateName("torch._inductor.config", "layout_optimization", _DECISION),
    PrivateName("torch._inductor.config", "force_layout_optimization", _DECISION),
    PrivateName("torch._inductor.cpp_builder", "get_cpp_compiler", "a clear word about a missing C++ compiler"),
    PrivateName("torch._inductor.graph", "GraphLowering.decide_layout_opt", _DECISION, ("gm", "is_inference")),
    PrivateName("torch._inductor.graph", "GraphLowering.compile_to_module", _GRAPHS),
    PrivateName("torch._inductor.scheduler", "BaseScheduling", _KERNELS),
    PrivateName("torch._inductor.codegen.cpp", "CppScheduling.define_kernel", _KERNELS, ("src_code",)),
    PrivateName("torch._inductor.codegen.triton", "TritonScheduling.define_kernel", _KERNELS, ("src_code",)),
    PrivateName("torch._inductor.scheduler", "BaseSchedulerNode.get_nodes", _BUFFERS),
    PrivateName("torch._inductor.scheduler", "BaseSchedulerNode.get_outputs", _BUFFERS),
    PrivateName("torch._inductor.scheduler", "BaseSchedulerNode.get_name", _BUFFERS),
    PrivateName("torch._inductor.scheduler", "BaseSchedulerNode.is_extern", _BUFFERS),
    PrivateName("torch._inductor.scheduler", "SchedulerBuffer.get_aliases", "which buffers are views of others"),
    PrivateName("torch._inductor.scheduler", "SchedulerBuffer.get_mutations", "which buffers write into an input"),
    PrivateName("torch._inductor.ir", "Buffer.get_layout", "layouts of buffers, and with them conversions"),
    PrivateName("torch._inductor.ir", "Buffer.get_dtype", "element types of buffers, and with them their bytes"),
    PrivateName("torch._inductor.ir", "IRNode.get_origin_node", "which operation a library call comes from"),
    PrivateName("torch._inductor.loop_body", "MemoryUsageType.LOAD", _BUFFERS),
    PrivateName("torch._inductor.loop_body", "MemoryUsageType.STORE", _BUFFERS),
    PrivateName("torch._dynamo.utils", "counters", _BREAKS),
    PrivateName("torch._dynamo.utils", "guard_failures", _RECOMPILES),
    PrivateName("torch._dynamo.convert_frame", "FRAME_COUNTER", _RECOMPILES),
    PrivateName("torch._C", "_current_autograd_node", _EAGER),
    PrivateName("torch.autograd", "_get_sequence_nr", _EAGER),
    PrivateName("torch._inductor.graph", "GraphLowering.codegen", _TARGET, only="target"),
    PrivateName("torch._inductor.graph", "GraphLowering._update_scheduler", _TARGET, only="target"),
    PrivateName("torch._inductor.graph", "GraphLowering.init_wrapper_code", _TARGET, only="target"),
    PrivateName(
        "torch._inductor.compile_fx",
        "compile_fx",
        _TARGET,
        ("model_", "example_inputs_", "inner_compile", "config_patches", "decompositions"),
        only="target",
    ),
    PrivateName(
        "torch._inductor.compile_fx", "compile_fx_inner", _TARGET, ("gm", "example_inputs", "kwargs"), only="target"
    ),
    PrivateName("torch._inductor.decomposition", "select_decomp_table", _TARGET, only="target"),
    PrivateName("torch._inductor.decomposition", "is_gpu", "biases' gradients as a GPU computes them", only="target"),
    PrivateName("torch._inductor.runtime.hints", "DeviceProperties.create", _TARGET, only="target"),
    PrivateName("torch._dynamo.device_interface", "CudaInterface.get_device_properties", _TARGET, only="target"),
    PrivateName("torch._dynamo.device_interface", "CudaInterface.is_bf16_supported", _TARGET, only="target"),
    PrivateName("torch._dynamo.device_interface", "CudaInterface.Worker.get_device_properties", _TARGET, only="target"),
    PrivateName("torch._C", "_select_conv_backend", _TARGET, only="target"),
    PrivateName("torch._C", "_conv_determine_backend_memory_format", _TARGET, only="target"),
    PrivateName("torch._C", "_ConvBackend", _TARGET, only="target"),
    PrivateName("torch._guards", "detect_fake_mode", _TARGET, only="target"),
    PrivateName("torch._subclasses.fake_tensor", "FakeTensorMode.cache_clear", _TARGET, only="target"),
    PrivateName("torch._subclasses.fake_tensor", "FakeTensor", _TARGET, only="target"),
)

_BY_PATH = {known.path: known for known in PRIVATE_NAMES}


def private(path: str) -> Any:
    """
    A private name of torch.

    Args:
        path: As in ``PRIVATE_NAMES``: module and name.

    Raises:
        UnsupportedTorchError: This torch has no such name, or looking at it raises.
    """
    known = _BY_PATH[path]
    try:
        return _look_up(known)
    except Exception as error:  # whatever a torch that nobody here has seen does instead
        raise UnsupportedTorchError(f"torch {torch.__version__} has no {path} ({first_line(error)})") from error


def _look_up(known: PrivateName) -> Any:
    found: Any = importlib.import_module(known.module)
    for part in known.name.split("."):
        found = getattr(found, part)
    return found


def lost_names(*, with_target: bool) -> list[tuple[PrivateName, str]]:
    """
    The private names that this torch does not have in the shape expected, each with what is wrong.

    Args:
        with_target: Whether what only lowering for a GPU needs is looked at, too.
    """
    lost: list[tuple[PrivateName, str]] = []
    for known in PRIVATE_NAMES:
        if known.only is not None and not with_target:
            continue
        try:
            problem = _other_parameters(_look_up(known), known.parameters)
        except Exception as error:  # a torch that nobody here has seen
            missing = isinstance(error, (AttributeError, ImportError))
            problem = "is missing" if missing else f"raises {first_line(error)}"
        if problem is not None:
            lost.append((known, problem))
    return lost


def _other_parameters(found: Any, expected: Sequence[str]) -> str | None:
    if not expected:
        return None
    if not callable(found):
        return "is no function"
    try:
        parameters = inspect.signature(found).parameters
    except (TypeError, ValueError):
        return None  # a function of C++ does not say
    missing = [name for name in expected if name not in parameters]
    return f"takes no {', '.join(missing)}" if missing else None


def notes_on_torch(version: str | None = None, *, with_target: bool = False) -> tuple[str, ...]:
    """
    What the reader should know about this torch: nothing for a checked one that has every name; one note otherwise.

    Args:
        version: As ``torch.__version__`` has it; None asks torch.
        with_target: Whether the diagnosis lowers for a GPU that is not there.

    Raises:
        UnsupportedTorchError: The torch is older than any that was checked. Newer ones are tried, because who runs one
            may have no other; on older ones nothing was ever right or wrong, and a newer one is a ``pip install`` away.
    """
    text = str(torch.__version__) if version is None else version
    known = _release(text)
    if known is not None and known < OLDEST:
        raise UnsupportedTorchError(
            f"cannot diagnose with torch {text}: expected {_dotted(OLDEST)} or newer, the oldest that layoutdoctor was "
            "checked with; upgrade torch, or record a trace with torch.profiler and run `layoutdoctor trace` on it"
        )
    lost = _in_words(lost_names(with_target=with_target))
    is_checked = known is not None and known <= NEWEST
    if is_checked:
        return (f"torch {text} lacks private names that are read; lost: {lost}",) if lost else ()
    range_ = f"the versions layoutdoctor was checked with ({_dotted(OLDEST)} to {_dotted(NEWEST)})"
    unknown = f"torch {text} is newer than {range_}" if known is not None else f"torch {text} is none of {range_}"
    if lost:
        return (f"{unknown}; lost: {lost}",)
    newest = _dotted(NEWEST)
    return (
        f"{unknown}: every private name that can be looked up beforehand is there, but why "
        f"Inductor decides as it does is told by the rules of torch {newest}",
    )


def _release(version: str) -> tuple[int, int] | None:
    """Major and minor number, those of a nightly too; None where there are none."""
    try:
        major, minor, *_ = Version(version.partition("+")[0]).release
    except ValueError:  # InvalidVersion is one
        return None
    return major, minor


def _in_words(lost: Sequence[tuple[PrivateName, str]]) -> str:
    """What is lost, each thing once, with the names that are to blame."""
    blame: dict[str, list[str]] = {}
    for known, problem in lost:
        blame.setdefault(known.loses, []).append(f"{known.path} {problem}")
    return "; ".join(f"{what} ({', '.join(names)})" for what, names in blame.items())


def _dotted(version: Sequence[int]) -> str:
    return ".".join(str(part) for part in version)


def inductor_config() -> Any:
    """Inductor's settings."""
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
        ``torch/_inductor/config.py``, ``torch/_functorch/config.py``, ``torch/_dynamo/config.py``; torch 2.7 to 2.15.
        A setting that another torch lacks is left alone; ``compat_names`` says what that costs.
    """
    import torch._dynamo.config as dynamo_config
    import torch._functorch.config as functorch_config

    inductor = {"fx_graph_cache": False, "fx_graph_remote_cache": False, **global_options}
    functorch = {"enable_autograd_cache": False, "enable_remote_autograd_cache": False}
    dynamo = {"recompile_limit": 512, "cache_size_limit": 512, "accumulated_recompile_limit": 4096}
    dynamo |= {"automatic_dynamic_shapes": False, "suppress_errors": False}
    # What a job has seen of shapes is kept between processes: a diagnosis has no part in it.
    dynamo |= {"automatic_dynamic_local_pgo": False, "automatic_dynamic_remote_pgo": False}
    with contextlib.ExitStack() as stack:
        for module, values in ((inductor_config(), inductor), (functorch_config, functorch), (dynamo_config, dynamo)):
            known = {name: value for name, value in values.items() if _has_setting(module, name)}
            stack.enter_context(_patched(module, known))
        yield


@contextlib.contextmanager
def _patched(module: Any, values: Mapping[str, Any]) -> Iterator[None]:
    """Settings of a configuration module for a block; by hand where it has no ``patch`` of its own."""
    if callable(getattr(module, "patch", None)):
        with module.patch(**values):
            yield
        return
    before = {name: getattr(module, name) for name in values}
    try:
        for name, value in values.items():
            setattr(module, name, value)
        yield
    finally:
        for name, value in before.items():
            setattr(module, name, value)


def distinct_options(name: str) -> dict[str, str]:
    """
    An option without effect on generated code that makes one compile's options differ from all others'.

    Dynamo compares backends by their options, so a frame behind a graph break could reuse another configuration's code.

    Args:
        name: Unique within the diagnosis.

    Source:
        ``aot_inductor.serialized_in_spec``, text that only AOTInductor's packaging reads; torch 2.7 to 2.15.
    """
    known = getattr(getattr(inductor_config(), "aot_inductor", None), "serialized_in_spec", None)
    return {"aot_inductor.serialized_in_spec": f"layoutdoctor {name}"} if isinstance(known, str) else {}


def missing_cpp_compiler() -> str | None:
    """
    What keeps Inductor from compiling for a CPU, in a sentence; None where a C++ compiler works.

    Source:
        ``torch._inductor.cpp_builder.get_cpp_compiler``, torch 2.7 to 2.15.
    """
    try:
        get_cpp_compiler = private("torch._inductor.cpp_builder.get_cpp_compiler")
    except UnsupportedTorchError:
        return None  # another torch: the compile itself will say
    try:
        get_cpp_compiler()
    except TypeError:
        return None  # one that wants to be asked otherwise
    except Exception as error:  # InvalidCxxCompiler, or what the search for a compiler raised
        return (
            "cannot compile for the CPU: Inductor found no working C++ compiler; install g++ (Debian: apt-get install "
            f"g++) or set CXX, then run again; it said: {first_line(error)}"
        )
    return None


def _has_setting(module: Any, name: str) -> bool:
    try:
        getattr(module, name)
    except AttributeError:
        return False
    return True


def graph_break_counters() -> dict[str, int]:
    """
    Dynamo's graph breaks so far, by reason.

    Source:
        ``torch._dynamo.utils.counters``, torch 2.7 to 2.15.
    """
    return dict(private("torch._dynamo.utils.counters")["graph_break"])


def next_frame_number() -> int:
    """
    The number that dynamo will give to the next frame it meets; a guard's text starts with that of its frame.

    Source:
        ``torch._dynamo.convert_frame.FRAME_COUNTER``, torch 2.7 to 2.15.
    """
    return int(private("torch._dynamo.convert_frame.FRAME_COUNTER"))


def guard_failure_reasons() -> dict[int, tuple[str, ...]]:
    """
    Dynamo's reasons for compiling a frame again so far, by the identity of its code.

    Source:
        ``torch._dynamo.utils.guard_failures``, torch 2.7 to 2.15.
    """
    return {
        id(code): tuple(str(getattr(reason, "reason", reason)) for reason in reasons)
        for code, reasons in private("torch._dynamo.utils.guard_failures").items()
    }


def counts_backward_convolutions() -> bool | None:
    """
    Whether this torch's layout decision looks at ``aten.convolution_backward``; None where it cannot be told.

    Source:
        The text of ``GraphLowering.decide_layout_opt``: torch 2.7, 2.11 and 2.13 do not name it, 2.15 does.
    """
    try:
        source = inspect.getsource(private("torch._inductor.graph.GraphLowering.decide_layout_opt"))
    except (UnsupportedTorchError, OSError, TypeError):
        return None
    return "convolution_backward" in source


def triton_version() -> str | None:
    """Version of Triton, where it is installed."""
    try:
        import triton
    except ImportError:
        return None
    return str(triton.__version__)


def running_autograd_node() -> Any | None:
    """
    The autograd node that runs now, None outside backward.

    Source:
        ``torch._C._current_autograd_node``, torch 2.7 to 2.15.
    """
    return private("torch._C._current_autograd_node")()


def last_sequence_number() -> int:
    """
    Sequence number of the newest autograd node.

    Source:
        ``torch.autograd._get_sequence_nr``, as proxy_tensor reads it; torch 2.7 to 2.15.
    """
    return int(private("torch.autograd._get_sequence_nr")()) - 1
