"""
Lowers a model for a GPU that is not there. The model is traced and run on the CPU; Inductor generates the GPU's code.

Dynamo and AOTAutograd trace the model on ordinary CPU tensors. Each graph that they hand to Inductor (inference, or
forward and backward of training) is copied, moved to fake CUDA tensors and lowered for the target GPU. The generated
code is never loaded. The caller runs the traced graph itself, operation by operation on the CPU: its outputs are real,
and ``backward()`` works. If no value decides what the model does, nothing is computed, and the outputs are
uninitialized memory of the right layout. Lowering chooses strides for the target. Only the fake inputs with which the
backward graph is lowered have these strides; the real tensors do not.

A lowering on the CPU misses the model's branches on ``x.is_cuda``, ``torch.autocast("cuda")``, operations that
AOTAutograd decomposes differently for a GPU (attention, RNNs), and autotuning.
"""

from __future__ import annotations

import contextlib
import copy
import operator
import re
import types
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any
from unittest import mock

import torch
from torch import fx
from torch.utils import _pytree as pytree

from layoutdoctor.capture.compat import inductor_config, triton_version
from layoutdoctor.capture.retarget_device import cudnn_formats, decomposed_as_on_a_gpu, pretended_device
from layoutdoctor.errors import first_line
from layoutdoctor.files.scratch import private_directory

if TYPE_CHECKING:
    from layoutdoctor.diagnosis.gpus import Gpu

DEVICE = torch.device("cuda", 0)

NO_TRITON_NOTE = (
    "Triton is not installed: the graphs were scheduled, but no kernels were generated, so kernels have no names"
)
AUTOTUNING_NOTE = "autotuning needs the device: lowered without autotuning"

_AUTOTUNING = ("max_autotune", "max_autotune_gemm", "max_autotune_pointwise")
_FIXED_OPTIONS = {
    "triton.cudagraphs": False,
    "cpp_wrapper": False,
    "fx_wrapper": False,
    "shape_padding": False,
    "compile_threads": 1,
    "benchmark_kernel": False,
    "benchmark_fusion": False,
    **dict.fromkeys(_AUTOTUNING, False),
}
"""Values with which Inductor runs nothing on the device while it lowers, and generates a wrapper in Python."""

_GROUP_NORMS = (torch.group_norm, torch.nn.functional.group_norm, torch.ops.aten.group_norm.default)
_LIFTS = (torch.ops.aten.lift_fresh_copy.default, torch.ops.aten.lift_fresh.default)

_OPERATION = re.compile(r"(?:target: |target=torch\.ops\.|target=)([\w.]+)")
_CPU_OPERATIONS = re.compile(r"_for_cpu|mkldnn|onednn")


