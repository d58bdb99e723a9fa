"""The built-in configurations, as data, and how names on a command line become configurations."""

from __future__ import annotations

import ast
import os
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

import msgspec

from layoutdoctor.diagnosis.compile_options import EXPECTED, may_be_set
from layoutdoctor.diagnosis.subject import Configuration
from layoutdoctor.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from layoutdoctor.diagnosis.subject import FormatChoice, LayoutOptimization, Mode, OptionValue

BASELINE = "inductor"
"""The configuration that ratios refer to: torch.compile as torch ships it."""

FORCED = "inductor-layout-opt-forced"
AHEAD_OF_TIME = "aot-"
"""Begins the names of configurations that AOTInductor compiles."""
PACKAGE_SUFFIX = ".pt2"
SYMBOLIC_SIZES, STATIC_SIZES = f"{BASELINE}+symbolic-sizes", f"{BASELINE}+static-sizes"
"""The default, if the inputs have symbolic sizes, with these as symbols or as numbers."""
ALL = "all"


def _inductor(name: str, optimization: LayoutOptimization = "default", **options: OptionValue) -> Configuration:
    """A configuration of Inductor, whose name says whether model and input are given in channels_last."""
    given: FormatChoice = "channels_last" if "channels-last" in name else "preserve"
    return Configuration(
        name=name,
        backend="inductor",
        layout_optimization=optimization,
        model_format=given,
        input_format=given,
        inductor_options=options,
    )


DEFAULT_CONFIGURATIONS = (
    Configuration(name="eager", backend="eager"),
    Configuration(
        name="eager-channels-last", backend="eager", model_format="channels_last", input_format="channels_last"
    ),
    _inductor(BASELINE),
    _inductor("inductor-layout-opt-off", "off"),
    _inductor("inductor-layout-opt-on", "on"),
    _inductor("inductor-channels-last"),
    _inductor("inductor-channels-last-opt-off", "off"),
    _inductor("inductor-freezing", freezing=True),
    _inductor("inductor-channels-last-freezing", freezing=True),
)
"""Tried if nothing else is asked for; in training, those that freeze the weights are left out."""
BUILTIN_CONFIGURATIONS = (
    *DEFAULT_CONFIGURATIONS,
    _inductor("inductor-opt-off-freezing", "off", freezing=True),
    _inductor("inductor-channels-last-opt-off-freezing", "off", freezing=True),
    _inductor("inductor-layout-opt-forced", "forced"),
)
_BY_NAME = {configuration.name: configuration for configuration in BUILTIN_CONFIGURATIONS}
ONCE_FOR_ALL_SIZES = msgspec.structs.replace(
    _BY_NAME[BASELINE], name=SYMBOLIC_SIZES, compile_arguments={"dynamic": True}
)
"""A model compiled once and called with several shapes: torch.compile makes the sizes that differ symbols."""
QUICK = "quick"
_SETS = {
    "default": DEFAULT_CONFIGURATIONS,
    "all": BUILTIN_CONFIGURATIONS,
    QUICK: tuple(_BY_NAME[name] for name in (BASELINE, "inductor-channels-last", "inductor-channels-last-freezing")),
}


def choose_configurations(
    choice: str | Configuration | Iterable[str | Configuration], mode: Mode = "inference"
) -> tuple[Configuration, ...]:
    """
    The configurations a user asked for.

    Args:
        choice: ``"default"``, ``"all"``, ``"quick"``, one name, names separated by commas, a Configuration, or several
            of these.
        mode: Freezing is for inference only, so these three words leave it out in training.

    Raises:
        UsageError: A name is not built in, nothing is left, or one name is given to two different configurations.
    """
    chosen: dict[str, Configuration] = {}
    for configuration in _expand(choice, mode):
        refused = next((item for item in configuration.inductor_options.items() if not may_be_set(*item)), None)
        if refused is not None:
            raise UsageError(f"cannot use {configuration.name!r} with {dict([refused])!r}: expected {EXPECTED}")
        known = chosen.setdefault(configuration.name, configuration)
        if known != configuration:
            raise UsageError(
                f"cannot use two different configurations under the name {configuration.name!r}; give each its own name"
            )
    if not chosen:
        raise UsageError("cannot diagnose without a configuration: got an empty list, expected at least one name")
    return tuple(chosen.values())


Following = Literal["nothing", "matrix_products", "all"]


def what_follows(choice: object) -> Following:
    """The further configurations that may be made of a user's choice: none if the user named configurations."""
    if choice == QUICK:
        return "matrix_products"
    return "all" if choice in ("default", "all") else "nothing"


COMPILE_ARGUMENTS = ("mode", "dynamic", "fullgraph")
"""Of ``torch.compile``, beside ``options``."""
CUDNN_BENCHMARK = "cudnn.benchmark"
LIBRARY_SWITCHES = (CUDNN_BENCHMARK,)


