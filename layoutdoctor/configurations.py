"""
The built-in configurations, as data, and how names on a command line become configurations.

Faces doctor and the command line; imports records and errors only.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from layoutdoctor.errors import UnknownConfigurationError, UsageError
from layoutdoctor.records import Configuration

if TYPE_CHECKING:
    from collections.abc import Iterable

    from layoutdoctor.records import Mode

BASELINE = "inductor"
"""The configuration that ratios refer to: torch.compile as torch ships it."""

DEFAULT_CONFIGURATIONS = (
    Configuration(name="eager", backend="eager"),
    Configuration(
        name="eager-channels-last", backend="eager", model_format="channels_last", input_format="channels_last"
    ),
    Configuration(name=BASELINE, backend="inductor", layout_optimization="default"),
    Configuration(name="inductor-layout-opt-off", backend="inductor", layout_optimization="off"),
    Configuration(name="inductor-layout-opt-on", backend="inductor", layout_optimization="on"),
    Configuration(
        name="inductor-channels-last",
        backend="inductor",
        layout_optimization="default",
        model_format="channels_last",
        input_format="channels_last",
    ),
    Configuration(
        name="inductor-channels-last-opt-off",
        backend="inductor",
        layout_optimization="off",
        model_format="channels_last",
        input_format="channels_last",
    ),
)

EXTRA_CONFIGURATIONS = (
    Configuration(name="inductor-layout-opt-forced", backend="inductor", layout_optimization="forced"),
    Configuration(
        name="inductor-freezing", backend="inductor", layout_optimization="default", inductor_options={"freezing": True}
    ),
)

BUILTIN_CONFIGURATIONS = DEFAULT_CONFIGURATIONS + EXTRA_CONFIGURATIONS


def choose_configurations(
    choice: str | Configuration | Iterable[str | Configuration], mode: Mode = "inference"
) -> tuple[Configuration, ...]:
    """
    The configurations a user asked for.

    Args:
        choice: ``"default"``, ``"all"``, one name, names separated by commas, a Configuration, or several of these.
        mode: Freezing is for inference only, so ``"all"`` leaves it out in training.

    Raises:
        UnknownConfigurationError: A name is not built in.
        UsageError: Nothing is left, or one name stands for two different configurations.
    """
    chosen: dict[str, Configuration] = {}
    for configuration in _expand(choice, mode):
        known = chosen.setdefault(configuration.name, configuration)
        if known != configuration:
            raise UsageError(
                f"cannot use two different configurations under the name {configuration.name!r}; give each its own name"
            )
    if not chosen:
        raise UsageError("cannot diagnose without a configuration: got an empty list, expected at least one name")
    return tuple(chosen.values())


def _expand(choice: str | Configuration | Iterable[str | Configuration], mode: Mode) -> list[Configuration]:
    if isinstance(choice, Configuration):
        return [choice]
    if not isinstance(choice, str):
        return [configuration for part in choice for configuration in _expand(part, mode)]
    by_name = {configuration.name: configuration for configuration in BUILTIN_CONFIGURATIONS}
    found: list[Configuration] = []
    for name in (part.strip() for part in choice.split(",")):
        if not name:
            continue
        if name == "default":
            found += DEFAULT_CONFIGURATIONS
        elif name == "all":
            found += [
                c for c in BUILTIN_CONFIGURATIONS if mode == "inference" or not c.inductor_options.get("freezing")
            ]
        elif name in by_name:
            found.append(by_name[name])
        else:
            raise UnknownConfigurationError(name, by_name)
    return found
