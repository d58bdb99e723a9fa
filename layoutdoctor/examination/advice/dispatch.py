"""
Makes lines to paste that choose the configuration for each call of a model.

The lines choose by the shapes of the call's tensors. If the diagnoses have different numbers of threads, the lines also
choose by this number. They make a copy of the model for each configuration that changes the model. Each shape is
compiled with its own sizes, as in its measurement. Other shapes run as in the baseline.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

import msgspec

from layoutdoctor.diagnosis import Configuration, Size
from layoutdoctor.examination.advice.applying import compile_words

if TYPE_CHECKING:
    Kind = tuple[int | None, tuple[tuple[Size, ...], ...]]
    """Number of threads, or None if all calls have the same number; and the shapes of all tensors."""

_MOST_COMPILED = 4
_FURTHER_COMPILED = 16
"""
Compiles that the recompile limit leaves for shapes that were not diagnosed. By default, torch compiles a function at
most eight times, counted over all copies of a model, and runs further shapes in eager mode.
"""

_FORMATS = {
    "channels_last": """\
def channels_last(value):  # with each 4-D and 5-D tensor in that format
    formats = {4: torch.channels_last, 5: torch.channels_last_3d}
    return tree_map_only(torch.Tensor, lambda t: t.to(memory_format=formats.get(t.dim(), torch.preserve_format)), value)
""",
    "contiguous": """\
def contiguous(value):  # with each 4-D and 5-D tensor in that format
    return tree_map_only(torch.Tensor, lambda t: t.contiguous() if t.dim() in (4, 5) else t, value)
""",
}
_BY_USE = """\
def by_use(uses, to, args, kwargs):  # the arguments with each tensor as it is read: images, frames of a clip, or other
    left = iter(uses)

    def one(t):
        use = next(left)
        if use == "frames":
            return to(t.flatten(0, 1)).unflatten(0, t.shape[:2])
        return to(t) if use == "images" else t

    return tree_map_only(torch.Tensor, one, (args, kwargs))
"""
_BY_SHAPE = """\
    def call(*args, **kwargs):
        shapes = tuple(tuple(t.shape) for t in tree_leaves((args, kwargs)) if isinstance(t, torch.Tensor))
        return chosen.get({key}, other)(*args, **kwargs)

    return call