def read_compile_arguments(text: str) -> dict[str, Any]:
    """
    Arguments of ``torch.compile`` as they stand between its brackets: ``'mode="reduce-overhead", dynamic=True'``.

    Raises:
        UsageError: They are no keyword arguments with constants, or not those that can be kept while layouts change.
    """
    try:
        given = {one.arg: ast.literal_eval(one.value) for one in _keywords(text)}
    except (SyntaxError, ValueError, MemoryError, RecursionError) as error:
        raise UsageError(
            f"cannot compile with {text!r}: expected keyword arguments of torch.compile with constants, "
            """such as 'mode="reduce-overhead", dynamic=True'"""
        ) from error
    return check_compile_arguments({name: value for name, value in given.items() if name is not None})


def _keywords(text: str) -> list[ast.keyword]:
    """The arguments of a call with nothing but keywords, each with its name; raises ValueError for anything else."""
    call = ast.parse(f"torch.compile({text})", mode="eval").body
    if not isinstance(call, ast.Call) or call.args or not call.keywords or None in [one.arg for one in call.keywords]:
        raise ValueError(text)
    return call.keywords


def check_compile_arguments(given: Mapping[str, Any]) -> dict[str, Any]:
    """
    The arguments, without those that say what torch.compile does anyway; their values are for torch to check.

    Raises:
        UsageError: One cannot be kept while layouts change.
    """
    if not isinstance(given, Mapping):
        raise UsageError(f"cannot compile with {given!r}: expected arguments of torch.compile by name")
    kept = {name: value for name, value in given.items() if (name, value) != ("backend", "inductor")}
    wrong = [name for name in kept if name not in (*COMPILE_ARGUMENTS, "options")]
    if wrong:
        raise UsageError(
            f"cannot compile with {wrong[0]}={kept[wrong[0]]!r}: expected {', '.join(COMPILE_ARGUMENTS)} or options of "
            "the backend inductor, whose layouts are diagnosed"
        )
    options = {} if kept.get("options") is None else kept["options"]
    if not isinstance(options, Mapping):
        raise UsageError(f"cannot compile with options={options!r}: expected options by name, such as max_autotune")
    for name, value in {**kept, **options}.items():
        if name != "options" and not is_constant(value):
            raise UsageError(f"cannot compile with {name}={value!r}: expected a number, a string, True, False or None")
    refused = next((item for item in options.items() if not may_be_set(*item)), None)
    if refused is not None:
        raise UsageError(f"cannot compile with options={dict([refused])!r}: expected {EXPECTED}")
    return {name: value for name, value in kept.items() if value is not None}


def is_constant(value: object) -> bool:
    """Whether it can be kept in a record as an option."""
    return value is None or isinstance(value, (bool, int, float, str))


def compiled_with(configuration: Configuration, given: Mapping[str, Any]) -> Configuration:
    """
    A configuration compiled as the user compiles, in all that it does not decide itself.

    Args:
        given: As from ``check_compile_arguments``.
    """
    if configuration.backend != "inductor":
        return configuration
    decides = configuration.layout_optimization != "default"
    own = ("freezing", *(("layout_optimization", "force_layout_optimization") if decides else ()))
    options = {name: value for name, value in given.get("options", {}).items() if name not in own}
    arguments = {name: value for name, value in given.items() if name != "options"}
    return msgspec.structs.replace(
        configuration,
        compile_arguments={**configuration.compile_arguments, **arguments},
        inductor_options={**options, **configuration.inductor_options},
    )


def by_aot_inductor(configurations: Sequence[Configuration], given: Mapping[str, Any]) -> tuple[Configuration, ...]:
    """
    The configurations, with what is compiled compiled by AOTInductor, and beside them torch.compile's default.

    Args:
        configurations: As from ``compiled_with``.
        given: The arguments of torch.compile that they were made with.

    Raises:
        UsageError: One has arguments of torch.compile that an exported program does not have.
    """
    default = next((one for one in configurations if one.name == BASELINE), compiled_with(_BY_NAME[BASELINE], given))
    chosen = [default]
    for one in configurations:
        if one.backend != "inductor":
            chosen.append(one)
            continue
        for name in ("dynamic", "fullgraph"):
            if name in one.compile_arguments:
                raise UsageError(
                    f"cannot compile a package with {name}={one.compile_arguments[name]!r}: AOTInductor compiles an "
                    "exported program, whole and for the sizes of the example input; leave it out"
                )
        chosen.append(msgspec.structs.replace(one, name=f"{AHEAD_OF_TIME}{one.name}", ahead_of_time=True))
    return tuple(chosen)


