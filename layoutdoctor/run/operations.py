"""Watches the operations of the first eager run: whether layouts may matter, and how each input is used."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.weak import WeakIdKeyDictionary

from layoutdoctor.subjects.copies import input_tensors

if TYPE_CHECKING:
    from layoutdoctor.diagnosis.subject import InputUse

_IMAGE_RANK = 4
_CLIP_RANK = 5
_BY_LAYOUT = tuple(
    "batch_norm instance_norm group_norm pool upsample im2col col2im pixel_shuffle pixel_unshuffle grid_sampler".split()
)
"""Parts of the names of operations whose code depends on the memory format of images."""
_REORDER = ("permute", "transpose", "movedim", "swapaxes", "as_strided")
"""Parts of the names of operations that give dimensions another meaning."""


class Operations(TorchDispatchMode):
    """
    Watches operations: whether layouts may matter to any of them, and how they use the inputs.

    Attributes:
        may_convolve: Whether one of these ran: a convolution, an operation on images whose code depends on the memory
            format, or an operation outside ATen.
    """

    supports_higher_order_operators = True  # such as torch.cond, which is watched like any other operation

    @classmethod
    def ignore_compile_internals(cls) -> bool:
        """Whether operations may compile themselves in eager mode, as flex_attention does."""
        return True

    def __init__(self) -> None:
        super().__init__()
        self.may_convolve = False
        self._uses: list[InputUse] = []
        self._made_of: WeakIdKeyDictionary = WeakIdKeyDictionary()

    def watching(self, run: Callable[..., Any]) -> Callable[..., Any]:
        """Wraps a function so that a call records the use of each input tensor."""

        def call(*args: Any, **kwargs: Any) -> Any:
            inputs = input_tensors(args, kwargs)
            self._uses = ["other" for _ in inputs]
            for number, tensor in enumerate(inputs):
                if tensor.dim() >= _IMAGE_RANK:
                    numbers, _ = self._made_of.get(tensor, ((), None))
                    self._made_of[tensor] = ((*numbers, number), "images")
            with self:
                return run(*args, **kwargs)

        return call

    @property
    def uses(self) -> tuple[InputUse, ...]:
        """The use of each input tensor in the last call; empty before the first call."""
        return tuple(self._uses)

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Runs the operation unchanged, and notes its use of input tensors."""
        del types
        namespace, _, name = str(function).partition(".")
        first = args[0] if args and isinstance(args[0], torch.Tensor) else None
        is_own = namespace in ("aten", "prim", "prims")
        on_images = first is not None and first.dim() >= _IMAGE_RANK and any(word in name for word in _BY_LAYOUT)
        reads_images = on_images or "conv" in name
        self.may_convolve |= not is_own or reads_images
        result = function(*args, **(kwargs or {}))
        if not is_own:  # an operation outside ATen may read any of its tensors as images
            for tensor in pytree.tree_leaves((args, kwargs or {})):
                self._read(tensor)
        elif reads_images:
            self._read(first)
        elif not any(word in name for word in _REORDER):
            self._follow(args, result)
        return result

    def _read(self, tensor: object) -> None:
        """Notes that an operation reads a tensor as images, for each input whose images or frames the tensor holds."""
        if isinstance(tensor, torch.Tensor) and tensor in self._made_of:
            numbers, use = self._made_of[tensor]
            for number in numbers:
                if self._uses[number] != "images":
                    self._uses[number] = use

    def _follow(self, args: Any, result: Any) -> None:
        """Notes which results still hold the images or frames of an input."""
        given = [leaf for leaf in pytree.tree_leaves(args) if isinstance(leaf, torch.Tensor) and leaf in self._made_of]
        if not given:
            return
        for made in pytree.tree_leaves(result):
            for one in given if isinstance(made, torch.Tensor) else ():
                numbers, use = self._made_of[one]
                known, _ = self._made_of.get(made, ((), use))
                if not _are_images(one, made):
                    if not _are_frames(one, made):
                        continue
                    use = "frames"
                self._made_of[made] = (tuple(dict.fromkeys((*known, *numbers))), use)


def _are_images(images: torch.Tensor, made: torch.Tensor) -> bool:
    """Whether ``made`` can hold images of ``images``: the batch size, or else the size of an image, is unchanged."""
    same_batch, same_size = images.shape[:1] == made.shape[:1], images.shape[1:] == made.shape[1:]
    return images.dim() == made.dim() and (same_batch or same_size)


def _are_frames(clip: torch.Tensor, made: torch.Tensor) -> bool:
    """Whether ``made`` can hold frames of a clip ``[B, T, C, H, W]``: it is ``[N, C, H, W]``, N being B * T, B or T."""
    if clip.dim() != _CLIP_RANK or made.dim() != _IMAGE_RANK or clip.shape[2:] != made.shape[1:]:
        return False
    return made.shape[0] in (clip.shape[0] * clip.shape[1], clip.shape[0], clip.shape[1])
