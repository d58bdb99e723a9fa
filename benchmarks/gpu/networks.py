"""
The networks that the GPU benchmark looks at, at sizes for a GPU and, to try the programs, at sizes for a processor.

The Conv3d stack of the forum thread, the examples and the casebook of this repository, networks of timm and
torchvision, and a U-Net. ``make`` builds one by its name. A network under autocast enters it in its own ``forward``, so
that every configuration runs under it.
"""

from __future__ import annotations

import importlib.util
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import torch
from torch import nn

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from types import ModuleType

Built = tuple[nn.Module, tuple[torch.Tensor, ...]]
Precision = Literal["fp32", "bf16", "autocast"]

REPOSITORY = Path(__file__).resolve().parents[2]
MODES = ("inference", "training")


@dataclass(frozen=True)
class Network:
    """
    One network and its example input.

    Attributes:
        name: Names it in results.
        build: Builds it in float32 on the processor, at small size where its argument says so.
        precision: ``bf16`` converts weights and inputs, ``autocast`` runs float32 weights under autocast to bfloat16.
        tier: 0 is looked at first.
        is_large: Whether compiling it takes long: configurations that are called the same are not compiled once more.
    """

    name: str
    build: Callable[[bool], Built]
    precision: Precision = "autocast"
    tier: int = 2
    is_large: bool = False


class Autocast(nn.Module):
    """A network that enters autocast to bfloat16 by itself."""

    def __init__(self, network: nn.Module, device: str, *, enabled: bool = True) -> None:
        super().__init__()
        self.network, self.device_type, self.enabled = network, device, enabled

    def forward(self, *args: Any) -> Any:
        """Calls the network under autocast."""
        with torch.autocast(self.device_type, dtype=torch.bfloat16, enabled=self.enabled):
            return self.network(*args)