model = by_shape(model)"""


def lines_by_shape(ways: Mapping[Kind, Configuration], baseline: Configuration, *, has_formats: bool) -> str:
    """
    Code that replaces ``model`` by a function that chooses a configuration by the shapes of its arguments.

    Args:
        ways: Configuration for each kind of call. Either all of them freeze the weights, or no configuration does. No
            configuration is compiled ahead of time.
        baseline: Configuration for every other call, on the unchanged model.
        has_formats: Whether the model has 4-D or 5-D weights, which a configuration gives a memory format.
    """
    used: list[Configuration] = []
    for way in ways.values():
        if way not in used:  # compared by value: cures of one name may change other modules
            used.append(way)
    asked = {one.input_format for one in used} | ({one.model_format for one in used} if has_formats else set())
    copied = [_changes_the_model(one, has_formats=has_formats) for one in used]
    compiled = sum(one.backend == "inductor" for one in ways.values())
    limit = compiled + _FURTHER_COMPILED if compiled > _MOST_COMPILED else 0
    by_threads = any(threads is not None for threads, _ in ways)
    parts = [
        "\n".join(_imports(used, is_copied=any(copied), is_mapped=not asked.isdisjoint(_FORMATS), limit=limit)),
        *(lines for name, lines in _FORMATS.items() if name in asked),
        *([_BY_USE] if any(map(_goes_by_use, used)) else []),
        *(_way(number, one, has_formats=has_formats) for number, one in enumerate(used, 1)),
    ]
    made = (f"way_{n}({'copy.deepcopy(model)' if is_copied else 'model'})" for n, is_copied in enumerate(copied, 1))
    kept = "  # the copies have weights of their own: if weights change, call it again" if any(copied) else ""
    chosen = [f"def by_shape(model):{kept}", f"    ways = [{', '.join(made)}]", "    chosen = {"]
    for (threads, shapes), one in ways.items():
        kind = f"({threads}, {shapes!r})" if by_threads else repr(shapes)
        chosen.append(f"        {kind}: ways[{used.index(one)}],")
    words = compile_words(baseline)
    other = f"torch.compile(model{', ' if words else ''}{words})" if baseline.backend == "inductor" else "model"
    key = "(torch.get_num_threads(), shapes)" if by_threads else "shapes"
    chosen += ["    }", f"    other = {other}  # shapes that were not diagnosed", "", _BY_SHAPE.format(key=key)]
    return "\n\n".join(f"{part.rstrip()}\n" for part in (*parts, "\n".join(chosen))).rstrip()


def _changes_the_model(configuration: Configuration, *, has_formats: bool) -> bool:
    has_format = has_formats and configuration.model_format in _FORMATS
    return has_format or bool(configuration.cures) or configuration.freezes


def _goes_by_use(configuration: Configuration) -> bool:
    """Whether the uses of the inputs matter: some input is kept as it is, or converted frame by frame."""
    return configuration.input_format in _FORMATS and not {"images"}.issuperset(configuration.input_uses)


def _imports(used: Sequence[Configuration], *, is_copied: bool, is_mapped: bool, limit: int) -> Iterator[str]:
    """The first lines; ``limit`` is the recompile limit to set, or 0 to leave it as it is."""
    if is_copied:
        yield from ("import copy", "")
    yield "import torch"
    if limit:
        yield "import torch._dynamo.config"
    if any(one.freezes for one in used):
        yield "import torch._inductor.config"
    yield f"from torch.utils._pytree import tree_leaves{', tree_map_only' if is_mapped else ''}"
    switches = {
        f"torch.backends.{name} = {value}": None for one in used for name, value in one.library_switches.items()
    }
    settings = [*switches, *([f"torch._dynamo.config.recompile_limit = {limit}"] if limit else [])]
    if settings:
        yield from ("", *settings)


def _way(number: int, configuration: Configuration, *, has_formats: bool) -> str:
    """Code of a function that applies a configuration to a model; the function may change this model."""
    body: list[str] = []
    model_format, input_format = configuration.model_format, configuration.input_format
    if has_formats and model_format in _FORMATS:
        body += [
            "for tensor in [*model.parameters(), *model.buffers()]:",
            f"    tensor.data = {model_format}(tensor.data)",
        ]
    body += [line for cure in configuration.cures for line in cure.how.splitlines()]
    if configuration.backend == "inductor":
        arguments = {"dynamic": False, **configuration.compile_arguments}
        words = compile_words(msgspec.structs.replace(configuration, compile_arguments=arguments))
        body += [*(["model.eval()"] if configuration.freezes else []), f"model = torch.compile(model, {words})"]
    call, first = "model(*args, **kwargs)", []
    if _goes_by_use(configuration):
        first = [f"    args, kwargs = by_use({configuration.input_uses!r}, {input_format}, args, kwargs)"]
    elif input_format in _FORMATS:
        call = f"model(*{input_format}(args), **{input_format}(kwargs))"
    if configuration.freezes or first:
        last = [f"    return {call}"]
        if configuration.freezes:
            last = ["    with torch.no_grad(), torch._inductor.config.patch(freezing=True):", *_indented(last)]
        body += ["", "def call(*args, **kwargs):", *first, *last, "", "return call"]
    else:
        body.append(f"return lambda *args, **kwargs: {call}" if input_format in _FORMATS else "return model")
    return "\n".join([f"def way_{number}(model):  # {configuration.name!r}", *_indented(body)]) + "\n"


def _indented(lines: Iterable[str]) -> list[str]:
    return [f"    {line}" if line else "" for line in lines]