class TargetLowering:
    """
    A backend of torch.compile that lowers for a target GPU.

    Compile the model, and make the calls that cause compiles, in the block of ``in_effect``. Enter this block before
    the capture's hooks, so that the hooks wrap the shortened ``compile_to_module`` and not the original.

    Attributes:
        needs_values: Whether graphs have to be computed, because the values of tensors decide what the model does.
        failures: One sentence for each graph that could not be lowered.

    Source:
        ``compile_fx(inner_compile=...)``, ``compile_fx_inner`` (torch/_inductor/compile_fx.py),
        ``GraphLowering.compile_to_module``, ``codegen``, ``constant_name`` (graph.py), ``is_gpu`` (decomposition.py);
        torch 2.7, 2.11, 2.13, 2.15.
    """

    def __init__(self, target: Gpu, options: Mapping[str, Any], *, needs_values: bool) -> None:
        self.target, self.needs_values = target, needs_values
        self.failures: list[str] = []
        self._cpu_operations: dict[str, None] = {}
        self._options = dict(options)
        config = inductor_config()
        self._autotunes = any(self._options.get(name, getattr(config, name)) for name in _AUTOTUNING)

    @property
    def notes(self) -> tuple[str, ...]:
        """Notes on the graphs for the report."""
        notes = [] if triton_version() is not None else [NO_TRITON_NOTE]
        if self._autotunes:
            notes.append(AUTOTUNING_NOTE)
        if self._cpu_operations:
            named = ", ".join(self._cpu_operations)
            notes.append(f"traced on a CPU, so the graphs hold CPU-only operations: {named}")
        return tuple(notes)

    @contextlib.contextmanager
    def in_effect(self) -> Iterator[None]:
        """A block in which models are traced as on a GPU and lowered; the generated code is written and not loaded."""
        from torch._inductor import decomposition
        from torch._inductor.fx_passes import joint_graph
        from torch._inductor.graph import GraphLowering

        def compile_to_module(graph: Any) -> Any:
            path = Path(directory, "graph.py")  # each graph is read before the next one overwrites it
            path.write_text(generated_source(graph), encoding="utf-8")
            return types.SimpleNamespace(__file__=str(path), call=_never_called, runner=None)

        with (
            cudnn_formats(),
            decomposed_as_on_a_gpu(),
            private_directory() as directory,
            mock.patch.object(GraphLowering, "compile_to_module", compile_to_module),
            # The original copies a constant of the model to the device during code generation.
            mock.patch.object(GraphLowering, "constant_name", lambda graph, name, device: name),
            # The decomposition of ``convolution_backward`` asks ``is_gpu``: a GPU sums the bias gradient separately.
            mock.patch.object(decomposition, "is_gpu", return_value=True),
            # The pass that replaces ``bmm`` of batch size 1 by ``mm`` asks for this type; not in torch 2.7.
            mock.patch.object(joint_graph, "get_gpu_type", return_value="cpu", create=True),
        ):
            yield

    def __call__(self, graph_module: fx.GraphModule, example_inputs: Sequence[Any]) -> Any:
        """Compiles one graph that Dynamo traced; torch.compile calls this method as its backend."""
        from torch._inductor import compile_fx

        _with_contiguous_group_norms(graph_module)
        options = {**self._options, **_fixed_options()}
        return compile_fx.compile_fx(graph_module, example_inputs, inner_compile=self._lower, config_patches=options)

    def _lower(
        self, graph_module: fx.GraphModule, example_inputs: Sequence[Any], **keywords: Any
    ) -> Callable[..., Any]:
        """Lowers one graph for the target; returns a function that makes its outputs on the CPU."""
        from torch._functorch.aot_autograd import make_boxed_func
        from torch._inductor import compile_fx

        try:
            with pretended_device(self.target):
                moved, inputs = on_target(graph_module, example_inputs)
                compile_fx.compile_fx_inner(moved, inputs, **keywords)
        except Exception as error:  # any error of Inductor costs only this graph
            self.failures.append(self._sentence(error, keywords))
        for node in graph_module.graph.nodes:
            if node.op == "call_function" and _CPU_OPERATIONS.search(str(node.target)):
                self._cpu_operations[str(node.target)] = None
        made = None if self.needs_values else without_values(graph_module)
        return make_boxed_func(torch.no_grad()(made or TracedRun(graph_module).run))

    def _sentence(self, error: Exception, keywords: Mapping[str, Any]) -> str:
        which = "backward" if keywords.get("is_backward") else "forward"
        if keywords.get("is_inference"):
            which = "inference"
        found = _OPERATION.search(str(error))
        where = f" at {found[1].removeprefix('torch.ops.')}" if found else ""
        return (
            f"cannot lower the {which} graph for {self.target.name}{where}: {first_line(error)}; "
            "diagnose this configuration where the GPU is (without a target)"
        )


def _with_contiguous_group_norms(graph_module: fx.GraphModule) -> None:
    """
    Inserts ``contiguous()`` before each group norm, as torch does on a GPU; on a CPU, torch keeps the memory format.

    Source:
        ``group_norm`` in aten/src/ATen/native/group_norm.cpp, torch 2.7 to 2.14; it is decomposed before it is traced.
    """
    for module in graph_module.modules():
        nodes = list(module.graph.nodes) if isinstance(module, fx.GraphModule) else []
        for node in nodes:
            if node.op == "call_function" and node.target in _GROUP_NORMS and node.args:
                with module.graph.inserting_before(node):
                    made = module.graph.call_method("contiguous", (node.args[0],))
                made.meta = {name: value for name, value in node.meta.items() if name != "example_value"}
                node.update_arg(0, made)
        if nodes:
            module.recompile()


def _fixed_options() -> dict[str, Any]:
    """Returns the entries of ``_FIXED_OPTIONS`` that this torch has; a missing option needs no value."""
    known = {}
    for name, value in _FIXED_OPTIONS.items():
        with contextlib.suppress(AttributeError):
            operator.attrgetter(name)(inductor_config())
            known[name] = value
    return known


def _never_called(arguments: Any) -> Any:
    raise RuntimeError(f"code for a GPU that is not there was called with {len(arguments)} arguments")


def generated_source(graph: Any) -> str:
    """
    Generates a graph's code; without Triton, returns the text of the scheduler nodes instead.

    Source:
        ``GraphLowering.codegen`` returns (code, kernels); only in torch 2.7, the code is plain text.
    """
    if triton_version() is None:
        graph.init_wrapper_code()
        graph._update_scheduler()
        return "\n".join(str(node.debug_str()) for node in graph.scheduler.nodes)
    code = graph.codegen()[0]
    return str(getattr(code, "value", code))


def fake_tensors() -> Any:
    """Returns a mode in which operations make tensors with shapes and strides, but without values."""
    from torch._subclasses.fake_tensor import FakeTensorMode

    return FakeTensorMode(allow_non_fake_inputs=True)


