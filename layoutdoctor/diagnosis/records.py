"""
The records: everything a diagnosis knows, as frozen values that are saved as JSON.

The JSON contract (``schema_version`` 1) is these classes, field by field; fields may be added, none goes.
SI units, the unit in the field's name; ``None`` means "not recorded", never zero.
"""

from __future__ import annotations

from types import NoneType
from typing import TYPE_CHECKING, Annotated, Literal

import msgspec

from layoutdoctor.diagnosis.layout import Layout, MemoryFormat, Size, check_ranks
from layoutdoctor.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path
    from types import ModuleType

    import pandas

SCHEMA_VERSION = 1

Mode = Literal["inference", "training", "trace"]
Backend = Literal["eager", "inductor", "recorded"]
LayoutOptimization = Literal["default", "on", "off", "forced"]
FormatChoice = Literal["preserve", "contiguous", "channels_last"]
TrialStatus = Literal["ok", "failed", "timed_out", "crashed", "skipped", "same_as"]
GraphDirection = Literal["inference", "forward", "backward"]
Owner = Literal["user", "compiler", "library", "framework"]
ConversionDirection = Literal["to_channels_last", "to_contiguous", "to_blocked", "from_blocked", "other", "none"]
TensorKind = Literal["activation", "weight", "gradient", "unknown"]
ConvolutionClass = Literal["grouped", "small", "in_out", "default"]
ConversionRole = Literal["entry", "exit", "interior"]
CostSource = Literal["measured", "estimated"]
Confidence = Literal["shapes", "grid", "order"]
TotalKind = Literal["kernel", "operation", "module", "step"]
Verdict = Literal["faster", "slower", "equal", "inconclusive"]
Severity = Literal["error", "warning", "note"]
AccountKind = (
    Literal["conversion", "generated_kernel", "layout", "implementation", "missing_fusion"]
    | Literal["operation", "not_aligned", "small", "outside_kernels"]
)
# What a saved file may hold in these fields is held by msgspec as it reads; the bounds keep sums of them finite.
Seconds = Annotated[float, msgspec.Meta(ge=0, le=1e15)]
PositiveSeconds = Annotated[float, msgspec.Meta(ge=1e-12, le=1e15)]
Moment = Annotated[float, msgspec.Meta(ge=-1e15, le=1e15)]
"""Seconds from the start of the profiled iteration; what began before it is negative."""
Count = Annotated[int, msgspec.Meta(ge=0, le=2**63 - 1)]
Integer = Annotated[int, msgspec.Meta(ge=-(2**63), le=2**63 - 1)]
Share = Annotated[float, msgspec.Meta(ge=0, le=1.001)]
"""0 to 1; sums taken in another order may end a little above."""
Factor = Annotated[float, msgspec.Meta(ge=0, le=1e15)]
Magnitude = Annotated[float, msgspec.Meta(ge=0)]
OptionValue = bool | Integer | float | str | None

FASTER: Verdict = "faster"
SLOWER: Verdict = "slower"
EQUAL: Verdict = "equal"
INCONCLUSIVE: Verdict = "inconclusive"


REPR_LENGTH = 200


class Record(msgspec.Struct, frozen=True, kw_only=True):
    """The base of all records: frozen, built by keyword, shown on one line."""

    def __repr__(self) -> str:
        fields = ((name, getattr(self, name)) for name in self.__struct_fields__)
        shown = (f"{name}={value!r:.60}" for name, value in fields if isinstance(value, str | int | float) and value)
        return f"{type(self).__name__}({', '.join(shown)})"[:REPR_LENGTH]


class SourceLocation(Record, frozen=True, kw_only=True):
    """
    A line of the user's code.

    Attributes:
        file: Path as Python reported it.
        line: Line number, from 1.
        code: The text of that line; None where it was not recorded.
    """

    file: str
    line: Count
    code: str | None = None

    def __str__(self) -> str:
        return f"{self.file}:{self.line}"


class Cure(Record, frozen=True, kw_only=True):
    """
    A change of the model by public means, which a configuration makes in its copy.

    Attributes:
        name: Such as ``flat-conv3d``.
        answers: Code of the finding that it answers, such as ``LD503``; None where no rule speaks of it.
        modules: Paths of the modules that it changes; empty where it is about the model as a whole.
        dtype: The dtype that it gives them; None where it leaves that alone.
        how: The same change as lines to paste, of a model called ``model``.
    """

    name: str
    answers: str | None = None
    modules: tuple[str, ...] = ()
    dtype: str | None = None
    how: str = ""


class Configuration(Record, frozen=True, kw_only=True):
    """
    One way to lay out and run a model.

    Attributes:
        backend: ``eager`` or ``inductor``; ``recorded`` for a trace from elsewhere.
        layout_optimization: ``default`` leaves torch's own default; None for eager.
        model_format: Memory format given to the parameters and buffers of a copy, by rank (4-D and 5-D).
        input_format: Memory format given to the example inputs, by rank.
        inductor_options: Further options of Inductor, for this compile only (``freezing`` is set globally around it).
        cures: Changes of the model that it makes; what they are tried on is the configuration of the same name without
            ``+CURE``.
        library_switches: Switches of libraries under which it runs, such as ``cudnn.benchmark``; each is put back.
    """

    name: str
    backend: Backend
    layout_optimization: LayoutOptimization | None = None
    model_format: FormatChoice | None = "preserve"
    input_format: FormatChoice | None = "preserve"
    inductor_options: dict[str, OptionValue] = {}
    cures: tuple[Cure, ...] = ()
    library_switches: dict[str, bool] = {}

    @property
    def freezes(self) -> bool:
        """Whether the weights become constants of the compiled code."""
        return bool(self.inductor_options.get("freezing"))


