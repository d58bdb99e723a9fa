"""
The words that rules, reports and comparisons share: owners, directions, tensors, element types, counts and lists.

Names from a record may hold characters that cannot be printed: a report cleans everything that it prints.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from typing import TypeVar

from layoutdoctor.diagnosis import Configuration, Layout, Ratio, Size, SourceKind, SourceLocation
from layoutdoctor.diagnosis.configurations import AHEAD_OF_TIME, BASELINE, BUILTIN_CONFIGURATIONS
from layoutdoctor.units import format_ratio

OWNER_WORDS = {
    "library": "inside library calls",
    "framework": "inside ATen operations",
    "compiler": "in compiled kernels",
    "user": "written in the model",
}
"""Words for the place of a conversion, by its owner."""

DIRECTION_WORDS = {
    "to_channels_last": "to channels_last",
    "to_contiguous": "to contiguous",
    "to_blocked": "to a blocked layout",
    "from_blocked": "from a blocked layout",
    "other": "between other layouts",
    "none": "no layout change",
}

TENSOR_WORDS = {
    "activation": "activation",
    "weight": "weight",
    "gradient": "gradient",
    "unknown": "tensor of unknown kind",
}

CONFIDENCE_WORDS: dict[str | None, str] = {
    "shapes": "shapes",
    "grid": "launch grid",
    "order": "order of kernels",
    None: "kernel name",
}
"""Words for the evidence of a conversion's direction and tensor."""

PROOF_WORDS = {
    "graph": "by the data flow of the compiled graph",
    "shapes": "by shapes that agree",
    "grid": "by launch grids that agree",
    "order": "by the order of kernels only",
}
"""Words for the evidence of a round trip, the most certain first."""

LIBRARY_NAMES = {
    "cudnn": "cuDNN",
    "miopen": "MIOpen",
    "onednn": "oneDNN",
    "tensorrt": "TensorRT",
    "cutensor": "cuTENSOR",
}

RAN_AS_EAGER = "torch.compile lowered no graph: the model ran as eager code"

TORCH_TRACE_LOG = "TORCH_TRACE log"
SOURCE_WORDS: dict[SourceKind, str] = {
    "profiler": "torch.profiler",
    "onednn_log": "oneDNN verbose log",
    "kineto_trace": "Kineto trace",
    "kineto_operations": "operations of a Kineto trace",
    "nsys_export": "Nsight Systems export",
    "torch_trace_log": TORCH_TRACE_LOG,
    "captured_compiles": "compiles in one process",
    "totals_table": "table of kernel totals",
    "key_averages": "table of torch.profiler's key_averages",
    "operation_averages": "operations of torch.profiler's key_averages",
    "nsys_kernel_summary": "Nsight Systems kernel summary",
    "nsys_summary_with_copies": "Nsight Systems summary of kernels and copies",
    "nsys_kernel_list": "Nsight Systems list of kernels",
    "nsys_launch_list": "Nsight Systems list of launches",
    "rocprofv3_kernel_list": "rocprofv3 list of kernels",
    "rocprofv3_summary": "rocprofv3 summary",
    "tracelens_summary": "TraceLens kernel summary",
}
"""Words for the source from which kernels were read."""

ITEM_BYTES = {
    "complex128": 16,
    "complex64": 8,
    "float64": 8,
    "float32": 4,
    "float16": 2,
    "bfloat16": 2,
    "float8_e4m3fn": 1,
    "float8_e5m2": 1,
    "int64": 8,
    "int32": 4,
    "int16": 2,
    "int8": 1,
    "uint8": 1,
    "bool": 1,
}
"""Number of bytes of one element, by torch's name of the dtype."""