def on_target(graph_module: fx.GraphModule, example_inputs: Sequence[Any]) -> tuple[fx.GraphModule, list[Any]]:
    """
    Copies a post-AOT graph to the target's device, and replaces its inputs by fake tensors there.

    Args:
        example_inputs: Inputs of the graph; real or fake tensors, and other values, which stay as they are.

    Returns:
        The copied graph and its inputs, with the strides of the originals.
    """
    from torch._guards import detect_fake_mode

    mode = detect_fake_mode(example_inputs) or fake_tensors()

    def moved(tensor: torch.Tensor) -> torch.Tensor:
        with mode:
            return torch.empty_strided(tensor.shape, tensor.stride(), dtype=tensor.dtype, device=DEVICE)

    inputs = [moved(value) if isinstance(value, torch.Tensor) else value for value in example_inputs]
    return _moved_graph(graph_module, moved), inputs


def _moved_graph(graph_module: fx.GraphModule, moved: Callable[[torch.Tensor], torch.Tensor]) -> fx.GraphModule:
    """Copies a graph to the device; the constants are shared, because they cannot be copied under a fake mode."""
    copied = fx.GraphModule(graph_module, copy.deepcopy(graph_module.graph))
    copied.meta = dict(graph_module.meta)
    for name, inner in graph_module.named_children():
        if isinstance(inner, fx.GraphModule):  # the branches of torch.cond and the like
            copied.add_module(name, _moved_graph(inner, moved))
    for node in list(copied.graph.nodes):
        node.args = fx.node.map_aggregate(node.args, _switch_device)
        node.kwargs = fx.node.map_aggregate(node.kwargs, _switch_device)
        if "val" in node.meta:
            node.meta["val"] = pytree.tree_map_only(torch.Tensor, moved, node.meta["val"])
        if node.target in _LIFTS:
            _move_constant(copied, node)
    copied.recompile()
    return copied


def _switch_device(argument: Any) -> Any:
    return DEVICE if isinstance(argument, torch.device) and argument.type == "cpu" else argument


def _move_constant(module: fx.GraphModule, node: fx.Node) -> None:
    """Adds a copy to the device after a lifted constant; a constant without dimensions may stay on the CPU."""
    value = node.meta.get("val")
    if not isinstance(value, torch.Tensor) or value.dim() == 0:
        return
    with module.graph.inserting_after(node):
        copied = module.graph.call_function(torch.ops.prims.device_put.default, (node, DEVICE))
    copied.meta = dict(node.meta)
    node.replace_all_uses_with(copied, delete_user_cb=lambda user: user is not copied)


class TracedRun(fx.Interpreter):
    """
    Runs a traced graph on the CPU with the strides that its tensors had while it was traced.

    The graph was traced with cuDNN's strides. A convolution on the CPU may return other strides, so its result is
    copied to cuDNN's strides. A ``view`` in the traced graph runs as ``reshape``, which copies if it has to.
    """

    def run_node(self, node: fx.Node) -> Any:
        """Runs one node; copies the result of a convolution to the strides of the trace."""
        result = super().run_node(node)
        if node.op == "call_function" and "convolution" in str(node.target):
            return pytree.tree_map(_laid_out, result, node.meta.get("val", result))
        return result

    def call_function(self, target: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Calls an operation, and ``reshape`` in place of ``view``."""
        if target is torch.ops.aten.view.default:
            target = torch.ops.aten.reshape.default
        return super().call_function(target, args, kwargs)


def without_values(graph_module: fx.GraphModule) -> Callable[..., Any] | None:
    """
    Returns a function that makes a graph's outputs without computing them.

    Returns:
        The function; None if the graph has to be computed. This is the case if an output is no strided tensor of known
        sizes. It is also the case if the graph uses no input (NumPy's arithmetic on shapes): the values may be needed.
    """
    output = graph_module.graph.output_node()
    outputs = output.args[0]
    inputs = {node: index for index, node in enumerate(graph_module.graph.find_nodes(op="placeholder"))}
    if not isinstance(outputs, (tuple, list)) or not any(set(node.users) - {output} for node in inputs):
        return None
    made = {node: node.meta.get("val") for node in outputs if isinstance(node, fx.Node) and node not in inputs}
    for value in made.values():
        if not isinstance(value, torch.Tensor) or value.layout != torch.strided:
            return None
        if not all(type(size) is int for size in (*value.shape, *value.stride())):
            return None

    def run(*given: Any) -> list[Any]:
        new = {node: torch.empty_strided(v.shape, v.stride(), dtype=v.dtype) for node, v in made.items()}
        return [given[inputs[one]] if one in inputs else new.get(one, one) for one in outputs]

    return run


def _laid_out(result: Any, traced: Any) -> Any:
    """Copies a result to the strides of the traced tensor, if these strides are known numbers and differ."""
    if not isinstance(result, torch.Tensor) or not isinstance(traced, torch.Tensor) or not result.numel():
        return result
    strides = tuple(traced.stride())
    if tuple(result.stride()) == strides or not all(type(step) is int for step in strides):
        return result
    return torch.empty_strided(result.shape, strides, dtype=result.dtype).copy_(result)