class InputTensor(Record, frozen=True, kw_only=True):
    """
    One tensor of the example input, as the caller gave it.

    Attributes:
        stride: Strides in elements; None where it is no strided tensor.
        memory_formats: Every memory format it satisfies.
        name: Its parameter in the model's signature, or its key; None where it is the only input.
    """

    shape: tuple[Size, ...]
    stride: tuple[Size, ...] | None
    dtype: str
    memory_formats: tuple[MemoryFormat, ...]
    name: str | None = None

    def __post_init__(self) -> None:
        check_ranks(self.shape, self.stride)


class Subject(Record, frozen=True, kw_only=True):
    """
    What was diagnosed.

    Attributes:
        name: The target as the user named it (file name, class name), without folders.
        mode: ``inference`` (eval, no gradients) or ``training`` (forward, backward of a scalar loss); ``trace``.
        device: ``cpu``, ``cuda``; None where a trace does not say.
        inputs: Every tensor of the example input, in order.
        model: Class name of the model; None for a function or a trace.
        parameter_count: Elements in all parameters; None where there is no module.
        convolution_module_count: nn.Conv* modules in the model; None where there is no module.
        parameter_formats: How many 4-D and 5-D parameters satisfy each memory format, before any configuration.
        notes: Facts the reader should know ("was compiled already: the module inside was diagnosed").
        target: The device that graphs were lowered for without its being there (``cuda:90``); None where it really ran.
    """

    name: str
    mode: Mode
    device: str | None
    inputs: tuple[InputTensor, ...]
    model: str | None = None
    parameter_count: Count | None = None
    convolution_module_count: Count | None = None
    parameter_formats: dict[str, Count] = {}
    notes: tuple[str, ...] = ()
    target: str | None = None


class Environment(Record, frozen=True, kw_only=True):
    """
    The machine and versions a verdict is true on.

    Attributes:
        torch: torch's version; None in a trace that does not say.
        platform: Operating system, its release, and the processor family.
        cuda: Version of the CUDA (or ROCm) runtime that torch was built with.
        compiler: The C++ compiler that Inductor used on a CPU.
        cpu_count: Processors of the machine.
        thread_count: Threads torch used inside one operation, on a CPU.
        onednn_isa: The instruction set oneDNN reported, such as ``"Intel AVX-512 with Intel DL Boost"``.
        device_name: Name of the GPU, or of the processor.
        clock_hertz: The clock of the GPU's processors when this was recorded.
        clock_limits: The reasons that this clock was low, such as ``the power cap``.
        settings: torch settings and environment variables that bear on layouts, as they stood.
        command: The command line, without folders; None from Python.
        copy_bandwidth_bytes_per_second: Bytes read plus bytes written in copying a large tensor; None if not measured.
    """

    torch: str | None
    python: str | None = None
    platform: str | None = None
    triton: str | None = None
    cuda: str | None = None
    driver: str | None = None
    cudnn: str | None = None
    onednn: str | None = None
    onednn_isa: str | None = None
    compiler: str | None = None
    thread_count: Count | None = None
    cpu_count: Count | None = None
    device_name: str | None = None
    clock_hertz: Magnitude | None = None
    clock_limits: tuple[str, ...] = ()
    settings: dict[str, str] = {}
    command: str | None = None
    copy_bandwidth_bytes_per_second: Magnitude | None = None


class Failure(Record, frozen=True, kw_only=True):
    """
    Why a configuration has no result.

    Attributes:
        kind: Stage at which it failed: ``prepare``, ``compile``, ``run``, ``profile``, ``measure``.
        message: One line: the exception's class and text.
        log: The rest that may help, such as the last lines of the traceback; None where there is nothing more.
        location: The user's line that ran last; None where not known.
    """

    kind: str
    message: str
    log: str | None = None
    location: SourceLocation | None = None

    @property
    def refuses_view(self) -> bool:
        """Whether ``.view`` met strides that it cannot express."""
        return is_refused_view(self.message) or is_refused_view(self.log)


def is_refused_view(text: str | None) -> bool:
    """Whether an error says so: of ATen, or of the Python reference that torch.compile traces (torch 2.7 to 2.13)."""
    return text is not None and ("view size is not compatible" in text or "Cannot view a tensor with shape" in text)


