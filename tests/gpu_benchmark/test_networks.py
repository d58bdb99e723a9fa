"""Every network can be built at small size and runs in float32 on a processor; what is not installed says so."""

from __future__ import annotations

import importlib.util

import networks
import pytest
import torch
from networks import CASEBOOK_SHAPES, REPOSITORY, item_names, make

OTHERS = {"r3d-18": "torchvision", **dict.fromkeys(("resnet50", "convnext_tiny", "efficientnet_b0"), "timm")}
OTHERS |= dict.fromkeys(("mobilenetv3_large_100", "regnety_016"), "timm")
OURS = sorted(networks.networks().keys() - OTHERS.keys())


@pytest.mark.parametrize("name", OURS)
def test_a_network_of_ours_runs(name: str) -> None:
    module, inputs = make(name, "cpu", is_small=True)

    with torch.no_grad():
        output = module.eval()(*inputs)

    assert isinstance(output, torch.Tensor)
    assert output.isfinite().all()
    assert sum(tensor.numel() for tensor in inputs) < 2_000_000


@pytest.mark.parametrize("name", sorted(OTHERS))
def test_a_network_of_a_package_that_is_not_there_says_which(name: str) -> None:
    if importlib.util.find_spec(OTHERS[name]) is not None:
        pytest.skip(f"{OTHERS[name]} is installed")

    with pytest.raises(ModuleNotFoundError, match=OTHERS[name]):
        make(name, "cpu", is_small=True)


def test_the_formats_of_the_conv3d_stacks() -> None:
    def formats(layout: str) -> tuple[bool, bool]:
        module, (x,) = make(f"conv3d-stack-bf16-{layout}", "cpu", is_small=True)
        weight = next(module.parameters())
        return tuple(t.is_contiguous(memory_format=torch.channels_last_3d) for t in (weight, x))  # type: ignore[return-value]

    assert formats("channels-last") == (True, True)
    assert formats("channels-last-input") == (False, True)
    assert formats("contiguous") == (False, False)


def test_a_network_is_the_same_every_time() -> None:
    first, second = (make("unet", "cpu", is_small=True) for _ in range(2))

    assert torch.equal(first[1][0], second[1][0])
    assert all(map(torch.equal, first[0].parameters(), second[0].parameters()))


def test_every_network_is_an_item_in_both_modes_and_the_stacks_come_first() -> None:
    names = item_names()

    assert len(names) == len(set(names)) == 2 * len(networks.networks())
    assert all(name.startswith("conv3d-stack") for name in names[:6])
    assert names[0] == "conv3d-stack-autocast-channels-last/inference"


def test_every_case_has_a_shape_for_a_gpu_but_one() -> None:
    numbers = {file.name[:2] for file in (REPOSITORY / "tests" / "casebook").glob("[0-9]*.py")}

    assert numbers - CASEBOOK_SHAPES.keys() == {"21"}
    assert CASEBOOK_SHAPES.keys() <= numbers


@pytest.mark.parametrize(
    "name", [name for name in OURS if name.startswith("case-") and name.split("-")[1] in CASEBOOK_SHAPES]
)
def test_a_case_takes_its_shape_for_a_gpu(name: str) -> None:
    """With sizes divided, so that a processor can run it: what is wrong about a shape is its rank or its channels."""
    number = name.split("-")[1]
    module, inputs = make(name, "cpu", is_small=True)
    shape = CASEBOOK_SHAPES[number]
    channels = -1 if len(shape) == 3 else 1
    smaller = [size if dim in (channels, channels % len(shape)) else min(size, 32) for dim, size in enumerate(shape)]

    assert len(shape) == inputs[0].dim()
    with torch.no_grad():
        assert module.eval()(torch.randn(smaller)).isfinite().all()