_SPELLINGS = {
    "complex128": "c10::complex<double>",
    "complex64": "c10::complex<float>",
    "float64": "f64 double",
    "float32": "f32 float",
    "float16": "f16 half __half c10::Half",
    "bfloat16": "bf16 __nv_bfloat16 nv_bfloat16 __hip_bfloat16 c10::BFloat16 std::bfloat16_t",
    "float8_e4m3fn": "f8_e4m3 __nv_fp8_e4m3 c10::Float8_e4m3fn",
    "float8_e5m2": "f8_e5m2 __nv_fp8_e5m2 c10::Float8_e5m2",
    "int64": "i64 long",
    "int32": "i32 s32 int",
    "int8": "i8 s8 char int8_t",
    "uint8": "u8 uint8_t",
}
"""Other spellings of torch's dtypes: in oneDNN, in the profiler, and in the templates of CUDA and HIP."""

DTYPES = {
    **{name: name for name in ITEM_BYTES},
    **{spelling: name for name, spellings in _SPELLINGS.items() for spelling in spellings.split()},
    "signed char": "int8",
    "unsigned char": "uint8",
}
"""torch's name of a dtype, by each of its spellings."""

TARGET_FORMS = (
    "model.py, model.py:attr, package.module:attr, model.pt2, timm:NAME, torchvision:NAME, transformers:NAME or "
    "diffusers:CLASS"
)
"""Forms of a target on the command line."""


def item_bytes(dtype: str | None) -> int | None:
    """Returns the number of bytes of one element, by any spelling of its dtype; None if the dtype is not known."""
    return ITEM_BYTES.get(DTYPES.get(dtype or "", ""))


def plural(noun: str) -> str:
    """Returns the plural of a noun, made with ``s``: ``"conversions"``, ``"tensors of unknown kind"``."""
    head, of, rest = noun.partition(" of ")
    return f"{head}s{of}{rest}"


def count_of(count: int, noun: str, several: str = "") -> str:
    """Returns a count with its noun: ``"1 convolution"``; ``several`` is a plural that does not just add ``s``."""
    return f"{count} {noun if count == 1 else several or plural(noun)}"


def be(count: int) -> str:
    """Returns ``"is"`` for one thing, ``"are"`` for any other number."""
    return "is" if count == 1 else "are"


def listing(parts: Iterable[str], most: int | None = 4) -> str:
    """Lists parts as in a sentence: ``"a, b and c"``. After ``most`` parts comes ``"and 7 more"``; None lists all."""
    every = list(parts)
    named = every if most is None or len(every) <= most else [*every[:most], f"{len(every) - most} more"]
    return "".join(named) if len(named) < 2 else f"{', '.join(named[:-1])} and {named[-1]}"


_Part = TypeVar("_Part", bound=Hashable)


def distinct(parts: Iterable[_Part | None]) -> list[_Part]:
    """Returns each part once, in the order of first occurrence, without None."""
    return [part for part in dict.fromkeys(parts) if part is not None]


def joined(parts: Iterable[str | None], separator: str = "; ") -> str:
    """Joins the parts with a separator; leaves out None and empty parts."""
    return separator.join(part for part in parts if part)


Value = TypeVar("Value")


def phrase(words: str, value: Value | None, text: Callable[[Value], str] = str) -> str:
    """Replaces ``{}`` in the words by ``text(value)``: ``" (4.00 ms)"``. Empty if the value is None or empty."""
    return "" if value is None or value in ("", (), []) else words.format(text(value))


def shape_words(shape: Sequence[Size]) -> str:
    """Formats a shape: ``"4x64x56x56"``."""
    return "x".join(str(size) for size in shape)


def layout_words(layout: Layout | None) -> str:
    """Names a layout: ``"channels_last"``, ``"blocked aBcd16b"``, ``"strides (1, 4)"``, ``"a layout not recorded"``."""
    if layout is None or (layout.format is None and layout.stride is None):
        return "a layout not recorded"
    if layout.format is not None:
        return f"blocked {layout.format}"
    if layout.memory_formats:
        return " and ".join(name.removesuffix("_format") for name in layout.memory_formats)
    return f"strides ({', '.join(str(step) for step in layout.stride or ())})"


def op_words(target: str) -> str:
    """Shortens an operator's name from a graph (``aten.relu.default``) or a profile (``aten::relu``): ``"relu"``."""
    return target.removeprefix("aten.").removeprefix("aten::").removesuffix(".default")