class Conversion(Record, frozen=True, kw_only=True, omit_defaults=True):
    """
    One layout conversion: a kernel, a part of one, or a step inside a library.

    Attributes:
        id: Unique within its trial.
        owner: Who inserted it.
        direction: The kind of change; ``none`` for one that moves data without changing the layout (1-D, a cast).
        seconds: Measured time in the profiled iteration.
        bytes_moved: Bytes read plus bytes written, without padding.
        fused: True where the loop that makes it computes as well, so that it costs little of its own. A loop that only
            moves is a conversion of its own, also where its kernel runs other loops.
        start_seconds: Start within the profiled iteration.
        bandwidth_share: Bytes per second reached over the device's copy bandwidth, 0 to 1 or a little above.
        dtype: Element type before, such as ``"f32"``.
        graph: Name of the trial's graph that has ``node``.
        port: Which tensor of that node was converted: ``input 0``, ``output 0``...; None where that is not certain.
        target_dtype: Element type after, where a cast travels with the conversion; None where it stays the same.
        cause: Why it is there, in words: whose line asked for it, or what needs the layout it makes.
        role: ``entry`` of a graph input, ``exit`` to the caller's strides, ``interior`` between; None where not known.
        required_by: FX nodes that read the converted value and accept it in no other layout.
        value: Inductor buffer, or eager operation, whose result is the converted value.
        source_value: Inductor buffer or graph input that it was converted from.
        seconds_source: ``measured``, or ``estimated`` from ``bytes_moved`` and the device's measured copy bandwidth.
        count: The launches added up in this entry: more than 1 only if a table of totals was recorded.
        confidence: Of a kernel on a GPU, what its direction and tensor rest on: ``shapes`` that the operation recorded,
            the launch ``grid``, or the ``order`` of kernels alone; None elsewhere, and where only the name is known.
        of_batch: By the launch grid alone: True for an activation or its gradient, False for a weight or its gradient.
        exposed_seconds: On a GPU, the part of ``seconds`` in which nothing else ran on the device.
        step: In a recorded trace, the profiler's step it ran in, such as ``ProfilerStep#3``.
    """

    id: str
    owner: Owner
    kernel: str | None
    node: str | None
    op: str | None
    location: SourceLocation | None
    module: str | None
    source: Layout | None
    target: Layout | None
    direction: ConversionDirection
    tensor: TensorKind
    seconds: Seconds | None
    bytes_moved: Count | None
    # Made by a factory, a default is written all the same: the contract names these.
    fused: bool = msgspec.field(default_factory=bool)
    stream: Integer | None = msgspec.field(default_factory=NoneType)
    start_seconds: Moment | None = msgspec.field(default_factory=NoneType)
    bandwidth_share: Magnitude | None = msgspec.field(default_factory=NoneType)
    dtype: str | None = None
    graph: str | None = None
    port: str | None = None
    target_dtype: str | None = None
    cause: str | None = None
    role: ConversionRole | None = None
    required_by: tuple[str, ...] = ()
    value: str | None = None
    source_value: str | None = None
    seconds_source: CostSource | None = None
    count: Count = 1
    confidence: Confidence | None = None
    of_batch: bool | None = None
    exposed_seconds: Seconds | None = None
    step: str | None = None


class Convolution(msgspec.Struct, frozen=True, kw_only=True, rename={"class_": "class"}):
    """
    One convolution of a compiled graph, as Inductor's heuristic saw it.

    Attributes:
        class_: ``grouped`` (groups > 1 and more than one input channel per group), ``small`` (both channel counts
            <= 64), ``in_out`` (output channels at most half of the input channels, kernel > 1), ``default``.
        channels_last: Whether its output is channels-last in the generated code; None where not recorded.
        rank: Spatial rank: 1, 2 or 3.
        weight_shape: ``[C_out, C_in / groups, ...]``.
        stride: Its stride, one number per spatial dimension; None where not recorded.
        is_transposed: Whether it is a transposed convolution; None where not recorded.
        is_backward: True for a ``convolution_backward``.
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


class Decision(Record, frozen=True, kw_only=True):
    """
    Inductor's decision card for one graph.

    Attributes:
        applied: Whether layout optimization was on for this graph; None where it was not recorded.
        rule: Short name of the branch that decided, such as ``cpu-onednn`` or ``grouped-convolution``.
        explanation: The same in our own words, with the numbers.
        convolution_count: Convolutions in the graph (forward and backward ones).
        channels_last_convolution_count: How many of them the compiler forced to channels-last.
        deciding_nodes: The convolutions that vetoed; empty where no single node did.
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
    One node of a graph: the post-AOT FX graph of a compile, or the operations recorded in eager.

    Attributes:
        name: Unique within the graph.
        op: ``placeholder``, ``get_attr``, ``call_function`` or ``output``.
        target: The operator, such as ``aten.convolution.default``.
        inputs: Names of the nodes whose values it reads, in argument order, repeated where read twice.
        layout: Layout of its (first) result.
        tensor: For a placeholder: what kind of tensor it is.
        backward: True for an operation that autograd ran.
        result_index: For a node that takes one result of another one: which.
        uses_running_statistics: For a batch norm: whether it normalizes by fixed statistics; None for other operations.
        called: The function on the user's line, such as ``contiguous`` or ``conv2d``; None if not recorded.
        is_called_directly: Whether the user's own line called it, not code of torch that it called; None if not known.
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


