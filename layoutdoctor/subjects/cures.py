"""The cures: changes of a model that may make it faster, by public functions of torch. Proposes and applies them."""

from __future__ import annotations

import itertools
import json
import math
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import nn

from layoutdoctor.diagnosis import Configuration, Failure, FxNode, Graph, Layout, Size
from layoutdoctor.diagnosis.layout import CHANNELS_LAST_BY_RANK
from layoutdoctor.diagnosis.subject import Cure, Mode
from layoutdoctor.errors import UsageError
from layoutdoctor.examination.graphs.buffers import is_only_channels_last, is_only_contiguous
from layoutdoctor.examination.graphs.layout_agnostic import base_name, strided_norms
from layoutdoctor.examination.graphs.products import LEAST_WORK_SHARE, convolved, is_matrix_product, share_of
from layoutdoctor.subjects.copies import CHANNELS_LAST, layout_of_tensor
from layoutdoctor.words import distinct, line_words, listing
from layoutdoctor.workers.messages import Proposal

if TYPE_CHECKING:
    from layoutdoctor.units import Bytes

_COPIED_BYTES = 8
"""Bytes moved per element of a float32 copy, read and written: an estimate that decides the order of trials."""

_LONGEST_TEXT = 90
_LINES_NAMED = 3
_IN_ALL_RANKS = {"format": "torch.channels_last if output.dim() == 4 else torch.channels_last_3d", "edit": ""}
"""Texts for ``{format}`` and ``{edit}`` in lines that are run: they fit all ranks. Pasted lines fit one rank."""


@dataclass(frozen=True)
class Seen:
    """
    The facts of a trial from which cures are proposed.

    Attributes:
        graphs: Recorded graphs, not yet examined; empty if the trial failed before a graph was recorded.
        failure: Reason why the trial has no result; None if it ran.
    """

    module: nn.Module
    graphs: Sequence[Graph]
    mode: Mode
    failure: Failure | None = None


@dataclass(frozen=True)
class KnownCure:
    """
    A kind of change of a model, with the function that proposes it.

    Attributes:
        propose: Function that returns the change for the model of a trial; None if the trial gives no reason for it.
        how: Python lines that change ``model``. They are run, and a user can paste them. ``{modules}`` and other words
            in braces are filled in. The parameters keep their names.
        answers: Code of the finding that the cure answers.
    """

    name: str
    propose: Callable[[Seen], Proposal | None]
    how: str
    answers: str

    def proposal(
        self, modules: Iterable[str] = (), bytes_moved: Bytes = 0, *, dtype: str | None = None, **words: str
    ) -> Proposal:
        """Proposes the cure for some modules, with the bytes that it may save."""
        names = tuple(modules)
        how = _filled(self.how, modules=_names_as_text(names), dtype=dtype or "", **words)
        cure = Cure(name=self.name, answers=self.answers, modules=names, dtype=dtype, how=how)
        return Proposal(cure=cure, bytes_moved=bytes_moved)

    def apply(self, module: nn.Module, cure: Cure) -> None:
        """Changes a model in place by ``how``. The lines in ``cure`` are not run: a saved record is not trusted."""
        dtype = "float16" if cure.dtype == "float16" else "bfloat16"
        lines = _filled(self.how, modules=_names_as_text(cure.modules), dtype=dtype, **_IN_ALL_RANKS)
        exec(compile(lines, __file__, "exec"), {"torch": torch, "model": module})


def propose(seen: Seen) -> tuple[Proposal, ...]:
    """Proposes the cures for which a trial of the model gives a reason; after a failure, only ``VIEW_AS_RESHAPE``."""
    able = ALL_CURES if seen.failure is None else (VIEW_AS_RESHAPE,)
    return tuple(proposal for cure in able if (proposal := cure.propose(seen)) is not None)


