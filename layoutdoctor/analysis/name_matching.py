"""
Which kernel of one run is which kernel of another: the same name, or the same name but for what changes with versions.

Faces ``trace_comparison``; needs names only.
"""

from __future__ import annotations

import re
from collections import defaultdict
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable

    from layoutdoctor.comparison_records import Match

# Inductor numbers its kernels through the graph: take one away, and all later ones of its kind are called otherwise.
_NUMBERED = re.compile(r"^((?:triton|cpp)_[A-Za-z_]\w*?)_\d+(?:d[\dce]*)?$")
# cuDNN 8 calls these cudnn::ops, cuDNN 9 cudnn::engines_precompiled, cuDNN 7 has them without a namespace.
_CUDNN_NAMESPACE = re.compile(r"\bcudnn::(?:ops|engines_precompiled)::")
# One library builds the same kernel once per generation of GPU, and says so at the beginning of its name.
_GENERATION = re.compile(r"^(?:maxwell|pascal|volta|turing|ampere|ada|hopper|blackwell|sm\d+)_")
_CUTLASS_GENERATION = re.compile(r"^cutlass_?\d*x?(?:_\w+?)?::")
# The kernel that ATen's elementwise_kernel and the like were made from stands in the template arguments.
_INNER_KERNEL = re.compile(r"\b\w*(?:_kernel_cuda|_kernel_impl|Functor\w*|_functor\w*|Ops)\b")
_GENERIC_INNER_KERNELS = frozenset({"gpu_kernel_impl", "gpu_kernel_impl_nocast"})
_WRAPPERS = frozenset({"Kernel", "Kernel2", "kernel"})
_ANONYMOUS = re.compile(r"\((?:anonymous namespace|anonymous)\)::|<unnamed>::")
_CUT = re.compile(r"(?:\.\.\.|\u2026)$")


@dataclass(frozen=True, slots=True)
class NameMatch:
    """
    Names of two runs that belong together.

    Attributes:
        name: What to call them.
        match: ``exact`` or ``loose``; None where they stand in one run only.
        old_names: Names in the old run.
        new_names: Names in the new run.
    """

    name: str
    match: Match | None
    old_names: tuple[str, ...]
    new_names: tuple[str, ...]


def match_kernel_names(old: Collection[str], new: Collection[str]) -> tuple[NameMatch, ...]:
    """
    The kernels of two runs by name: equal names first, then what is left by ``loose_name``.

    Args:
        old: Names of kernels, each once.
        new: The same of the other run.

    Returns:
        Every name of both exactly once. Numbered kernels of Inductor are matched by their own name only where the runs
        have the same numbers of that kind, as a kernel that goes shifts the numbers of all later ones.
    """
    shifted = _shifted_kinds(old, new)
    exact = {name for name in set(old) & set(new) if _kind_of(name) not in shifted}
    matches = [NameMatch(name, "exact", (name,), (name,)) for name in old if name in exact]
    old_left, new_left = _by_loose_name(old, exact), _by_loose_name(new, exact)
    for loose in dict.fromkeys((*old_left, *new_left)):
        before, after = tuple(old_left.get(loose, ())), tuple(new_left.get(loose, ()))
        if before and after:
            matches.append(NameMatch(loose, "loose", before, after))
        else:
            matches += [NameMatch(name, None, (name,), ()) for name in before]
            matches += [NameMatch(name, None, (), (name,)) for name in after]
    return tuple(matches)


def match_exact_names(old: Collection[str], new: Collection[str]) -> tuple[NameMatch, ...]:
    """
    The operations or modules of two runs, by equal names only.

    Args:
        old: Names, each once.
        new: The same of the other run.
    """
    both = set(old) & set(new)
    matches = [NameMatch(name, "exact", (name,), (name,)) for name in old if name in both]
    matches += [NameMatch(name, None, (name,), ()) for name in old if name not in both]
    matches += [NameMatch(name, None, (), (name,)) for name in new if name not in both]
    return tuple(matches)


def loose_name(name: str) -> str:
    """
    A kernel's name without what changes from version to version and from GPU to GPU.

    Args:
        name: As in a trace.

    Returns:
        Without ``void``, parameters and template arguments, cuDNN's inner namespace, the generation of GPU it was built
        for, and Inductor's number. What an elementwise kernel of ATen computes, and what a bare ``Kernel`` wraps, is
        kept, as it would be no name without. A name of which nothing would be left stays as it is.
    """
    numbered = _NUMBERED.match(name)
    if numbered is not None:
        return numbered.group(1)
    plain = _ANONYMOUS.sub("", _CUT.sub("", name)).strip().removeprefix("void ")
    outer, arguments = _split_template(_CUDNN_NAMESPACE.sub("", plain))
    outer = _CUTLASS_GENERATION.sub("cutlass::", outer.rpartition("::type ")[2])  # after a templated return type
    if outer.rpartition("::")[2] in _WRAPPERS and arguments:
        outer = f"{outer.rpartition('::')[0]}::{_split_template(arguments)[0]}".removeprefix("::")
    inner = dict.fromkeys(
        word for word in _INNER_KERNEL.findall(arguments) if word not in _GENERIC_INNER_KERNELS and word not in outer
    )
    shown = _GENERATION.sub("", outer)
    return " ".join((shown, *inner)) if shown else name


def _split_template(name: str) -> tuple[str, str]:
    """A name before its parameters, without what stands between ``<`` and ``>``; and what stood there last."""
    outer: list[str] = []
    arguments: list[str] = []
    depth = 0
    for position, character in enumerate(name):
        if character == "<":
            if not depth:
                arguments.clear()
            depth += 1
        elif character == ">" and depth and name[position - 1] != "-":
            depth -= 1
            if not depth:
                continue
        elif character == "(" and not depth:
            break
        if depth:
            arguments.append(character)
        else:
            outer.append(character)
    return "".join(outer).strip(), "".join(arguments)[1:].strip()


def _kind_of(name: str) -> str | None:
    """For a numbered kernel of Inductor: its name without the number; None for any other."""
    numbered = _NUMBERED.match(name)
    return numbered.group(1) if numbered is not None else None


def _shifted_kinds(old: Iterable[str], new: Iterable[str]) -> set[str]:
    """Kinds of numbered kernels of which the two runs have different numbers."""
    old_kinds, new_kinds = _names_by_kind(old), _names_by_kind(new)
    return {kind for kind in {*old_kinds, *new_kinds} if old_kinds.get(kind) != new_kinds.get(kind)}


def _names_by_kind(names: Iterable[str]) -> dict[str, set[str]]:
    kinds: dict[str, set[str]] = defaultdict(set)
    for name in names:
        kind = _kind_of(name)
        if kind is not None:
            kinds[kind].add(name)
    return kinds


def _by_loose_name(names: Iterable[str], left_out: Collection[str]) -> dict[str, list[str]]:
    groups: dict[str, list[str]] = defaultdict(list)
    for name in names:
        if name not in left_out:
            groups[loose_name(name)].append(name)
    return groups
