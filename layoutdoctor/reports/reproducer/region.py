"""
The part of a long program around the worst finding: from the convolution before it to the one behind it.

Faces the reproducer.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from layoutdoctor.reports.reproducer.program import Program

if TYPE_CHECKING:
    from layoutdoctor.records import Finding
    from layoutdoctor.reports.reproducer.program import Operation

_CONVOLUTION = "aten.convolution.default"
_AROUND = 4
"""Operations to keep on each side where there is no convolution."""


def region_of(program: Program, finding: Finding | None) -> tuple[int, int]:
    """
    The operations around a finding, the convolutions on both sides included.

    Args:
        program: The whole program.
        finding: What is to be shown; None shows the first convolutions.

    Returns:
        Numbers of the first and the last operation, both included.
    """
    operations = program.operations
    convolutions = [number for number, operation in enumerate(operations) if operation.target == _CONVOLUTION]
    center = next((number for number, operation in enumerate(operations) if _is_at(operation, finding)), None)
    if center is None:
        center = convolutions[0] if convolutions else 0
    if not convolutions:
        return max(0, center - _AROUND), min(len(operations) - 1, center + _AROUND)
    before = [number for number in convolutions if number < center] or convolutions[:1]
    behind = [number for number in convolutions if number > center] or convolutions[-1:]
    return min(before[-1], center), max(behind[0], center)


def _is_at(operation: Operation, finding: Finding | None) -> bool:
    if finding is None:
        return False
    if finding.module is not None:
        return operation.node.module == finding.module
    return finding.location is not None and operation.node.location == finding.location


def cut(program: Program, first: int, last: int) -> tuple[Program, frozenset[str]]:
    """
    A part of a program; what it reads of the rest becomes placeholders of the layouts that were recorded.

    Args:
        program: The whole program.
        first: Number of the first operation to keep.
        last: Number of the last one.

    Returns:
        The part, and the names of its new placeholders.
    """
    kept = program.operations[first : last + 1]
    made = {operation.name for operation in kept}
    read = [name for operation in kept for name in operation.inputs if name not in made]
    nodes = {operation.name: operation.node for operation in program.operations}
    new = frozenset(name for name in read if name not in program.placeholders)
    placeholders = {
        name: program.placeholders[name]
        if name in program.placeholders
        else msgspec.structs.replace(nodes[name], op="placeholder", tensor="activation")
        for name in dict.fromkeys(read)
    }
    needed = {name for operation in program.operations[last + 1 :] for name in operation.inputs} | set(program.outputs)
    outputs = tuple(operation.name for operation in kept if operation.name in needed)
    return Program(kept, placeholders, outputs or (kept[-1].name,)), new
