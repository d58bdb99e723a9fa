"""The subject of a diagnosis (a model or a recorded run), its configurations, and the environment in which it ran."""

from __future__ import annotations

from typing import Literal

import msgspec

from layoutdoctor.diagnosis.layout import MemoryFormat, Size, check_ranks
from layoutdoctor.diagnosis.record import Count, Integer, Magnitude, Record

Mode = Literal["inference", "training", "trace"]
Backend = Literal["eager", "inductor", "recorded"]
LayoutOptimization = Literal["default", "on", "off", "forced"]
FormatChoice = Literal["preserve", "contiguous", "channels_last"]
InputUse = Literal["images", "frames", "other"]
OptionValue = bool | Integer | float | str | None


class SourceLocation(Record, frozen=True, kw_only=True):
    """
    A line of the user's code.

    Attributes:
        file: Path as Python reported it.
        line: Line number, from 1.
        code: The text of the line; None if it was not recorded.
    """

    file: str
    line: Count
    code: str | None = None

    def __str__(self) -> str:
        return f"{self.file}:{self.line}"


class Cure(Record, frozen=True, kw_only=True):
    """
    A change of the model by public APIs. A configuration makes the change in its own copy of the model.

    Attributes:
        name: Name of the change, such as ``flat-conv3d``.
        answers: Code of the rule whose finding the change cures, such as ``LD503``; None if there is no such rule.
        modules: Paths of the modules that it changes; empty if it changes the model as a whole.
        dtype: The dtype to which the modules are converted; None if their dtype is kept.
        how: Lines to paste that make the same change in a model called ``model``.
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
        backend: ``eager`` or ``inductor``; ``recorded`` for a recorded run.
        layout_optimization: Setting of Inductor's layout optimization; ``default`` keeps torch's own default. None for
            eager and for a recorded run.
        model_format: Memory format to which the 4-D and 5-D parameters and buffers of the model's copy are converted;
            for 5-D, ``channels_last`` is ``channels_last_3d``. None for a recorded run, as in ``input_format``.
        input_format: Memory format to which the example inputs that are read as images are converted.
        input_uses: Use of each tensor of the example input: ``images``; ``frames`` for a clip ``[B, T, C, H, W]`` whose
            frames are read as images; or ``other``. Empty if not known; then the rank decides.
        compile_arguments: Arguments of ``torch.compile`` other than its options: ``mode``, ``dynamic``, ``fullgraph``.
        inductor_options: Further options of Inductor, for this compile only (``freezing`` is set globally meanwhile).
        cures: Changes of the model that the configuration makes. Each adds ``+CURE`` to the configuration's name.
        library_switches: Switches of libraries that are set while the configuration runs, such as ``cudnn.benchmark``.
        dynamic: True marks the inputs' symbolic sizes with ``torch._dynamo.mark_dynamic``, False removes the marks;
            None leaves the inputs as the caller marked them.
        ahead_of_time: Whether the model is exported and compiled to a package by AOTInductor, not by torch.compile.
    """

    name: str
    backend: Backend
    layout_optimization: LayoutOptimization | None = None
    model_format: FormatChoice | None = "preserve"
    input_format: FormatChoice | None = "preserve"
    input_uses: tuple[InputUse, ...] = ()
    compile_arguments: dict[str, OptionValue] = msgspec.field(default_factory=dict)
    inductor_options: dict[str, OptionValue] = msgspec.field(default_factory=dict)
    cures: tuple[Cure, ...] = ()
    library_switches: dict[str, bool] = msgspec.field(default_factory=dict)
    dynamic: bool | None = None
    ahead_of_time: bool = False

    @property
    def freezes(self) -> bool:
        """Whether the weights become constants of the compiled code."""
        return bool(self.inductor_options.get("freezing"))

    @property
    def asks_for_format(self) -> bool:
        """Whether the model or its input is converted to a memory format."""
        return not {self.model_format, self.input_format} <= {None, "preserve"}


class InputTensor(Record, frozen=True, kw_only=True):
    """
    One tensor of the example input, as the caller gave it.

    Attributes:
        stride: Strides in elements; None if the tensor is not strided.
        memory_formats: Every memory format that the tensor satisfies.
        name: Name of the parameter in the model's signature, or the tensor's key; None if not recorded.
        symbolic: Dimensions whose size was exported as a symbol, or marked as dynamic by the caller.
    """

    shape: tuple[Size, ...]
    stride: tuple[Size, ...] | None
    dtype: str
    memory_formats: tuple[MemoryFormat, ...]
    name: str | None = None
    symbolic: tuple[Count, ...] = ()

    def __post_init__(self) -> None:
        check_ranks(self.shape, self.stride)


class Subject(Record, frozen=True, kw_only=True):
    """
    The model or the recorded run that was diagnosed.

    Attributes:
        name: The target as the user named it (file name, class name), without folders.
        mode: ``inference`` (eval, no gradients), ``training`` (forward, backward of a scalar loss), or ``trace`` for a
            recorded run.
        device: Type of the device: ``cpu``, ``cuda``; None if a trace does not say.
        inputs: Every tensor of the example input, in order.
        model: Class name of the model; None for a function or a trace.
        parameter_count: Number of elements in all parameters; None if there is no module.
        convolution_module_count: Number of nn.Conv* modules in the model; None if there is no module.
        parameter_formats: Number of 4-D and 5-D parameters in each memory format, before any configuration. A parameter
            that satisfies several formats counts for the format that most other parameters have.
        notes: Facts that the reader should know ("was compiled already: the module inside was diagnosed").
        target: Device for which graphs were lowered although the machine does not have it (``cuda:90``); None if the
            model really ran.
    """

    name: str
    mode: Mode
    device: str | None
    inputs: tuple[InputTensor, ...]
    model: str | None = None
    parameter_count: Count | None = None
    convolution_module_count: Count | None = None
    parameter_formats: dict[str, Count] = msgspec.field(default_factory=dict)
    notes: tuple[str, ...] = ()
    target: str | None = None


class Environment(Record, frozen=True, kw_only=True):
    """
    The machine and the versions for which a verdict is true.

    Attributes:
        torch: Version of torch; None if a trace does not say.
        platform: Operating system, its release, and the processor family.
        cuda: Version of the CUDA (or ROCm) runtime that torch was built with.
        compiler: The C++ compiler that Inductor used on a CPU.
        thread_count: Number of threads that torch used inside one operation, on a CPU.
        onednn_isa: The instruction set that oneDNN reported, such as ``"Intel AVX-512 with Intel DL Boost"``.
        device_name: Name of the GPU, or of the processor.
        clock_hertz: Clock of the GPU's processors when the environment was recorded.
        clock_limits: Reasons why the clock was low, such as ``the power cap``.
        settings: Values of the torch settings and environment variables that influence layouts.
        command: The command line, without folders; None if Python code started the diagnosis.
        copy_bandwidth_bytes_per_second: Bytes read plus bytes written per second while a large tensor is copied; None
            if not measured.
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
    settings: dict[str, str] = msgspec.field(default_factory=dict)
    command: str | None = None
    copy_bandwidth_bytes_per_second: Magnitude | None = None
