"""Graphs as the compiler had them: nodes, buffers, Inductor's layout decision, layout breakers."""

from __future__ import annotations

from typing import Literal

import msgspec

from layoutdoctor.diagnosis.conversion import Conversion, TensorKind
from layoutdoctor.diagnosis.layout import Layout, Size
from layoutdoctor.diagnosis.record import Count, Integer, NonNegativeSeconds, Record
from layoutdoctor.diagnosis.subject import SourceLocation

GraphDirection = Literal["inference", "forward", "backward"]
ConvolutionClass = Literal["grouped", "small", "in_out", "default"]


class Convolution(msgspec.Struct, frozen=True, kw_only=True, rename={"class_": "class"}):
    """
    One convolution of a compiled graph, as Inductor's heuristic saw it.

    Attributes:
        class_: Class of the weight's shape, the first that fits: ``grouped`` (groups > 1, second size > 1), ``small``
            (first two sizes <= 64), ``in_out`` (first size at most half of the second, kernel > 1), ``default``.
        channels_last: Whether the convolution's output is channels-last in the generated code; None if not recorded.
        rank: Spatial rank: 1, 2 or 3.
        weight_shape: ``[C_out, C_in / groups, ...]``; if transposed, ``[C_in, C_out / groups, ...]``.
        stride: One number per spatial dimension; None if not recorded.
    """

    node: str
    class_: ConvolutionClass
    channels_last: bool | None
    rank: Count | None = None
    location: SourceLocation | None = None
    module: str | None = None
    weight_shape: tuple[Size, ...] | None = None
    groups: Count | None = None
    stride: tuple[Integer, ...] | None = None
    padding: tuple[Integer, ...] | None = None
    dilation: tuple[Integer, ...] | None = None
    is_transposed: bool | None = None
    is_backward: bool = False

    @property
    def tensor_rank(self) -> int | None:
        """The number of dimensions of its tensors; None if not recorded."""
        return None if self.rank is None else self.rank + 2


class Decision(Record, frozen=True, kw_only=True):
    """
    Inductor's decision whether one graph gets layout optimization.

    Attributes:
        applied: Whether layout optimization was on for this graph; None if it was not recorded.
        rule: Short name of the branch that decided, such as ``cpu-onednn`` or ``grouped-convolution``.
        explanation: Explanation of the rule in our own words, with the numbers.
        convolution_count: Number of convolutions in the graph, forward and backward.
        channels_last_convolution_count: Number of convolutions that the compiler forced to channels-last.
        deciding_nodes: The convolutions because of which Inductor declined; empty if no single node decided.
        log: Torch's own log of the decision.
    """

    applied: bool | None
    rule: str
    explanation: str
    convolution_count: Count
    channels_last_convolution_count: Count
    convolutions: tuple[Convolution, ...]
    deciding_nodes: tuple[str, ...] = ()
    log: str | None = None


class FxNode(Record, frozen=True, kw_only=True, omit_defaults=True):
    """
    One node of the FX graph that a compile has after AOTAutograd, or one operation recorded in eager.

    Attributes:
        name: Unique within the graph.
        op: ``placeholder``, ``get_attr``, ``call_function`` or ``output``.
        target: The operator, such as ``aten.convolution.default``.
        inputs: Names of the nodes that this node reads, in argument order; a node that is read twice is named twice.
        layout: Layout of the node's only or first result.
        tensor: The kind of tensor that a placeholder is; None for other nodes.
        backward: Whether autograd ran the operation.
        result_index: Index of the result that a ``getitem`` node takes from another node; None for other nodes.
        uses_running_statistics: Whether a batch norm normalizes by fixed statistics; None for other operations.
        called: The function on the user's line, such as ``contiguous`` or ``conv2d``; None if not recorded.
        is_called_directly: Whether the user's own line called the operation; False if code of torch called it, None if
            not known.
    """

    name: str
    op: str
    target: str
    inputs: tuple[str, ...] = ()
    layout: Layout | None = None
    dtype: str | None = None
    location: SourceLocation | None = None
    module: str | None = None
    tensor: TensorKind | None = None
    backward: bool = False
    uses_running_statistics: bool | None = None
    result_index: Integer | None = None
    called: str | None = None
    is_called_directly: bool | None = None


def base_name(target: str) -> str:
    """Returns an operator's name without namespace, overload and underscore: ``relu`` for ``aten.relu_.default``."""
    if "getitem" in target:
        return "getitem"
    parts = target.removeprefix("torch.ops.").split(".")
    name = parts[1] if len(parts) > 1 else parts[0]
    return name if name.startswith("_") and name.endswith("__") else name.rstrip("_") or name


