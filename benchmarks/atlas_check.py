"""
Rows of the atlas against Inductor's own graphs, read by a script that knows nothing of layoutdoctor.

torch.compile traces a network on the CPU; the tensors of each graph are moved to a GPU that is not there, and the
graph is brought into Inductor's representation (``GraphLowering.run``) and dropped. Convolutions are given the formats
of cuDNN, whose rule is the one that torch has for oneDNN. Counted by hand: convolutions of the graph, the decision,
outputs of convolutions that are channels-last by their strides, and buffers that only load a tensor and store it in
another order of strides. A loop whose value only such a buffer reads is stored in the new order at once: not counted.

The scheduler, which comes later, may fuse a copy into a kernel that computes as well, which the atlas does not count:
in ddpm_unet 10 of 11, into the reductions of the group norms that read the same tensors.

    python benchmarks/atlas_check.py resnet18 alexnet --rows docs/atlas.json
"""

from __future__ import annotations

import argparse
import contextlib
import copy
import json
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple
from unittest import mock

import torch
from atlas_networks import NETWORKS
from torch._dynamo.device_interface import CudaInterface
from torch._guards import detect_fake_mode
from torch._inductor import compile_fx, ir
from torch._inductor.graph import GraphLowering
from torch._inductor.virtualized import V
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils import _pytree as pytree

if TYPE_CHECKING:
    from collections.abc import Callable

HERE = Path(__file__).resolve().parent
CONVOLUTIONS = (torch.ops.aten.convolution.default, torch.ops.aten.convolution_backward.default)


class Counted(NamedTuple):
    """The counts of one graph, made by hand."""

    convolutions: int
    is_applied: bool
    channels_last: int
    weights: int
    others: int


class DroppedError(Exception):
    """The graph was read: nothing is compiled."""


def counted(name: str) -> list[Counted]:
    """The graphs of a network in inference, in the order in which they are compiled."""
    found: list[Counted] = []
    run = GraphLowering.run

    def read(self: GraphLowering, *arguments: Any) -> Any:
        run(self, *arguments)
        with V.set_graph_handler(self):
            found.append(count(self))
        raise DroppedError

    def inner(module: Any, given: Any, **options: Any) -> Any:
        moved = copy.deepcopy(module)
        for node in moved.graph.nodes:
            node.args, node.kwargs = pytree.tree_map_only(torch.device, _gpu, (node.args, node.kwargs))
            node.meta["val"] = pytree.tree_map_only(torch.Tensor, on_gpu, node.meta.get("val"))
        moved.recompile()
        try:
            with contextlib.ExitStack() as stack:
                for where, name, answer in ANSWERS:
                    stack.enter_context(mock.patch.object(where, name, answer))
                compile_fx.compile_fx_inner(moved, [on_gpu(one) for one in given], **options)
        except Exception as error:
            if not _was_dropped(error):
                raise
        return as_traced(module)

    def compiled(graph: Any, inputs: list[Any]) -> Callable[..., Any]:
        return compile_fx.compile_fx(graph, inputs, inner_compile=inner)

    with torch.no_grad():
        model, inputs = NETWORKS[name].make()
    model.eval()
    torch._dynamo.reset()
    formats = mock.patch.object(torch._C, "_select_conv_backend", return_value=torch._C._ConvBackend.Mkldnn)
    reading = mock.patch.object(GraphLowering, "run", read)
    caches, fake = torch._inductor.config.patch(force_disable_caches=True), FakeTensorMode(allow_non_fake_inputs=True)
    with formats, reading, caches, torch.no_grad(), fake:
        torch.compile(model, backend=compiled)(*inputs)
    return found


def on_gpu(value: Any) -> Any:
    """A tensor of the same sizes and strides on a GPU that is not there; anything else as it is."""
    if not isinstance(value, torch.Tensor):
        return value
    mode = detect_fake_mode([value]) or detect_fake_mode()
    with mode:
        return torch.empty_strided(value.shape, value.stride(), dtype=value.dtype, device="cuda:0")


def _gpu(_: torch.device) -> torch.device:
    return torch.device("cuda:0")


@dataclass(frozen=True)
class Properties:
    """Answers to what Inductor asks about an H100."""

    name: str = "NVIDIA H100"
    type: str = "cuda"
    index: int = 0
    major: int = 9
    minor: int = 0
    multi_processor_count: int = 132
    warp_size: int = 32
    max_threads_per_multi_processor: int = 2048
    regs_per_multiprocessor: int = 65536
    shared_memory_per_block_optin: int = 232448
    shared_memory_per_multiprocessor: int = 233472
    total_memory: int = 80 * 2**30
    L2_cache_size: int = 50 * 2**20
    gcnArchName: str = ""  # noqa: N815  torch's own name


ANSWERS = (
    (torch.cuda, "get_device_properties", lambda *_: Properties()),
    (torch.cuda, "get_device_capability", lambda *_: (9, 0)),
    (torch.cuda, "current_device", lambda: 0),
    (CudaInterface, "get_device_properties", staticmethod(lambda *_: Properties())),
    (CudaInterface.Worker, "get_device_properties", staticmethod(lambda *_: Properties())),
)


def as_traced(module: Any) -> Callable[[list[Any]], Any]:
    """The traced graph itself, called as Inductor's code is: with one list."""

    def call(given: list[Any]) -> Any:
        return module(*given)

    call._boxed_call = True  # type: ignore[attr-defined]
    return call