class BufferRead(Record, frozen=True, kw_only=True, omit_defaults=True):
    """
    How the loop that writes one buffer reads another one.

    Attributes:
        name: The buffer or graph input that is read.
        stride: By how many elements of it the read moves for one step in each dimension of the *written* buffer: its
            layout as that buffer sees it. 0 in a dimension over which it is broadcast. None where the read follows no
            such steps (an index table, a remainder, a symbolic size).
        offset: Element at which the read starts, for the first element of the written buffer.
        is_masked: Whether only some elements of the written buffer come from it, as in a concatenation.
        reduction_run: In a reduction: how many neighbouring elements it reads one after the other; 1 where every one is
            a stride away. None for other loops, and where not known.
    """

    name: str
    stride: tuple[Integer, ...] | None
    offset: Integer = 0
    is_masked: bool = False
    reduction_run: Count | None = None


class Buffer(Record, frozen=True, kw_only=True, omit_defaults=True):
    """
    One of Inductor's intermediates after scheduling.

    Attributes:
        name: Inductor's name, such as ``buf3``.
        layout: Layout in the generated code.
        kernel: Name of the generated kernel, or of the external call, that writes it.
        reads: Names of the buffers and graph inputs it is computed from.
        is_extern: True where a library call (convolution, matrix product) writes it.
        source_node: FX node whose value it holds, where that is one node.
        accesses: How the loop that writes it reads other buffers; empty for an external call.
        operations: The operations of that loop besides loads and stores; empty if it only moves elements.
        is_reduction: Whether that loop reduces, so that reads and writes walk different dimensions.
        is_removed: Whether fusion left it in registers, so that it is never written to memory.
        is_output: Whether the graph returns it, or it is written into a tensor of the caller.
        is_user_output: Whether the caller of the model sees it; False for what is only saved for the backward, None
            where not known.
        alias_of: The buffer whose memory it is a part of, such as the concatenation that it is written into.
        offset: Element of that buffer at which it starts.
        launch: Which launch of a generated kernel writes it, counted through the graph; None for a library call.
        problem: Why its loop was not understood; None where it was.
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
    The operation at which a channels-last region ends though its neighbours could have stayed in it.

    Attributes:
        node: FX node, or eager operation, that returns another layout than it was given.
        op: The operation, as a person calls it: ``instance_norm``, ``contiguous``, ``channel_shuffle``.
        reason: Why the layout is lost there, in words.
        conversions: Ids of the conversions that its neighbours pay: out of the region, and back into it.
    """

    node: str
    op: str
    reason: str
    location: SourceLocation | None
    module: str | None
    source: Layout
    target: Layout
    conversions: tuple[str, ...] = ()
    seconds: Seconds | None = None
    bytes_moved: Count | None = None