def apply_cures(module: nn.Module, configuration: Configuration) -> None:
    """
    Applies a configuration's cures to a model, in place.

    Raises:
        UsageError: A cure is not known, or the model lacks a module that the cure changes.
    """
    by_name = {cure.name: cure for cure in ALL_CURES}
    for cure in configuration.cures:
        if cure.name not in by_name:
            raise UsageError(
                f"cannot apply the cure {cure.name!r} of {configuration.name!r}: expected one of "
                f"{', '.join(sorted(by_name))}; it may be of a newer layoutdoctor"
            )
        missing = sorted(set(cure.modules) - {name for name, _ in module.named_modules()})
        if missing:
            raise UsageError(
                f"cannot apply {configuration.name!r} to {type(module).__name__}: it has no module {missing[0]!r}; "
                "give the model that was diagnosed"
            )
        by_name[cure.name].apply(module, cure)


def _filled(lines: str, **words: str) -> str:
    for word, value in words.items():
        lines = lines.replace(f"{{{word}}}", value)
    return lines


def _names_as_text(names: Sequence[str]) -> str:
    """Writes names of modules as a Python tuple, on one line if it is short, else with one name per line."""
    quoted = [json.dumps(name) for name in names]
    text = f"({', '.join(quoted)}{',' if len(quoted) == 1 else ''})"
    return text if len(text) <= _LONGEST_TEXT else "(\n" + "".join(f"    {name},\n" for name in quoted) + ")"


def _copied_bytes(layouts: Iterable[Layout | None]) -> Bytes:
    """Estimates the bytes that copies of tensors move; a tensor of unknown sizes counts as 0 bytes."""
    shapes = (layout.shape for layout in layouts if layout is not None)
    return _COPIED_BYTES * sum(math.prod(size if isinstance(size, int) else 0 for size in shape) for shape in shapes)


def _with_first_inputs(seen: Seen) -> Iterator[tuple[FxNode, FxNode]]:
    """Yields the nodes of all graphs that read other nodes, each with the first node that it reads."""
    for graph in seen.graphs:
        nodes = {node.name: node for node in graph.nodes}
        yield from ((node, nodes[node.inputs[0]]) for node in graph.nodes if node.inputs and node.inputs[0] in nodes)


# ------------------------------------------------------- a Conv3d with kernel depth 1 becomes a Conv2d on every frame
def _runs_as(module: nn.Module, kinds: tuple[type[nn.Module], ...]) -> bool:
    """Whether a module computes what its class of torch computes: no subclass or instance replaces its forward."""
    base = next((kind for kind in kinds if isinstance(module, kind)), None)
    between = itertools.takewhile(lambda kind: kind is not base, type(module).__mro__)
    own = {name for kind in between for name in vars(kind)} | vars(module).keys()
    return base is not None and own.isdisjoint(("forward", "_conv_forward", "__call__"))


def _is_flat(module: nn.Module) -> bool:
    """Whether a module is a Conv3d that mixes no frames; False for a matrix product, which ``MATRIX_PRODUCT`` cures."""
    if not isinstance(module, nn.Conv3d) or not _runs_as(module, (nn.Conv3d,)):
        return False
    # The names "same" and "valid" pad no depth if the kernel has depth 1; the cure supports them only with zeros.
    is_named = isinstance(module.padding, str)
    is_kept = module.padding_mode == "zeros" if is_named else module.padding[0] == 0
    return module.kernel_size[0] == 1 and is_kept and module.kernel_size not in ((1, 1, 1), module.stride)


def _propose_flat_conv3d(seen: Seen) -> Proposal | None:
    flat = {name: module for name, module in seen.module.named_modules() if _is_flat(module)}
    results = (
        node.layout
        for graph in seen.graphs
        for node in graph.nodes
        if (node.module or "") in flat and "convolution" in node.target
    )
    return FLAT_CONV3D.proposal(flat, _copied_bytes(results)) if flat else None