def _was_dropped(error: BaseException | None) -> bool:
    while error is not None:
        if isinstance(error, DroppedError):
            return True
        error = getattr(error, "inner_exception", None) or error.__cause__ or error.__context__
    return False


def count(graph: GraphLowering) -> Counted:
    """One lowered graph."""
    nodes = [node for node in graph.orig_gm.graph.nodes if node.target in CONVOLUTIONS]
    outputs = [one for one in graph.buffers if isinstance(one, ir.ExternKernel) and _is_convolution(one)]
    kinds = [kind for buffer in graph.buffers if (kind := _converts(graph, buffer)) is not None]
    return Counted(
        convolutions=len(nodes),
        is_applied=bool(graph.layout_opt),
        channels_last=sum(
            _is_channels_last(_numbers(graph, one.get_size()), _numbers(graph, one.get_stride())) for one in outputs
        ),
        weights=kinds.count("weight"),
        others=kinds.count("other"),
    )


def _is_convolution(kernel: Any) -> bool:
    return "convolution" in str(getattr(kernel, "python_kernel_name", "") or getattr(kernel, "op_overload", ""))


def _numbers(graph: GraphLowering, sizes: Any) -> list[int]:
    """Sizes or strides; of symbols, those that the graph was traced with."""
    return [int(one) for one in graph.sizevars.optimization_hints(sizes)]


def _is_channels_last(sizes: list[int], strides: list[int]) -> bool:
    """Whether the stride of the channels is 1 and that of the width is not, with more than one of each."""
    return len(sizes) >= 4 and strides[1] == 1 and strides[-1] != 1 and sizes[1] > 1


def _converts(graph: GraphLowering, buffer: Any) -> str | None:
    """The kind of tensor, if the loops of the buffer only load one and store it in another order."""
    if not isinstance(buffer, ir.ComputedBuffer) or not isinstance(buffer.data, ir.Pointwise):
        return None
    operations = set(buffer.data.inner_fn_opcount().used_ops)
    reads = list(buffer.get_read_names())
    if operations != {"load"} or len(reads) != 1:
        return None
    source = graph.get_buffer(reads[0]) or graph.graph_inputs[reads[0]]
    if isinstance(source, ir.ComputedBuffer) and _reader_count(graph, reads[0]) == 1:
        return None  # the loop that computes it stores it in the new order, and nowhere else
    moves = buffer.get_read_writes()
    (read,), (write,) = moves.reads, moves.writes
    if _order(graph, read) == _order(graph, write):
        return None
    is_weight = reads[0] in graph.graph_inputs and _is_parameter(graph, reads[0])
    return "weight" if is_weight else "other"


def _reader_count(graph: GraphLowering, name: str) -> int:
    readers = sum(name in buffer.get_read_names() for buffer in graph.buffers)
    return readers + sum(name in output.get_read_names() for output in graph.graph_outputs)


def _order(graph: GraphLowering, access: Any) -> list[str]:
    """The loops of an access from the largest step to the smallest; those of one round are left out."""
    sizes = dict(zip(access.var_names, _numbers(graph, access.size), strict=True))
    loops = [loop for loop, size in sizes.items() if size > 1]
    steps = dict(zip(loops, _numbers(graph, [access.index.coeff(loop) for loop in loops]), strict=True))
    return sorted(map(str, loops), key=lambda name: -next(step for loop, step in steps.items() if str(loop) == name))


def _is_parameter(graph: GraphLowering, name: str) -> bool:
    """Whether a convolution takes that input as its weight."""
    node = next(node for node in graph.orig_gm.graph.nodes if node.op == "placeholder" and node.name == name)
    return any(user.target in CONVOLUTIONS and node in user.args[1:2] for user in node.users)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("networks", nargs="+", choices=NETWORKS, metavar="NETWORK")
    parser.add_argument("--rows", type=Path, default=HERE.parent / "docs" / "atlas.json")
    arguments = parser.parse_args()
    rows = {(row["network"], row["mode"]): row for row in json.loads(arguments.rows.read_text(encoding="utf-8"))}
    print("| network | convolutions | decision | channels-last | weights | others | atlas |")
    print("|---|---|---|---|---|---|---|", flush=True)
    for name in arguments.networks:
        graphs = counted(name)
        convolutions, _, last, weights, others = (sum(column) for column in zip(*graphs, strict=True))
        row = rows.get((name, "inference"))
        said = "no row" if row is None or "failure" in row else _difference(row, graphs)
        decision = _how_often([one.is_applied for one in graphs])
        print(f"| {name} | {convolutions} | {decision} | {last} | {weights} | {others} | {said} |", flush=True)


def _how_often(applied: list[bool]) -> str:
    return f"on in {sum(applied)} of {len(applied)}"


def _difference(row: dict[str, Any], graphs: list[Counted]) -> str:
    """``agrees``, or each number of the atlas that is another one."""
    with_convolutions = [one for one in graphs if one.convolutions]
    conversions = row["conversions"]["inductor"]
    pairs = {
        "convolutions": (row["convolutions"], sum(one.convolutions for one in graphs)),
        "decision": (
            _how_often([one["applied"] for one in row["decisions"]]),
            _how_often([one.is_applied for one in with_convolutions]),
        ),
        "weights": (conversions["weight"][0], sum(one.weights for one in graphs)),
        "others": (conversions["activation"][0], sum(one.others for one in graphs)),
    }
    different = [f"{name} {said}" for name, (said, seen) in pairs.items() if said != seen]
    return ", ".join(different) or "agrees"


if __name__ == "__main__":
    main()