_CELL = re.compile(r"\d{5,10}\.py")
"""File names that IPython gives to the cells of a notebook: a hash of the code."""


def line_words(location: SourceLocation, *, with_folders: bool = False) -> str:
    """Names a source line: ``"model.py:15"``, ``"notebook cell, line 15"``."""
    name = location.file.replace("\\", "/").rsplit("/", 1)[-1]
    if _CELL.fullmatch(name):
        return f"notebook cell, line {location.line}"
    return str(location) if with_folders else f"{name}:{location.line}"


_OPTIMIZATION_WORDS = {"on": ", layout opt on", "off": ", no layout opt", "forced": ", layout opt forced"}
"""Words for Inductor's option ``layout_optimization``, short enough for a table on a terminal."""


def _built_in_words(one: Configuration) -> str:
    parts: list[str] = ["compiled" if one.backend == "inductor" else one.backend]
    parts += ["channels_last"] if one.model_format == "channels_last" else []
    parts += ["frozen"] if one.freezes else []
    return " + ".join(parts) + _OPTIMIZATION_WORDS.get(one.layout_optimization or "default", "")


_CONFIGURATIONS = {one.name: _built_in_words(one) for one in BUILTIN_CONFIGURATIONS}
_CONFIGURATIONS[BASELINE] += " (the default)"


def name_in_words(name: str) -> str:
    """Describes a configuration: ``"compiled + channels_last"``; a user's own configuration keeps its name."""
    base, *added = name.split("+")
    built_in = base.removeprefix(AHEAD_OF_TIME)
    if built_in not in _CONFIGURATIONS:
        return name
    words = _CONFIGURATIONS[built_in]
    if name == built_in:
        return words
    if base != built_in:
        words = words.replace("compiled", "AOTInductor")
    return " + ".join((words.removesuffix(" (the default)"), *added))


def shown(name: str) -> str:
    """Names a configuration in a sentence: ``"the default"``, ``"compiled + channels_last"``."""
    return "the default" if name == BASELINE else name_in_words(name)


def interval_words(low: float, high: float) -> str:
    """Formats the interval of a ratio: ``"0.98 to 1.31"``."""
    return f"{low:.2f} to {high:.2f}"


def gain_words(ratio: Ratio, than: str = "") -> str:
    """
    Describes a configuration's ratio: ``"looks 1.15x faster than eager (0.98 to 1.31), not certain"``.

    Args:
        than: Words for the other configuration of the comparison; empty leaves them out.
    """
    low, median, high, word = ratio.low, ratio.median, ratio.high, "faster"
    if median < 1 and ratio.verdict != "equal":
        low, median, high, word = 1 / high, 1 / median, 1 / low, "slower"
    interval = f"({interval_words(low, high)})"
    if ratio.verdict == "equal":
        return joined(("as fast", phrase("as {}", than), interval), " ")
    words = joined((f"{format_ratio(median)} {word}", phrase("than {}", than), interval), " ")
    return words if ratio.verdict == word else f"looks {words}, not certain"


def speed_words(ratio: Ratio, than: str = "") -> str:
    """Makes a clause from a ratio: ``"eager is 1.64x slower (1.60 to 1.67)"``, ``"eager looks 1.05x faster ..."``."""
    return f"{shown(ratio.name)} {'' if ratio.verdict == 'inconclusive' else 'is '}{gain_words(ratio, than)}"


NOT_RECORDED = "not recorded"
STATUS_WORDS = {"failed": "failed", "timed_out": "timed out", "crashed": "crashed", "skipped": "skipped"}
"""Words for the status of a trial without a result."""

SWITCH_WORDS = {True: "on", False: "off", None: NOT_RECORDED}
"""Words for a decision of the compiler, or for a setting."""


def described(found: Mapping[str, Sequence[str]]) -> tuple[str, ...]:
    """Makes a line for each key of ``found``, with the names of the key: ``"key: a, b and c"``."""
    return tuple(f"{what}: {listing(names, 3)}" for what, names in found.items())