FLAT_CONV3D = KnownCure(
    "flat-conv3d",
    _propose_flat_conv3d,
    """\
for name in {modules}:
    conv = model.get_submodule(name)
    class FlatConv3d(type(conv)):
        def forward(self, x):
            if x.dim() != 5:
                return super().forward(x)
            video = x[:, :, :: self.stride[0]].transpose(1, 2)
            frames, padding = video.flatten(0, 1), self.padding
            if not isinstance(padding, str):
                padding = padding[1:]
            if self.padding_mode != "zeros":
                sides = [side for side in reversed(padding) for _ in range(2)]
                frames, padding = torch.nn.functional.pad(frames, sides, self.padding_mode), 0
            settings = self.stride[1:], padding, self.dilation[1:], self.groups
            frames = torch.nn.functional.conv2d(frames, self.weight.squeeze(2), self.bias, *settings)
            return frames.unflatten(0, video.shape[:2]).transpose(1, 2)
    conv.__class__ = FlatConv3d""",
    "LD503",
)


# ------------------------------------------------------- a convolution whose patches do not overlap becomes F.linear
def _is_product(module: nn.Module, image: Sequence[Size]) -> bool:
    if not isinstance(module, _PLAIN_CONVOLUTIONS) or not _runs_as(module, _PLAIN_CONVOLUTIONS) or module.groups != 1:
        return False
    padding, kernel = module.padding, module.kernel_size
    if isinstance(padding, str):
        padding = (0,) if padding == "valid" or set(kernel) == {1} else (1,)
    return is_matrix_product(kernel, module.stride, padding, module.dilation, image)


def _propose_matrix_product(seen: Seen) -> Proposal | None:
    modules = dict(seen.module.named_modules())
    inputs: dict[str, list[Layout]] = {}
    for node, source in itertools.chain.from_iterable(map(convolved, seen.graphs)):
        if source.layout is not None and (node.module or "") in modules:
            inputs.setdefault(node.module or "", []).append(source.layout)
    found = {
        name: layouts
        for name, layouts in inputs.items()
        if all(_is_product(modules[name], layout.shape[2:]) for layout in layouts)
    }
    if share_of(seen.graphs, lambda node: (node.module or "") in found) < LEAST_WORK_SHARE:
        return None
    return MATRIX_PRODUCT.proposal(found, _copied_bytes(itertools.chain.from_iterable(found.values())))


_PLAIN_CONVOLUTIONS = (nn.Conv1d, nn.Conv2d, nn.Conv3d)
MATRIX_PRODUCT = KnownCure(
    "matrix-product",
    _propose_matrix_product,
    """\
for name in {modules}:
    conv = model.get_submodule(name)
    class MatrixProduct(type(conv)):
        def forward(self, x):
            kernel, image, weight = self.kernel_size, tuple(x.shape[2:]), self.weight
            if len(kernel) != len(image) or kernel not in (image, self.stride):
                return super().forward(x)
            if any(size % part for size, part in zip(image, kernel)):
                return super().forward(x)
            cut = [n for size, part in zip(image, kernel) for n in (size // part, part)]
            x = x.reshape(*x.shape[:2], *cut)
            grid, patch = range(2, x.dim(), 2), (1, *range(3, x.dim(), 2))
            if not weight.is_contiguous():  # channels_last
                patch, weight = (*patch[1:], 1), weight.movedim(1, -1)
            patches = x.permute(0, *grid, *patch).flatten(len(kernel) + 1)
            return torch.nn.functional.linear(patches, weight.flatten(1), self.bias).movedim(-1, 1)
    conv.__class__ = MatrixProduct""",
    "LD508",
)

# ------------------------------------------- weights held in the dtype that autocast casts them to on every call
_CASTS = frozenset({"_to_copy", "to", "convert_element_type"})
_CONVOLUTIONS = (*_PLAIN_CONVOLUTIONS, nn.ConvTranspose1d, nn.ConvTranspose2d, nn.ConvTranspose3d)
_NORMS = {nn.InstanceNorm2d: 4, nn.InstanceNorm3d: 5}
"""Norms whose result is contiguous for any input, with the rank of their input."""
_CAST_BY_AUTOCAST = (*_CONVOLUTIONS, nn.Linear)