class Graph(Record, frozen=True, kw_only=True):
    """
    One compiled graph, or the eager iteration as one graph.

    Attributes:
        name: Unique within the trial, such as ``graph 0`` or ``eager``.
        decision: The decision card; None for eager and where nothing was recorded.
        conversions: The conversions that the graph itself proves.
        graph_breaks: Breaks of the whole model, as dynamo counted them.
        kernel_names: Generated kernels in the order of their definition.
        output_names: Nodes the graph returns; in eager, those still held afterwards as well.
        code_fingerprint: Hash of the generated code with names that differ by compile made equal.
        kernel_sources: Generated kernels as they were handed to their compiler, by name; in recordings only.
        hook_failure: The error of our own hooks, if there was one; the compile itself went on.
        breakers: The operations at which a channels-last region ends without need.
        not_understood: The parts of the graph that could not be followed, one line each: symbolic sizes, sub-graphs,
            custom operations, sparse or complex tensors. Nothing is claimed about these.
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
    kernel_sources: dict[str, str] = {}
    hook_failure: str | None = None
    breakers: tuple[LayoutBreaker, ...] = ()
    not_understood: tuple[str, ...] = ()


class Kernel(Record, frozen=True, kw_only=True, omit_defaults=True):
    """
    One entry of the kernel list of the profiled iteration, in order.

    Attributes:
        name: Name of the device kernel, generated kernel, oneDNN primitive or leaf operation.
        seconds: Its time; the least of several iterations.
        start_seconds: Start within the profiled iteration.
        op: ATen operation it ran in; None for a generated kernel.
        library: ``onednn``, ``inductor``, ``aten``, ``cudnn``...; None where not known.
        problem: The library's own description, such as ``mb4_ic64oc64_ih56...``.
        implementation: The library's name of the code it chose, such as ``brg_conv_fwd:avx512_core``.
        node: FX node, or eager operation, that ran it, where that is certain.
    """

    name: str
    seconds: Seconds | None
    start_seconds: Moment | None = None
    op: str | None = None
    library: str | None = None
    problem: str | None = None
    implementation: str | None = None
    stream: Integer | None = None
    backward: bool = False
    node: str | None = None
    graph: str | None = None


class Total(Record, frozen=True, kw_only=True):
    """
    Kernels of a recorded trace or of an iteration on a GPU, added up.

    Attributes:
        library: Whose kernels they are; for ``kernel`` only, None where not known.
    """

    kind: TotalKind
    name: str
    count: Count
    seconds: Seconds
    conversion_count: Count = 0
    conversion_seconds: Seconds = 0.0
    library: str | None = None


class Waiting(Record, frozen=True, kw_only=True):
    """
    What a recorded run waited for, or an iteration of a diagnosis.

    Attributes:
        span_seconds: From the first to the last that ran on the device; of all profiler steps, where those are longer.
            In a diagnosis, a call in the timing rounds.
        busy_seconds: In which a kernel or a copy ran on the device, the busiest of several.
        device_count: Devices that something ran on.
        collective_seconds: Kernels of NCCL and the like, which wait for other devices.
        copy_seconds: Copies and fills by the device's own engines.
        step_count: Profiler steps in which something ran on the device; None where none was recorded.
        step_seconds: The median one.
        conversion_bound_seconds: The most that the layout conversions counted can cost in a step, or without steps in
            all: when nothing else ran. An upper bound: the host may have been what the step waited for.
        launch_lag_seconds: From a kernel's launch to its start, the median; None where launches were not recorded.
        waits_for: ``device`` where that was busy nearly always, ``host`` where it was hardly busy, or mostly idle and
            found its queue empty; None where neither can be said.
    """

    span_seconds: Seconds
    busy_seconds: Seconds
    device_count: Count
    collective_seconds: Seconds
    copy_seconds: Seconds
    step_count: Count | None
    step_seconds: Seconds | None
    conversion_bound_seconds: Seconds
    launch_lag_seconds: Seconds | None
    waits_for: Literal["device", "host"] | None


class KernelSummary(Record, frozen=True, kw_only=True):
    """
    What ran in one warm, profiled iteration, or in the whole of a recorded trace.

    Attributes:
        count: Kernels in the list.
        seconds: Sum of their times; not the wall time. None, as all of their times, where what was seen cannot be true.
        conversion_count: Library conversions that change a layout (direction other than ``none``).
        share: ``conversion_seconds`` over ``seconds``; None where no kernel was recorded.
        conversions: Every library conversion kernel and every oneDNN ``reorder``, also those of direction ``none``.
        not_understood_count: Lines and events that could not be read, or conversions that could not be described.
        kernels: The list itself, in order; a file has it once for all trials of the same code.
        sources: The sources of the list, such as ``("torch.profiler", "oneDNN verbose log")``.
        lacks: The facts that could not be recorded, each with the reason.
        undecided_count: Of a trace, kernels that may convert a layout, though nothing says so; in no other sum.
        waiting: On a GPU, what a recorded trace or an iteration waited for; None elsewhere.
        exposed_conversion_seconds: On a GPU, the part of ``conversion_seconds`` in which nothing else ran on the
            device: what the run really waited for.
        convolution_count: On a GPU, kernels that ran for a convolution, its conversions included; in a log of oneDNN,
            what stands with one.
        convolution_seconds: Their time; None where not known.
        totals: In a recorded trace and on a GPU, the kernels added up by name, operation, module, step; longest first.
    """

    count: Count
    seconds: Seconds | None
    conversion_count: Count
    conversion_seconds: Seconds | None
    share: Share | None
    conversions: tuple[Conversion, ...]
    not_understood_count: Count
    kernels: tuple[Kernel, ...] = ()
    sources: tuple[str, ...] = ()
    lacks: tuple[str, ...] = ()
    exposed_conversion_seconds: Seconds | None = None
    convolution_count: Count | None = None
    convolution_seconds: Seconds | None = None
    totals: tuple[Total, ...] = ()
    undecided_count: Count = 0
    undecided_seconds: Seconds | None = None
    waiting: Waiting | None = None


class RedundantPair(Record, frozen=True, kw_only=True):
    """
    Two conversions that undo each other.

    Attributes:
        kind: ``adjacent`` (nothing between) or ``through`` (layout-agnostic operations between).
        evidence: Whether the graph or the kernel list proves it.
        first: Id of the conversion A to B.
        second: Id of the conversion B to A.
        between: Operations between the two, in order.
        seconds: The time of both together; None if not measured.
        bytes_moved: The bytes that both move together, read plus written.
        location: The user's line of the second one's operation, else of the first's.
        module: Path of the nn.Module of the same.
        proof: Why it may go: which consumers there are, and that nothing pins the layout between.
        tensor_shape: Shape of the converted tensor.
        also: Ids of further conversions that go with the first one, such as the other branches of a concatenation.
        seconds_source: Whether ``seconds`` was measured or estimated from bytes; None where there are no seconds.
        graph: Name of the graph that proves it.
        confidence: In a recorded trace, what says that both convert the same value: ``shapes`` agree all along the way,
            only the launch ``grid`` of both agrees, or nothing but the ``order`` of kernels; None elsewhere.
        exposed_seconds: On a GPU, the part of ``seconds`` in which nothing else ran on the device.
    """

    kind: Literal["adjacent", "through"]
    evidence: Literal["graph", "kernels"]
    first: str
    second: str
    between: tuple[str, ...]
    seconds: Seconds | None
    bytes_moved: Count | None
    location: SourceLocation | None
    module: str | None
    proof: str | None = None
    tensor_shape: tuple[Size, ...] | None = None
    also: tuple[str, ...] = ()
    seconds_source: CostSource | None = None
    graph: str | None = None
    confidence: Confidence | None = None
    exposed_seconds: Seconds | None = None


class Measurement(Record, frozen=True, kw_only=True):
    """
    The times of one trial.

    Attributes:
        round_seconds: The least of each turn's calls, in round order, in the process that compiled the configuration.
        median_seconds: Time of one call as every report shows it: the baseline's median, and for any other trial the
            baseline's time over the trial's ratio. In a recording, the median of ``round_seconds``.
        compile_seconds: Wall time of the first call, compiling included; None for eager.
        peak_memory_bytes: Most bytes of tensors alive above the start of an iteration (device memory on a GPU).
        calls_per_round: Calls in each turn.
        first_round: The number, from 0, of the baseline's round that the first one of these was.
        starts: ``round_seconds`` of each further start. Start k of two trials was timed in the same rounds.
        unkept_seconds: Time of one call in each of some fresh processes whose allocator gives freed memory back to the
            system (glibc's default); empty if none was started.
    """

    round_seconds: tuple[PositiveSeconds, ...]
    median_seconds: PositiveSeconds
    compile_seconds: Seconds | None
    peak_memory_bytes: Count | None
    calls_per_round: Count = 1
    first_round: Count = 0
    starts: tuple[tuple[PositiveSeconds, ...], ...] = ()
    unkept_seconds: tuple[PositiveSeconds, ...] = ()


class Equivalence(Record, frozen=True, kw_only=True):
    """
    Whether a configuration computes what the model computes.

    Attributes:
        status: ``equal``, ``different`` or ``not_checked``.
        max_abs_error: Largest difference of one value from the reference, in the worst tensor: the one whose error is
            the largest share of what is allowed there.
        relative_error: Root mean square error of the worst tensor, divided by the root mean square of the reference's
            values; if nothing but rounding is left of a sum whose terms cancel, by eager's own error. No unit.
        eager_relative_error: The same of the model in eager, in its own dtype and format: the yardstick. None if eager
            itself is the reference.
        tolerance: The largest ``relative_error`` allowed there; None if eager is too far off to tell.
        reference: ``float64`` eager; ``float32`` for half precision on a GPU; ``eager float32`` and the like if nothing
            more exact ran.
        detail: Why it was not checked, or which tensor is the worst and by how much it differs.
        gradients_checked: Whether parameter gradients were compared as well.
        output_layouts_differ: Whether they satisfy other memory formats than eager's on the caller's input.
    """

    status: Literal["equal", "different", "not_checked"]
    max_abs_error: Magnitude | None = None
    relative_error: Magnitude | None = None
    eager_relative_error: Magnitude | None = None
    tolerance: Magnitude | None = None
    reference: str | None = None
    detail: str | None = None
    gradients_checked: bool = False
    output_layouts: tuple[Layout, ...] = ()
    output_layouts_differ: bool | None = None


class GradientLayout(Record, frozen=True, kw_only=True):
    """A parameter whose gradient came with other strides."""

    parameter: str
    layout: Layout
    gradient: Layout


class TracedTensor(Record, frozen=True, kw_only=True):
    """
    A tensor that a traced model is given.

    Attributes:
        shape: Sizes.
        stride: Strides in elements.
        dtype: Such as ``float32``.
        requires_grad: Whether a backward computes its gradient.
    """

    shape: tuple[Count, ...]
    stride: tuple[Count, ...]
    dtype: str
    requires_grad: bool = False


class TracedModel(Record, frozen=True, kw_only=True):
    """
    The model as torch.compile traced it, in one graph that needs nothing but torch.

    Attributes:
        text: Torch's own text of the graph, a function ``forward`` of ``self``, weights and inputs in this order.
        weights: Parameters and buffers.
        inputs: All other tensors it reads.
    """

    text: str
    weights: tuple[TracedTensor, ...]
    inputs: tuple[TracedTensor, ...]


class Trial(Record, frozen=True, kw_only=True):
    """
    One configuration captured and measured.

    Attributes:
        status: ``same_as`` where the options or the generated code equal another trial's: it is measured there, and the
            kernel list and pairs here are that one's.
        graphs: Every compiled graph; for eager the recorded operations as one.
        recompile_count: Compiles beyond the first of the same code, during this trial.
        graph_break_reasons: Dynamo's reasons, one line each.
        notes: Facts about this trial the reader should know.
        recompile_reasons: Dynamo's reasons for compiling again, one line each.
        gradient_layouts: In training, every parameter whose gradient has other strides than itself.
        is_static: True where the graphs were lowered for a device that was not there, so that nothing ran.
        traced: The model's text, with the default configuration only; None if it needs more than torch.
    """

    configuration: Configuration
    status: TrialStatus
    same_as: str | None = None
    failure: Failure | None = None
    graphs: tuple[Graph, ...] = ()
    kernels: KernelSummary | None = None
    redundant_pairs: tuple[RedundantPair, ...] = ()
    measurement: Measurement | None = None
    equivalence: Equivalence | None = None
    recompile_count: Count = 0
    graph_break_reasons: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    recompile_reasons: tuple[str, ...] = ()
    gradient_layouts: tuple[GradientLayout, ...] = ()
    is_static: bool = False
    traced: TracedModel | None = None

    @property
    def name(self) -> str:
        """The configuration's name."""
        return self.configuration.name

    def compile(self, model: Callable[..., object]) -> Callable[..., object]:
        """
        The model prepared the way this trial ran it, ready to call.

        Args:
            model: An nn.Module or a function. It is not changed: a module is copied.

        Returns:
            A callable that converts its inputs and calls the (compiled) copy.

        Raises:
            UsageError: The trial is a recorded one, which names no way to compile.
        """
        from layoutdoctor.subjects.prepare import compile_for  # needs torch, so only on use

        return compile_for(model, self.configuration)


class Ratio(Record, frozen=True, kw_only=True):
    """
    How many times faster than the baseline a configuration is: the baseline's time over the configuration's.

    Attributes:
        low: Lower end of the 95 % interval.
        median: Geometric mean over the further starts if there are two or more, else the median over the rounds; above
            1 is faster.
        verdict: ``faster`` and ``slower``: the interval is beyond 1 by 1 %. ``equal``: it lies within 3 % of 1.
            ``inconclusive``: the rest.
        round_count: Rounds of the process that compiled the configuration.
        start_ratios: The ratio of each further start, in order; empty if the ratio is that of the rounds.
    """

    name: str
    low: Factor
    median: Factor
    high: Factor
    verdict: Verdict
    round_count: Count = 0
    start_ratios: tuple[Factor, ...] = ()


class Comparison(Record, frozen=True, kw_only=True):
    """
    All trials against the baseline.

    Attributes:
        baseline: Name of the configuration that the ratios refer to.
        ratios: One per measured trial other than the baseline.
        fastest: The fastest configuration with right outputs and those within 3 % of it; the recommended one first.
        other_cores: Cores that other programs used while the configurations were timed, on average; None if the system
            does not say.
    """

    baseline: str
    ratios: tuple[Ratio, ...]
    fastest: tuple[str, ...]
    other_cores: Magnitude | None = None


class AccountRow(Record, frozen=True, kw_only=True):
    """
    What one group of operations contributes to a difference.

    Attributes:
        kind: ``conversion``; ``generated_kernel``, a slower one; ``layout``: another one; ``implementation``: another
            code of a library; ``missing_fusion``; ``operation``: the same; ``not_aligned``: without a counterpart;
            ``small``: many small rows; ``outside_kernels``: the rest of the measured difference.
        seconds: How much of the difference it is; negative where it is faster on the slower side.
        slower_seconds: The time of the group in the slower configuration; None if that is no sum of kernels.
        operations: The operations, as the user's line calls them.
        module: Path of the nn.Module; of several the one that takes most.
        slower_kernels: Names of its kernels in the slower one, dearest first, with the library's code where known.
        slower_layout: Of what it reads first, or a generated kernel writes, in the slower one.
        tensor_bytes: Of the activations that library operations read and write in the slower one.
        count: The number of places with equal operations that are added up.
        detail: Further facts, in words.
        source: Of the generated kernel that takes most in the slower one.
    """

    kind: AccountKind
    seconds: Moment
    slower_seconds: Seconds | None = None
    faster_seconds: Seconds | None = None
    operations: tuple[str, ...] = ()
    backward: bool = False
    module: str | None = None
    locations: tuple[SourceLocation, ...] = ()
    slower_kernels: tuple[str, ...] = ()
    faster_kernels: tuple[str, ...] = ()
    slower_layout: Layout | None = None
    faster_layout: Layout | None = None
    tensor_bytes: Integer | None = None
    count: Count = 1
    detail: str | None = None
    source: str | None = None


class Account(Record, frozen=True, kw_only=True):
    """
    Where the difference between two configurations goes, operation by operation.

    Attributes:
        slower: The slower configuration; of two traces ``the new one`` or ``the old one``.
        slower_seconds: Time of a call; of a trace its kernel time, per step if the comparison is.
        rows: The largest contribution first, the named rest last; their ``seconds`` sum to the measured difference.
    """

    slower: str
    faster: str
    slower_seconds: Seconds
    faster_seconds: Seconds
    rows: tuple[AccountRow, ...]


class Finding(Record, frozen=True, kw_only=True):
    """
    What a rule reports.

    Attributes:
        code: The rule's code, such as ``LD101``.
        rule: The rule's name, such as ``round-trip-conversion``.
        severity: ``error`` a measured loss with a verified cure, ``warning`` a loss, ``note`` worth knowing.
        configuration: The trial it is about; None where it is about the whole diagnosis.
        seconds: The measured cost per iteration.
        evidence: Ids of conversions, node names or figures the message rests on.
        accepted: Why it is accepted, by the file given with ``--accepted``; empty where no reason is written there,
            None where it is not accepted.
    """

    code: str
    rule: str
    severity: Severity
    configuration: str | None
    message: str
    suggestion: str | None = None
    location: SourceLocation | None = None
    module: str | None = None
    seconds: Seconds | None = None
    bytes_moved: Count | None = None
    evidence: tuple[str, ...] = ()
    accepted: str | None = None


class WithoutFreezing(Record, frozen=True, kw_only=True):
    """
    The best configuration that leaves the weights free to change, if the recommended one freezes them.

    Attributes:
        configuration: The baseline if no other one is faster.
        speedup: As in ``Recommendation``; None for the baseline.
    """

    configuration: str
    speedup: Ratio | None
    how: str | None


class Recommendation(Record, frozen=True, kw_only=True):
    """
    What to do.

    Attributes:
        configuration: The configuration to use: the baseline if nothing is faster; None if nothing with right outputs
            was measured.
        speedup: Its ratio to the baseline; None for the baseline.
        how: Lines to paste; None for the baseline.
        verified: Whether further starts agreed: there were two or more, the ratio over them is ``faster``, and the
            outputs equal the reference.
        without_freezing: The best without frozen weights; None if the recommended configuration freezes none.
    """

    configuration: str | None
    speedup: Ratio | None = None
    how: str | None = None
    verified: bool = False
    without_freezing: WithoutFreezing | None = None


class Reproduction(Record, frozen=True, kw_only=True):
    """
    What a reproducer did when it was run before it was handed out.

    Attributes:
        printed: What it printed; where it failed, the end of what it said of that.
        reproduced: Whether conversions and ratio were as recorded; None where it did not run to its end.
    """

    printed: str
    reproduced: bool | None


class Diagnosis(Record, frozen=True, kw_only=True):
    """
    The whole record: environment, trials, comparison, findings, recommendation.

    ``print(diagnosis)`` is the text report. In a notebook it shows as rich output.

    Attributes:
        trials: One per configuration, in the order of the configurations.
        findings: Sorted: most severe first, then by cost.
        interrupted: Set where the diagnosis did not run to its end, with what stopped it.
        accounts: The parts of the difference between the baseline and the recommended configuration, and if eager is
            faster, that between it and eager.
        reproduction: The result of running the reproducer; None if it was not run.
        stage_seconds: How long each stage of the diagnosis took, in their order; empty where nobody was there.
    """

    schema_version: int = SCHEMA_VERSION
    layoutdoctor_version: str
    created_at: str
    environment: Environment
    subject: Subject
    trials: Annotated[tuple[Trial, ...], msgspec.Meta(min_length=1)]
    comparison: Comparison | None = None
    findings: tuple[Finding, ...] = ()
    recommendation: Recommendation | None = None
    interrupted: str | None = None
    accounts: tuple[Account, ...] = ()
    reproduction: Reproduction | None = None
    stage_seconds: dict[str, Seconds] = {}

    @property
    def redundant_pairs(self) -> tuple[RedundantPair, ...]:
        """The redundant pairs of all trials; those of trials that are the same as another one count once."""
        own = (trial for trial in self.trials if trial.status != "same_as")
        return tuple(pair for trial in own for pair in trial.redundant_pairs)

    @property
    def fastest(self) -> Trial | None:
        """The recommended trial where there is one, else the fastest measured; None where nothing was measured."""
        if self.recommendation is not None and self.recommendation.configuration is not None:
            return self.find_trial(self.recommendation.configuration)
        return self.find_trial(self.comparison.fastest[0]) if self.comparison and self.comparison.fastest else None

    @property
    def baseline(self) -> Trial | None:
        """The trial the ratios refer to; None where nothing was compared."""
        return self.find_trial(self.comparison.baseline) if self.comparison else None

    def trial(self, name: str) -> Trial:
        """
        The trial of that name.

        Raises:
            UsageError: There is none.
        """
        found = self.find_trial(name)
        if found is None:
            known = ", ".join(trial.name for trial in self.trials)
            raise UsageError(f"cannot find trial {name!r} in the diagnosis: expected one of {known}")
        return found

    def find_trial(self, name: str) -> Trial | None:
        """The trial of that name; None where there is none."""
        return next((trial for trial in self.trials if trial.name == name), None)

    def measured_trial(self, name: str) -> Trial | None:
        """The trial that was measured for that name: itself, or the one it is the same as."""
        trial = self.find_trial(name)
        return self.find_trial(trial.same_as) if trial is not None and trial.same_as is not None else trial

    def save(self, path: str | Path) -> None:
        """Writes the report, scrubbed as all are, in the format of the suffix, such as ``.json`` or ``.html``."""
        reports_layer().save(self, path)

    def to_markdown(self) -> str:
        """The report as GitHub Markdown."""
        return str(reports_layer().render(self, "markdown"))

    def to_html(self) -> str:
        """The report as one HTML page that needs no network."""
        return str(reports_layer().render(self, "html"))

    def to_pandas(self, table: str = "trials") -> pandas.DataFrame:
        """
        One table of the diagnosis as a DataFrame.

        Args:
            table: ``trials``, ``rounds``, ``conversions``, ``redundant_pairs``, ``convolutions`` or ``findings``.

        Raises:
            UsageError: There is no such table, or pandas is not installed.
        """
        frame: pandas.DataFrame = reports_layer().to_pandas(self, table)
        return frame

    def __str__(self) -> str:
        return str(reports_layer().render(self, "text"))

    def __repr__(self) -> str:
        return str(reports_layer().one_line(self))

    def _repr_mimebundle_(self, include: object = None, exclude: object = None) -> dict[str, str]:
        """The report for a notebook: HTML, with the text report for frontends without it."""
        return {"text/html": self._repr_html_(), "text/plain": str(self)}

    def _repr_html_(self) -> str:
        """The short report as an HTML fragment, as notebooks show it."""
        return str(reports_layer().render_fragment(self))


def reports_layer() -> ModuleType:
    """The upper layer, which a record reaches here alone, and only when a report is asked for."""
    from layoutdoctor import reports

    return reports
