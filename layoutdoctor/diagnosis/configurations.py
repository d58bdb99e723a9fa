"""Defines the built-in configurations, and finds configurations by their names on a command line."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any, Literal

import msgspec

from layoutdoctor.diagnosis.compile_arguments import compiled_with
from layoutdoctor.diagnosis.compile_options import EXPECTED, refused_option
from layoutdoctor.diagnosis.subject import Configuration
from layoutdoctor.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from layoutdoctor.diagnosis.subject import FormatChoice, LayoutOptimization, Mode, OptionValue

BASELINE = "inductor"
"""The configuration that ratios refer to: torch.compile as torch ships it."""


FORCED = "inductor-layout-opt-forced"


AHEAD_OF_TIME = "aot-"
"""Prefix of the names of configurations that AOTInductor compiles."""


PACKAGE_SUFFIX = ".pt2"


SYMBOLIC_SIZES, STATIC_SIZES = f"{BASELINE}+symbolic-sizes", f"{BASELINE}+static-sizes"
"""Names of the default configuration with the inputs' symbolic sizes kept as symbols, or replaced by numbers."""


ALL = "all"


def _inductor(name: str, optimization: LayoutOptimization = "default", **options: OptionValue) -> Configuration:
    """Makes a configuration of Inductor; a name with ``channels-last`` puts model and input into channels_last."""
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
"""The configurations that are tried by default; in training, the ones that freeze the weights are left out."""


BUILTIN_CONFIGURATIONS = (
    *DEFAULT_CONFIGURATIONS,
    _inductor("inductor-opt-off-freezing", "off", freezing=True),
    _inductor("inductor-channels-last-opt-off-freezing", "off", freezing=True),
    _inductor("inductor-layout-opt-forced", "forced"),
)


BY_NAME = {configuration.name: configuration for configuration in BUILTIN_CONFIGURATIONS}


ONCE_FOR_ALL_SIZES = msgspec.structs.replace(
    BY_NAME[BASELINE], name=SYMBOLIC_SIZES, compile_arguments={"dynamic": True}
)
"""The configuration of a model that is compiled once for several shapes: every size becomes a symbol."""


QUICK = "quick"


SETS = {
    "default": DEFAULT_CONFIGURATIONS,
    "all": BUILTIN_CONFIGURATIONS,
    QUICK: tuple(BY_NAME[name] for name in (BASELINE, "inductor-channels-last", "inductor-channels-last-freezing")),
}
"""The configurations that ``default``, ``all`` and ``quick`` stand for."""


def choose_configurations(
    choice: str | Configuration | Iterable[str | Configuration], mode: Mode = "inference"
) -> tuple[Configuration, ...]:
    """
    Returns the configurations that a user asked for.

    Args:
        choice: ``"default"``, ``"all"``, ``"quick"``, one name, names separated by commas, a Configuration, or several
            of these.
        mode: In training, ``default``, ``all`` and ``quick`` leave out the configurations that freeze the weights.

    Raises:
        UsageError: A name is unknown or means two configurations, an option is not allowed, or the list is empty.
    """
    chosen: dict[str, Configuration] = {}
    for configuration in _expand(choice, mode):
        if refused := refused_option(configuration.inductor_options):
            raise UsageError(f"cannot use {configuration.name!r} with {refused!r}: expected {EXPECTED}")
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
    """Returns the value of ``Request.derives`` for a choice of configurations: ``nothing`` unless a set was named."""
    if choice == QUICK:
        return "matrix_products"
    return "all" if choice in ("default", "all") else "nothing"


CUDNN_BENCHMARK = "cudnn.benchmark"


LIBRARY_SWITCHES = (CUDNN_BENCHMARK,)


def by_aot_inductor(configurations: Sequence[Configuration], given: Mapping[str, Any]) -> tuple[Configuration, ...]:
    """
    Makes the compiled configurations use AOTInductor, and adds torch.compile's default.

    Args:
        configurations: The configurations as ``compiled_with`` returns them.
        given: The user's arguments of torch.compile, as for ``compiled_with``.

    Raises:
        UsageError: A configuration has an argument of torch.compile that an exported program cannot have.
    """
    default = next((one for one in configurations if one.name == BASELINE), compiled_with(BY_NAME[BASELINE], given))
    chosen = [default]
    for one in configurations:
        if one.backend != "inductor":
            chosen.append(one)
            continue
        for name in ("dynamic", "fullgraph"):
            if name in one.compile_arguments:
                raise UsageError(
                    f"cannot compile a package with {name}={one.compile_arguments[name]!r}: AOTInductor exports the "
                    f"model whole, for the example input's sizes; leave out {name}"
                )
        chosen.append(msgspec.structs.replace(one, name=f"{AHEAD_OF_TIME}{one.name}", ahead_of_time=True))
    return tuple(chosen)


def check_package(package: str | os.PathLike[str], mode: Mode, target: str | None) -> str:
    """
    Returns the path of the file for a package, as text.

    Raises:
        UsageError: The path has another ending, or no package can be made in this mode or for a target.
    """
    path = os.fspath(package)
    cannot = f"cannot keep a package in {path!r}:"
    if not path.endswith(PACKAGE_SUFFIX):
        raise UsageError(f"{cannot} expected a file whose name ends in {PACKAGE_SUFFIX}, such as model.pt2")
    if mode != "inference":
        raise UsageError(f"{cannot} AOTInductor compiles for inference; leave the package out to diagnose {mode}")
    if target is not None:
        raise UsageError(f"{cannot} nothing is compiled to the end for {target!r}; leave out the package or the GPU")
    return path


def name_without_cures(configuration: Configuration) -> str:
    """Returns the name of the configuration to which the first cure was added."""
    return (
        configuration.name.partition(f"+{configuration.cures[0].name}")[0]
        if configuration.cures
        else configuration.name
    )


def _expand(choice: str | Configuration | Iterable[str | Configuration], mode: Mode) -> list[Configuration]:
    if isinstance(choice, Configuration):
        return [choice]
    if not isinstance(choice, str):
        return [configuration for part in choice for configuration in _expand(part, mode)]
    found: list[Configuration] = []
    for name in (part.strip() for part in choice.split(",")):
        if name in SETS:
            found += [one for one in SETS[name] if mode == "inference" or not one.freezes]
        elif name in BY_NAME:
            found.append(BY_NAME[name])
        elif name:
            raise UsageError(
                f"cannot diagnose under configuration {name!r}: expected one of {', '.join(sorted(BY_NAME))}, "
                "or 'default', 'quick' or 'all'; in Python, pass a Configuration object for your own"
            )
    return found