class BufferRead(Record, frozen=True, kw_only=True, omit_defaults=True):
    """
    One read in the loop that writes a buffer.

    Attributes:
        name: The buffer or graph input that is read.
        stride: Elements by which the read moves for one step in each dimension of the *written* buffer; 0 for a
            dimension over which the value is broadcast. None if the read does not move in such steps (an index table, a
            remainder, a symbolic size).
        offset: Element that is read for the first element of the written buffer.
        is_masked: Whether only some elements of the written buffer come from this read, as in a concatenation.
    """

    name: str
    stride: tuple[Integer, ...] | None
    offset: Integer = 0
    is_masked: bool = False


class Buffer(Record, frozen=True, kw_only=True, omit_defaults=True):
    """
    One of Inductor's intermediates after scheduling.

    Attributes:
        name: Inductor's name, such as ``buf3``.
        layout: Layout in the generated code.
        kernel: Name of the generated kernel, or of the external call, that writes the buffer.
        reads: Names of the buffers and graph inputs that the buffer is computed from.
        is_extern: Whether a library call (convolution, matrix product) writes the buffer.
        source_node: FX node whose value the buffer holds; None if it is not the value of one node.
        accesses: The reads in the loop that writes the buffer; empty for an external call.
        operations: The operations of the loop other than loads and stores; empty if the loop only moves elements.
        is_reduction: Whether the loop reduces, so that reads and writes run over different dimensions.
        is_removed: Whether fusion keeps the buffer in registers, so that it is never written to memory.
        is_output: Whether the graph returns the buffer, or writes it into a tensor of the caller.
        is_user_output: Whether the caller of the model gets the buffer; False if it is only saved for the backward,
            None if not known.
        alias_of: The buffer whose memory contains this buffer, such as a concatenation of which it is a part.
        offset: Element of ``alias_of`` at which this buffer starts.
        launch: Index of the launch that writes the buffer, among all launches of generated kernels in the graph; None
            for a library call.
        problem: Reason why the loop was not understood; None if it was understood.
    """

    name: str
    layout: Layout | None
    dtype: str | None
    kernel: str | None
    origins: tuple[str, ...] = ()
    reads: tuple[str, ...] = ()
    is_extern: bool = False
    source_node: str | None = None
    accesses: tuple[BufferRead, ...] = ()
    operations: tuple[str, ...] = ()
    is_reduction: bool = False
    is_removed: bool = False
    is_output: bool = False
    is_user_output: bool | None = None
    alias_of: str | None = None
    offset: Integer = 0
    launch: Count | None = None
    problem: str | None = None


class LayoutBreaker(Record, frozen=True, kw_only=True):
    """
    An operation that ends a channels-last region, although the operations around it could run in channels-last.

    Attributes:
        node: FX node, or eager operation, whose result has another layout than its input.
        op: Usual name of the operation: ``instance_norm``, ``contiguous``, ``channel_shuffle``.
        reason: Reason why the layout is lost there, in words.
        conversions: Ids of the conversions that the operation causes: out of the region, and back into it.
    """

    node: str
    op: str
    reason: str
    location: SourceLocation | None
    module: str | None
    source: Layout
    target: Layout
    conversions: tuple[str, ...] = ()
    seconds: NonNegativeSeconds | None = None
    bytes_moved: Count | None = None


class Graph(Record, frozen=True, kw_only=True):
    """
    One compiled graph, or the eager iteration as one graph.

    Attributes:
        name: Unique within the trial, such as ``graph 0`` or ``eager``.
        decision: Inductor's layout decision; None for eager, and if no decision was recorded.
        conversions: The conversions in generated kernels and copies of ATen, without those inside library calls.
        graph_breaks: Number of graph breaks of the whole model, as Dynamo counted them.
        kernel_names: Names of the generated kernels in the order of their definition.
        output_names: Nodes that the graph returns; in eager mode, also nodes whose results were held afterwards.
        code_fingerprint: Hash of the generated code, without names that differ from compile to compile.
        kernel_sources: Source of each generated kernel, as its compiler got it, by name; in recordings only.
        hook_failure: The error in layoutdoctor's own hooks, after which the compile continued; None without an error.
        breakers: The operations at which a channels-last region ends without need.
        not_understood: A line for each part of the graph that could not be followed: symbolic sizes, sub-graphs, custom
            operations, sparse or complex tensors. No finding is about these parts.
    """

    name: str
    direction: GraphDirection
    decision: Decision | None
    conversions: tuple[Conversion, ...] = ()
    graph_breaks: Count = 0
    nodes: tuple[FxNode, ...] = ()
    buffers: tuple[Buffer, ...] = ()
    kernel_names: tuple[str, ...] = ()
    output_names: tuple[str, ...] = ()
    code_fingerprint: str | None = None
    kernel_sources: dict[str, str] = msgspec.field(default_factory=dict)
    hook_failure: str | None = None
    breakers: tuple[LayoutBreaker, ...] = ()
    not_understood: tuple[str, ...] = ()
