"""
Every private name of torch that ``capture`` rests on, and what a torch without it costs.

``private`` fetches one for the code that uses it; ``notes_on_torch`` looks at all of them before anything is compiled,
so that the record says once what this torch will not tell. Faces ``compat`` and doctor.

Attributes of live objects (``GraphLowering.scheduler``, ``LoopBody.memory_usage``, entries of ``node.meta``) cannot be
looked up before there is one: what reads them says in the graph's record what it could not read.
"""

from __future__ import annotations

import importlib
import inspect
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from packaging.version import Version

from layoutdoctor.errors import UnsupportedTorchError, first_line

if TYPE_CHECKING:
    from collections.abc import Sequence

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