def _is_cast_of_weight(node: FxNode, source: FxNode) -> bool:
    """Whether a node casts a float32 weight to bfloat16 or float16."""
    if source.op != "placeholder" or source.tensor != "weight" or source.dtype != "float32" or node.backward:
        return False
    return base_name(node.target) in _CASTS and node.dtype in ("bfloat16", "float16")


def _propose_autocast_dtype(seen: Seen) -> Proposal | None:
    """Proposes ``AUTOCAST_DTYPE`` in inference only: with autocast, training keeps float32 weights on purpose."""
    if seen.mode == "training":
        return None
    modules = dict(seen.module.named_modules())
    casts = (node for node, source in _with_first_inputs(seen) if _is_cast_of_weight(node, source))
    found = [cast for cast in casts if type(modules.get(cast.module or "")) in _CAST_BY_AUTOCAST]
    if not found:
        return None
    dtype = Counter(cast.dtype for cast in found).most_common(1)[0][0]
    found = [cast for cast in found if cast.dtype == dtype]
    names = dict.fromkeys(cast.module or "" for cast in found)
    return AUTOCAST_DTYPE.proposal(names, _copied_bytes(cast.layout for cast in found), dtype=dtype)


AUTOCAST_DTYPE = KnownCure(
    "autocast-dtype",
    _propose_autocast_dtype,
    """\
for name in {modules}:
    model.get_submodule(name).to(torch.{dtype})  # autocast would cast it on every call""",
    "LD106",
)

# ------------------------------ a contiguous input for a batch norm whose input has other strides
_BATCH_NORMS = (nn.BatchNorm2d, nn.BatchNorm3d, nn.SyncBatchNorm)


def _propose_dense_batch_norm(seen: Seen) -> Proposal | None:
    """
    Proposes contiguous inputs for batch norms: the layout of the input decides which kernel a batch norm runs.

    An input made by a matrix product and a transpose is channels-last, or in no memory format.
    """
    if any("contiguous_format" not in layout_of_tensor(tensor).memory_formats for tensor in seen.module.parameters()):
        return None  # the model is channels-last, or mixes memory formats on purpose
    modules = dict(seen.module.named_modules())
    found = {
        strided.norm.module or "": strided.layout
        for graph in seen.graphs
        for strided in (*strided_norms(graph), *strided_norms(graph, taken_apart=True))
        if isinstance(modules.get(strided.norm.module or ""), _BATCH_NORMS)
    }
    return DENSE_BATCH_NORM.proposal(found, _copied_bytes(found.values())) if found else None


DENSE_BATCH_NORM = KnownCure(
    "dense-batch-norm-input",
    _propose_dense_batch_norm,
    """\
def dense(module, inputs):
    return (inputs[0].contiguous(), *inputs[1:])
for name in {modules}:
    model.get_submodule(name).register_forward_pre_hook(dense)""",
    "LD302",
)


# ------------------- channels-last is restored once after the module that lost it, not in each later module
def _losses(graph: Graph, leaves: set[str]) -> Iterator[tuple[str, Layout]]:
    """
    Yields each module that loses channels-last, with the layout of its contiguous result.

    Only modules in ``leaves`` count, and only results that other modules use and the module itself does not. The
    module has a channels-last input. A convolution's input may also satisfy both formats, and its graph has
    channels-last weights: a CPU runs some small convolutions of one image in ATen, which loses channels-last.

    Args:
        leaves: Names of the modules without submodules.
    """
    nodes = {node.name: node for node in graph.nodes}
    is_last = any(node.tensor == "weight" and is_only_channels_last(node.layout) for node in graph.nodes)
    read_by: dict[str, set[str | None]] = {}
    for node in graph.nodes:
        for name in node.inputs:
            read_by.setdefault(name, set()).add(node.module)
    for node in graph.nodes:
        if node.op != "call_function" or node.backward or node.module not in leaves:
            continue
        readers = read_by.get(node.name, set())
        is_handed_on = readers and node.module not in readers
        if not is_handed_on or node.layout is None or not is_only_contiguous(node.layout):
            continue
        if "convolution" in node.target:
            first = nodes[node.inputs[0]].layout if node.inputs[0] in nodes else None
            is_lost = (
                is_last and first is not None and CHANNELS_LAST_BY_RANK.get(len(first.shape)) in first.memory_formats
            )
        else:
            is_lost = any(is_only_channels_last(given.layout) for given in _given(node, nodes))
        if is_lost:
            yield node.module, node.layout


