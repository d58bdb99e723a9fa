"""
What ``capture`` asks of torch's private parts, each answer with where it stands and the torch it was checked in.

The names themselves are in ``compat_names``, the wraps around Inductor in ``compat_hooks``. Nothing here decides
anything about layouts. A name that is missing in another torch raises UnsupportedTorchError: it costs the capture that
needs it, never the user's compile.
"""

from __future__ import annotations

import contextlib
import inspect
from typing import TYPE_CHECKING, Any

import torch

from layoutdoctor.capture.compat_names import private
from layoutdoctor.errors import UnsupportedTorchError, first_line

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping


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