def check_package(package: str | os.PathLike[str], mode: Mode, target: str | None) -> str:
    """
    The file for a package, as text.

    Raises:
        UsageError: It has another ending; or no package can be made in this mode, or for such a target.
    """
    path = os.fspath(package)
    cannot = f"cannot keep a package in {path!r}:"
    if not path.endswith(PACKAGE_SUFFIX):
        raise UsageError(f"{cannot} expected a file whose name ends in {PACKAGE_SUFFIX}, such as model.pt2")
    if mode != "inference":
        raise UsageError(f"{cannot} AOTInductor compiles for inference; leave the package out to diagnose {mode}")
    if target is not None:
        raise UsageError(f"{cannot} nothing is compiled to the end for target {target!r}; leave one of the two out")
    return path


def base_name(configuration: Configuration) -> str:
    """The name of the configuration that one with cures was made of."""
    name = configuration.name
    for cure in reversed(configuration.cures):
        name = name.removesuffix(f"+{cure.name}")
    return name


def _expand(choice: str | Configuration | Iterable[str | Configuration], mode: Mode) -> list[Configuration]:
    if isinstance(choice, Configuration):
        return [choice]
    if not isinstance(choice, str):
        return [configuration for part in choice for configuration in _expand(part, mode)]
    found: list[Configuration] = []
    for name in (part.strip() for part in choice.split(",")):
        if name in _SETS:
            found += [one for one in _SETS[name] if mode == "inference" or not one.freezes]
        elif name in _BY_NAME:
            found.append(_BY_NAME[name])
        elif name:
            raise UsageError(
                f"cannot diagnose under configuration {name!r}: expected one of {', '.join(sorted(_BY_NAME))}, "
                "or 'default', 'quick' or 'all'; in Python, pass a Configuration object for your own"
            )
    return found


_KIB, _MIB, _GIB = 2**10, 2**20, 2**30


@dataclass(frozen=True, slots=True)
class Target:
    """
    One GPU as a compiler sees it.

    Attributes:
        name: ``cuda:`` and the compute capability without its dot.
        threads_per_multiprocessor: The most that are resident at once.
        shared_bytes_per_block: The most that one block may ask for.
    """

    name: str
    capability: tuple[int, int]
    device_name: str
    multiprocessor_count: int
    threads_per_multiprocessor: int
    shared_bytes_per_block: int
    shared_bytes_per_multiprocessor: int
    l2_bytes: int
    memory_bytes: int


TARGETS = (
    Target("cuda:75", (7, 5), "Tesla T4", 40, 1024, 64 * _KIB, 64 * _KIB, 4 * _MIB, 16 * _GIB),
    Target("cuda:80", (8, 0), "NVIDIA A100-SXM4-80GB", 108, 2048, 163 * _KIB, 164 * _KIB, 40 * _MIB, 80 * _GIB),
    Target("cuda:86", (8, 6), "NVIDIA GeForce RTX 3090", 82, 1536, 99 * _KIB, 100 * _KIB, 6 * _MIB, 24 * _GIB),
    Target("cuda:87", (8, 7), "Orin", 16, 1536, 163 * _KIB, 164 * _KIB, 4 * _MIB, 64 * _GIB),
    Target("cuda:89", (8, 9), "NVIDIA L40S", 142, 1536, 99 * _KIB, 100 * _KIB, 96 * _MIB, 48 * _GIB),
    Target("cuda:90", (9, 0), "NVIDIA H100 80GB HBM3", 132, 2048, 227 * _KIB, 228 * _KIB, 50 * _MIB, 80 * _GIB),
    Target("cuda:100", (10, 0), "NVIDIA B200", 148, 2048, 227 * _KIB, 228 * _KIB, 126 * _MIB, 180 * _GIB),
    Target("cuda:103", (10, 3), "NVIDIA B300 SXM6", 148, 2048, 227 * _KIB, 228 * _KIB, 126 * _MIB, 288 * _GIB),
    Target("cuda:120", (12, 0), "NVIDIA GeForce RTX 5090", 170, 1536, 99 * _KIB, 100 * _KIB, 96 * _MIB, 32 * _GIB),
    Target("cuda:121", (12, 1), "NVIDIA GB10", 48, 1536, 99 * _KIB, 100 * _KIB, 24 * _MIB, 128 * _GIB),
)
"""One card for each compute capability; layout decisions depend on the capability, not on the card."""


def find_target(name: object) -> Target:
    """
    The target of that name.

    Raises:
        UsageError: There is none.
    """
    for target in TARGETS:
        if target.name == name:
            return target
    raise UsageError(
        f"cannot lower for target {name!r}: expected one of {', '.join(target.name for target in TARGETS)} "
        "(cuda and the compute capability; GPUs of AMD and Intel are not lowered for); leave the target out to measure "
        "on this machine"
    )
