"""
What of a subject must be the same in another process, and the program that finds it out there.

``python transport_facts.py DIRECTORY...`` rebuilds the subject in each and writes its facts beside it.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import nn
from torch.utils import _pytree as pytree

from layoutdoctor.subjects.transport import load_subject

if TYPE_CHECKING:
    from layoutdoctor.subjects.subject import LoadedSubject

FACTS_FILE = "facts.pt"


def facts(subject: LoadedSubject) -> dict[str, Any]:
    """Everything about a subject that can be compared, its outputs last: a call may change it."""
    model = subject.model
    tensors: dict[str, torch.Tensor] = {}
    if isinstance(model, nn.Module):
        tensors.update(model.named_parameters(remove_duplicate=False))
        tensors.update(model.named_buffers(remove_duplicate=False))
    for number, leaf in enumerate(pytree.tree_leaves((subject.args, subject.kwargs))):
        if isinstance(leaf, torch.Tensor):
            tensors[f"input {number}"] = leaf
    found = {
        "names": (subject.name, subject.notes, subject.source, sorted(subject.kwargs)),
        "tensors": {name: _describe(tensor) for name, tensor in tensors.items()},
        "same objects": _groups(id(tensor) for tensor in tensors.values()),
        "same memory": _groups(tensor.untyped_storage()._cdata for tensor in tensors.values()),
        "classes": type(model).__qualname__,
    }
    if isinstance(model, nn.Module):
        found["modes"] = [(name, module.training) for name, module in model.named_modules()]
        found["hooks"] = [(len(m._forward_hooks), len(m._forward_pre_hooks)) for m in model.modules()]
    torch.manual_seed(3)
    with torch.no_grad():
        found["outputs"] = [_plain(leaf) for leaf in pytree.tree_leaves(model(*subject.args, **subject.kwargs))]
    return found


def _describe(tensor: torch.Tensor) -> dict[str, Any]:
    return {
        "type": type(tensor).__name__,
        "dtype": str(tensor.dtype),
        "device": str(tensor.device),
        "shape": tuple(tensor.shape),
        "strides": (tensor.stride(), tensor.storage_offset(), tensor.is_conj()),
        "requires_grad": tensor.requires_grad,
        "is_leaf": tensor.is_leaf,
        "grad": tensor.grad is not None,
        "marks": sorted(f"{name}={value}" for name, value in vars(tensor).items() if name.startswith("_dynamo")),
        "values": _plain(tensor),
    }


def _plain(leaf: Any) -> Any:
    """A value that can be written and compared: a tensor's bytes, in the order of its elements."""
    if not isinstance(leaf, torch.Tensor):
        return repr(leaf)
    values = leaf.detach()
    values = values.resolve_conj().contiguous().clone()
    return values.view(torch.uint8) if values.dim() and values.element_size() and not values.is_complex() else values


def _groups(keys: Any) -> list[int]:
    """Each key as the number of its first occurrence."""
    first: dict[Any, int] = {}
    return [first.setdefault(key, len(first)) for key in keys]


def main(directories: list[str]) -> None:
    """Rebuilds and examines the subject of each directory."""
    for name in directories:
        directory = Path(name)
        subject = load_subject(directory)
        for path in directory.iterdir():
            path.unlink()  # a subject does not need its files once it is loaded
        torch.save(facts(subject), directory / FACTS_FILE)


if __name__ == "__main__":
    main(sys.argv[1:])