class UNet(nn.Module):
    """Four levels of two convolutions each, max pooling down, transposed convolutions up, skips concatenated."""

    def __init__(self, width: int, levels: int = 4) -> None:
        super().__init__()
        widths = [width * 2**level for level in range(levels)]
        self.down = nn.ModuleList(_double(a, b) for a, b in zip([3, *widths[:-1]], widths, strict=True))
        self.pool = nn.MaxPool2d(2)
        pairs = list(zip(widths[:0:-1], widths[-2::-1], strict=True))
        self.up = nn.ModuleList(nn.ConvTranspose2d(a, b, 2, stride=2) for a, b in pairs)
        self.merge = nn.ModuleList(_double(2 * b, b) for _, b in pairs)
        self.head = nn.Conv2d(width, 2, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """A mask for each of two classes, [N, 2, H, W]."""
        skips = []
        for index, block in enumerate(self.down):
            x = block(x if index == 0 else self.pool(x))
            skips.append(x)
        for up, merge, skip in zip(self.up, self.merge, skips[-2::-1], strict=True):
            x = merge(torch.cat([up(x), skip], dim=1))
        return self.head(x)


def _double(channels: int, width: int) -> nn.Sequential:
    layers: list[nn.Module] = []
    for before in (channels, width):
        layers += [nn.Conv2d(before, width, 3, padding=1, bias=False), nn.BatchNorm2d(width), nn.ReLU()]
    return nn.Sequential(*layers)


def make(name: str, device: str, *, is_small: bool) -> Built:
    """
    Builds a network on a device, with the same random numbers every time.

    On a processor everything runs in float32: many take a hundred times as long for bfloat16, and nothing is proved.

    Args:
        name: Of a network.
        device: ``cuda`` or ``cpu``.
        is_small: Whether shapes are small.

    Raises:
        KeyError: There is no network of that name.
        ImportError: It comes from a package that is not installed.
    """
    network = networks()[name]
    torch.manual_seed(0)
    module, inputs = network.build(is_small)
    dtype = torch.bfloat16 if network.precision == "bf16" and device != "cpu" else torch.float32
    module = module.to(device=device, dtype=dtype)
    inputs = tuple(tensor.to(device=device, dtype=dtype) for tensor in inputs)
    if network.precision == "autocast":
        module = Autocast(module, device, enabled=device != "cpu")
    return module, inputs


def networks() -> dict[str, Network]:
    """All networks by name; builds none."""
    everything = [*_conv3d_stacks(), *_examples(), *_casebook(), *_packages()]
    everything.append(Network("unet", _unet, tier=1))
    return {network.name: network for network in everything}


def item_names() -> list[str]:
    """``network/mode`` of every network in both modes, the most telling ones first."""
    known = networks().values()
    order = [(network.tier, MODES.index(mode), f"{network.name}/{mode}") for network in known for mode in MODES]
    return [name for *_, name in sorted(order, key=lambda entry: entry[:2])]


_TELLING_STACKS = (
    "conv3d-stack-autocast-channels-last",  # the thread's own
    "conv3d-stack-bf16-channels-last-input",  # loses channels_last_3d on its way, by static lowering
    "conv3d-stack-bf16-contiguous",
)


def _conv3d_stacks() -> Iterable[Network]:
    """The thread's network and input: all in channels_last_3d, as it was there; the input alone; nothing."""
    for precision in ("autocast", "bf16"):
        for layout in ("channels-last", "channels-last-input", "contiguous"):
            name = f"conv3d-stack-{precision}-{layout}"
            yield Network(name, _stack(layout), precision, tier=0 if name in _TELLING_STACKS else 2)


def _stack(layout: str) -> Callable[[bool], Built]:
    def build(is_small: bool) -> Built:
        shape, width = ((2, 8, 4, 16, 16), 32) if is_small else ((4, 8, 64, 256, 256), 64)
        module = _load("examples/conv3d_stack.py").ConvNet(8, width, width)
        x = torch.randn(shape)
        if layout != "contiguous":
            x = x.to(memory_format=torch.channels_last_3d)
        if layout == "channels-last":
            module = module.to(memory_format=torch.channels_last_3d)
        return module, (x,)

    return build


def _unet(is_small: bool) -> Built:
    return (UNet(8), (torch.randn(1, 3, 32, 32),)) if is_small else (UNet(64), (torch.randn(8, 3, 256, 256),))


def _examples() -> Iterable[Network]:
    """The examples in float32, the small sizes as they are in the files."""

    def flat(is_small: bool, name: str) -> Built:
        example = _load("examples/conv2d_vs_conv3d.py")
        if not is_small:
            example.BATCH, example.TIME, example.CHANNELS, example.SIZE = 8, 32, 64, 128
        module, inputs = getattr(example, name)()
        return module, tuple(inputs)

    def chain(is_small: bool) -> Built:
        example = _load("examples/conv_bn_relu.py")
        return example.Model(), tuple(example.get_inputs()) if is_small else (torch.randn(64, 3, 224, 224),)

    def unfold(is_small: bool) -> Built:
        example = _load("examples/unfold_conv_batch_norm.py")
        return example.Model(), tuple(example.get_inputs()) if is_small else (torch.randn(256, 3, 128, 128),)

    yield Network("example-conv-bn-relu", chain, "fp32", tier=1)
    yield Network("example-conv2d", lambda is_small: flat(is_small, "conv2d"), "fp32")
    yield Network("example-conv3d", lambda is_small: flat(is_small, "conv3d"), "fp32")
    yield Network("example-unfold", unfold, "fp32")


CASEBOOK_SHAPES: dict[str, tuple[int, ...]] = {
    "01": (64, 3, 224, 224),
    "03": (16, 32, 256, 256),
    "04": (256, 3, 32, 32),
    "06": (64, 3, 224, 224),
    "07": (4, 4, 32, 128, 128),
    "09": (16, 3, 128, 128),
    "10": (32, 3, 256, 256),
    "11": (64, 3, 128, 128),
    "13": (32, 3, 224, 224),
    "15": (16, 3, 256, 256),
    "17": (16, 320, 96, 96),
    "19": (16, 3, 256, 256),
    "20": (4, 24, 48, 48, 32),
    "22": (128, 16, 128, 128),
    "24": (32, 2048, 256),
    "25": (32, 2048, 128),
    "27": (64, 3, 224, 224),
    "29": (32, 3, 512, 512),
    "30": (16, 3, 256, 256),
    "32": (32, 3, 224, 224),
    "34": (16, 3, 384, 384),
    "36": (64, 3, 224, 224),
    "38": (8, 3, 512, 512),
}
"""Input shapes for a GPU, by the file's number; 21 reads raw storage by fixed strides, so its input stays as it is."""

_TELLING_CASES = ("09", "15", "30", "32", "38")


def _casebook() -> Iterable[Network]:
    for file in sorted((REPOSITORY / "tests" / "casebook").glob("[0-9]*.py")):
        number = file.name[:2]
        tier = 1 if number in _TELLING_CASES else 2
        yield Network(f"case-{file.stem.replace('_', '-')}", _case(file, CASEBOOK_SHAPES.get(number)), tier=tier)


def _case(file: Path, shape: tuple[int, ...] | None) -> Callable[[bool], Built]:
    def build(is_small: bool) -> Built:
        case = _load(str(file.relative_to(REPOSITORY)))
        module = case.Model(*case.get_init_inputs())
        inputs = tuple(case.get_inputs()) if is_small or shape is None else (torch.randn(shape),)
        return module, inputs

    return build


def _packages() -> Iterable[Network]:
    def timm_network(is_small: bool, name: str) -> Built:
        import timm

        shape = (1, 3, 64, 64) if is_small else (64, 3, 224, 224)
        return timm.create_model(name, pretrained=False), (torch.randn(shape),)

    def video(is_small: bool) -> Built:
        from torchvision.models.video import r3d_18

        shape = (1, 3, 4, 32, 32) if is_small else (8, 3, 16, 112, 112)
        return r3d_18(weights=None), (torch.randn(shape),)

    yield Network("r3d-18", video, tier=1, is_large=True)
    for name in ("resnet50", "convnext_tiny", "efficientnet_b0", "mobilenetv3_large_100", "regnety_016"):
        tier = 1 if name == "resnet50" else 2

        def build(is_small: bool, name: str = name) -> Built:
            return timm_network(is_small, name)

        yield Network(name, build, tier=tier, is_large=True)


def _load(path: str) -> ModuleType:
    """A module of its own from a file of the repository, so that changing its constants changes nobody else's."""
    file = REPOSITORY / path
    spec = importlib.util.spec_from_file_location(f"benchmark_{file.stem}", file)
    if spec is None or spec.loader is None:
        raise ImportError(f"cannot load {path}")
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # dynamo looks the globals of an inlined function up by its module's name
    spec.loader.exec_module(module)
    return module