def _given(node: FxNode, nodes: Mapping[str, FxNode]) -> Iterator[FxNode]:
    """Yields the nodes outside a node's module that the module reads to compute the node."""
    seen, front = {node.name}, [node]
    while front:
        for source in (nodes[name] for name in front.pop().inputs if name in nodes and name not in seen):
            seen.add(source.name)
            if source.module == node.module and source.op == "call_function":
                front.append(source)
            else:
                yield source


def _propose_restored_format(seen: Seen) -> Proposal | None:
    modules = {name: module for name, module in seen.module.named_modules() if name and not list(module.children())}
    found: dict[str, Layout | None] = dict(loss for graph in seen.graphs for loss in _losses(graph, set(modules)))
    # The norms after such a convolution had contiguous inputs in this trial, so ``_losses`` did not find them.
    if any(isinstance(modules[name], _CONVOLUTIONS) for name in found):
        found |= {name: None for name, module in modules.items() if type(module) in _NORMS and name not in found}
    ranks = {len(layout.shape) for layout in found.values() if layout is not None}
    if len(ranks) != 1:
        return None
    return RESTORED_FORMAT.proposal(found, _copied_bytes(found.values()), format=str(CHANNELS_LAST[ranks.pop()]))


RESTORED_FORMAT = KnownCure(
    "restored-format",
    _propose_restored_format,
    """\
def restored(module, inputs, output):
    return output.contiguous(memory_format={format})
for name in {modules}:
    model.get_submodule(name).register_forward_hook(restored)""",
    "LD104",
)

# ------------------------- calls in the model's own code that are replaced, as an edit of the code would do
# A TorchFunctionMode is active in the model's forward; torch.compile traces through it. In eager mode, the
# TorchFunctionMode itself takes time, so an edit saves a little more time than was measured.
_CALL = """\
class {mode}(torch.overrides.TorchFunctionMode):
    def __torch_function__(self, function, types, args=(), kwargs=None):
        if {condition}:
            return {answer}
        return function(*args, **(kwargs or {}))
forward = model.forward
def call(*args, **kwargs):
    with {mode}():
        return forward(*args, **kwargs)
model.forward = call  # or {edit}"""

_COPIES = frozenset({"clone", "contiguous", "_to_copy"})


def _is_call_of_contiguous(node: FxNode) -> bool:
    """Whether a node is a call of ``contiguous`` in the model's code."""
    if base_name(node.target) not in _COPIES or node.backward or not node.is_called_directly:
        return False
    code = node.location.code if node.location is not None else None
    return node.called == "contiguous" or (node.called is None and ".contiguous()" in (code or ""))


def _propose_without_contiguous(seen: Seen) -> Proposal | None:
    found = [
        node
        for node, source in _with_first_inputs(seen)
        if is_only_channels_last(source.layout)
        and not is_only_channels_last(node.layout)
        and _is_call_of_contiguous(node)
    ]
    if not found:
        return None
    lines = _lines_of(found)
    return WITHOUT_CONTIGUOUS.proposal(
        bytes_moved=_copied_bytes(node.layout for node in found),
        edit=f"take .contiguous() out at {', '.join(lines)}" if lines else "take .contiguous() out",
    )


def _lines_of(nodes: Iterable[FxNode]) -> list[str]:
    places = [node.location for node in nodes if node.location is not None]
    return distinct(map(line_words, places))


def _propose_view_as_reshape(seen: Seen) -> Proposal | None:
    """Proposes ``VIEW_AS_RESHAPE`` for a trial that failed because of a view."""
    if seen.failure is None or seen.failure.cause != "refused_view":
        return None
    return VIEW_AS_RESHAPE.proposal(edit="write .reshape where .view fails")


