"""What a model reads each of its inputs as, and the memory format that an input gets for it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec
import pytest
import torch
from torch import nn
from torch.nn import functional

from layoutdoctor.diagnosis.configurations import BY_NAME
from layoutdoctor.examination.advice.applying import how_to_apply
from layoutdoctor.run.operations import Operations
from layoutdoctor.subjects.prepare import apply_input_format, compile_for
from layoutdoctor.subjects.subject import call_of, subject_from_python

if TYPE_CHECKING:
    from collections.abc import Callable

CONV2 = nn.Conv2d(3, 4, 3)
CONV3 = nn.Conv3d(3, 4, 3)
CLIP = torch.randn(2, 5, 3, 8, 8)
IMAGE = torch.randn(2, 3, 8, 8)
VOLUME = torch.randn(2, 3, 4, 8, 8)
LAST = BY_NAME["eager-channels-last"]


def with_mask(q: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
    x = CONV2(q).flatten(2)
    return functional.scaled_dot_product_attention(x, x, x, mask[:, 0])


CASES: dict[str, tuple[Callable[..., Any], tuple[Any, ...], tuple[str, ...]]] = {
    "an image": (lambda x: CONV2(x), (IMAGE,), ("images",)),
    "an image that is scaled, padded and joined first": (
        lambda x, y: CONV2(functional.pad(torch.cat([x[:, :1], y[:, :2]], 1) * 2 - 1, (1, 1))),
        (IMAGE, IMAGE),
        ("images", "images"),
    ),
    "images of a batch that is halved": (lambda x: [CONV2(one) for one in x.chunk(2)], (IMAGE,), ("images",)),
    "images of a batch that is doubled": (lambda x: CONV2(torch.cat([x, x])), (IMAGE,), ("images",)),
    "a corner of the first image": (lambda x: CONV2(x[:1, :, :4, :4]), (IMAGE,), ("images",)),
    "a volume": (lambda x: CONV3(x.float()), (VOLUME,), ("images",)),
    "a clip whose frames are flattened": (lambda x: CONV2(x.flatten(0, 1)), (CLIP,), ("frames",)),
    "a clip that is read frame by frame": (lambda x: [CONV2(x[:, t]) for t in range(5)], (CLIP,), ("frames",)),
    "a clip that is scaled and reshaped": (lambda x: CONV2((x / 2).reshape(-1, 3, 8, 8)), (CLIP,), ("frames",)),
    "a clip that is read entry by entry": (lambda x: [CONV2(x[b]) for b in range(2)], (CLIP,), ("frames",)),
    "a clip that is unbound": (lambda x: [CONV2(one) for one in x.unbind(1)], (CLIP,), ("frames",)),
    "a stack of kernels": (
        lambda x, k: torch.vmap(lambda image, own: functional.conv2d(image[None], own)[0])(x, k),
        (IMAGE, torch.randn(2, 4, 3, 3, 3)),
        ("other", "other"),  # the images of a batch become channels of one
    ),
    "weights of its own": (lambda x, w: functional.conv2d(x, w), (IMAGE, torch.randn(4, 3, 3, 3)), ("images", "other")),
    "images with channels behind": (lambda x: CONV2(x.permute(0, 3, 1, 2)), (torch.randn(2, 8, 8, 3),), ("other",)),
    "a mask": (with_mask, (IMAGE, torch.zeros(2, 1, 4, 4)), ("images", "other")),
    "a grid": (
        lambda x, grid: functional.grid_sample(x, grid, align_corners=False),
        (IMAGE, torch.rand(2, 8, 8, 2)),
        ("images", "other"),
    ),
    "an image of an operation without convolution": (lambda x: functional.avg_pool2d(x, 2), (IMAGE,), ("images",)),
    "tokens and an image in a dict": (
        lambda given: CONV2(given["image"]).sum() + given["tokens"].sum(),
        ({"image": IMAGE, "tokens": torch.ones(2, 4, 4, 4)},),
        ("images", "other"),
    ),
}


@pytest.mark.parametrize("case", CASES)
def test_an_input_is_known_by_what_reads_it(case: str) -> None:
    run, inputs, expected = CASES[case]
    operations = Operations()
    with torch.no_grad():
        operations.watching(run)(*inputs)
    assert operations.uses == expected
    assert operations.may_convolve


@pytest.mark.parametrize("case", CASES)
def test_its_format_follows_and_so_do_the_lines_to_paste(case: str) -> None:
    run, inputs, uses = CASES[case]
    configuration = msgspec.structs.replace(LAST, input_uses=uses)

    def strides(given: Any) -> list[tuple[int, ...]]:
        return [one.stride() for one in torch.utils._pytree.tree_leaves(given)]

    applied = apply_input_format(inputs, configuration)

    for use, before, after in zip(
        uses, *(torch.utils._pytree.tree_leaves(given) for given in (inputs, applied)), strict=True
    ):
        assert torch.equal(before, after)
        if use == "other":
            assert after is before
        elif use == "frames":
            assert after[:, 1].is_contiguous(memory_format=torch.channels_last) or after[:, 1].stride()[1] == 1
            assert after.flatten(0, 1).is_contiguous(memory_format=torch.channels_last)
        else:
            form = torch.channels_last if after.dim() == 4 else torch.channels_last_3d
            assert after.is_contiguous(memory_format=form)
    call = call_of(subject_from_python(run, inputs))
    lines = how_to_apply(configuration, frozenset(), call)
    names = [name.partition("[")[0] for name in call.ranks]
    scope: dict[str, Any] = {"torch": torch, "model": run, **dict(zip(dict.fromkeys(names), inputs, strict=True))}
    exec(lines, scope)
    assert strides([scope[name] for name in dict.fromkeys(names)]) == strides(applied)


def test_what_is_not_known_is_converted_by_rank() -> None:
    image, volume = apply_input_format((IMAGE, VOLUME), LAST)
    assert image.is_contiguous(memory_format=torch.channels_last)
    assert volume.is_contiguous(memory_format=torch.channels_last_3d)


def test_the_model_that_a_diagnosis_gives_back_treats_its_inputs_so() -> None:
    seen: list[torch.Tensor] = []

    class Net(nn.Module):
        def forward(self, clip: torch.Tensor) -> torch.Tensor:
            seen.append(clip.flatten(0, 1))
            return clip

    compile_for(Net(), msgspec.structs.replace(LAST, input_uses=("frames",)))(CLIP)
    assert seen[0].is_contiguous(memory_format=torch.channels_last)