WITHOUT_CONTIGUOUS = KnownCure(
    "without-contiguous",
    _propose_without_contiguous,
    _filled(
        _CALL,
        mode="WithoutContiguous",
        condition="function is torch.Tensor.contiguous and len(args) == 1 and not kwargs",
        answer="args[0]",
    ),
    "LD501",
)
VIEW_AS_RESHAPE = KnownCure(
    "view-as-reshape",
    _propose_view_as_reshape,
    _filled(
        _CALL,
        mode="ViewAsReshape",
        condition="function is torch.Tensor.view and not kwargs and not isinstance(args[1], torch.dtype)",
        answer="args[0].reshape(*args[1:])",
    ),
    "LD507",
)


# ------------------------------------------ operations that lose channels-last: a cat of both formats, an instance norm
def _mixed_cats(seen: Seen) -> Iterator[FxNode]:
    """Yields every cat with a contiguous result and some channels-last inputs, such as a cat of frames and padding."""
    for graph in seen.graphs:
        nodes = {node.name: node for node in graph.nodes}
        for node in graph.nodes:
            if base_name(node.target) != "cat" or node.backward or not is_only_contiguous(node.layout):
                continue
            given = [nodes[name].layout for name in node.inputs if name in nodes]
            if any(map(is_only_channels_last, given)) and not all(map(is_only_channels_last, given)):
                yield node


def _propose_channels_last_cat(seen: Seen) -> Proposal | None:
    found = list(_mixed_cats(seen))
    ranks = {len(node.layout.shape) for node in found if node.layout is not None}
    if len(ranks) != 1:
        return None
    wanted = str(CHANNELS_LAST[ranks.pop()])
    lines = listing(_lines_of(found), _LINES_NAMED)
    edit = f"give each input of the cat .contiguous(memory_format={wanted})" + (f": {lines}" if lines else "")
    moved = _copied_bytes(node.layout for node in found)
    modules = distinct(node.module for node in found if node.module is not None)
    return CHANNELS_LAST_CAT.proposal(modules, moved, format=wanted, edit=edit)


CHANNELS_LAST_CAT = KnownCure(
    "channels-last-cat",
    _propose_channels_last_cat,
    _filled(
        _CALL,
        mode="ChannelsLastCat",
        condition="function in (torch.cat, torch.concat, torch.concatenate) and any(\n"
        "            output.dim() in (4, 5) and output.stride(1) == 1 for output in args[0]\n        )",
        answer="function(\n                [output.contiguous(memory_format={format}) for output in args[0]],\n"
        "                *args[1:], **(kwargs or {})\n            )",
    ),
    "LD104",
)


def _propose_grouped_norm(seen: Seen) -> Proposal | None:
    """Proposes a group norm with one channel per group, which equals an instance norm and keeps channels-last."""
    norms = {
        name: _NORMS[type(module)]
        for name, module in seen.module.named_modules()
        if type(module) in _NORMS and not getattr(module, "track_running_stats", True)
    }
    found = dict(
        loss for graph in seen.graphs for loss in _losses(graph, set(norms)) if len(loss[1].shape) == norms[loss[0]]
    )
    return GROUPED_NORM.proposal(found, 2 * _copied_bytes(found.values())) if found else None


GROUPED_NORM = KnownCure(
    "grouped-instance-norm",
    _propose_grouped_norm,
    """\
class GroupedInstanceNorm(torch.nn.InstanceNorm3d):
    def forward(self, x):
        return torch.nn.functional.group_norm(x, x.shape[1], self.weight, self.bias, self.eps)
for name in {modules}:
    model.get_submodule(name).__class__ = GroupedInstanceNorm""",
    "LD104",
)

ALL_CURES = (
    FLAT_CONV3D,
    MATRIX_PRODUCT,
    AUTOCAST_DTYPE,
    DENSE_BATCH_NORM,
    WITHOUT_CONTIGUOUS,
    RESTORED_FORMAT,
    CHANNELS_LAST_CAT,
    GROUPED_NORM,
    VIEW_AS_RESHAPE,
)
