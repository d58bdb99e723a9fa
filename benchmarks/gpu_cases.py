"""
The networks of ``gpu.py``: each public function builds a model and its inputs on the processor.

Every function is a target of layoutdoctor (``benchmarks/gpu_cases.py:unet``), and ``gpu.py`` calls the same function.
``GPU_CASES_SMALL=1`` makes the inputs small, ``GPU_CASES_HALF=float32`` replaces bfloat16 (a processor may lack it).
"""

from __future__ import annotations

import ctypes
import os
from itertools import pairwise

import torch
import torch._inductor.config
import triton
from torch import nn
from torch.nn import functional

SMALL = os.environ.get("GPU_CASES_SMALL") == "1"
HALF = torch.float32 if os.environ.get("GPU_CASES_HALF") == "float32" else torch.bfloat16
VIDEO = (4, 8, 64, 256, 256), (2, 8, 4, 16, 16)
Case = tuple[nn.Module, list[torch.Tensor]]


def _input(full: tuple[int, ...], small: tuple[int, ...]) -> torch.Tensor:
    return torch.randn(*(small if SMALL else full))


def _half(model: nn.Module, x: torch.Tensor) -> Case:
    return model.to(HALF), [x.to(HALF)]


class Autocast(nn.Module):
    """Enters autocast to bfloat16 by itself; not on a processor, where many networks take a hundred times as long."""

    def __init__(self, network: nn.Module) -> None:
        super().__init__()
        self.network = network

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        with torch.autocast(x.device.type, dtype=torch.bfloat16, enabled=x.device.type != "cpu"):
            return self.network(x)


def _stack() -> nn.Module:
    """Three Conv3d and nothing between: the network of the forum thread."""
    return nn.Sequential(*(nn.Conv3d(a, b, 3, padding=1, bias=False) for a, b in pairwise((8, 64, 64, 64))))


def seed_autocast() -> Case:
    return Autocast(_stack()), [_input(*VIDEO)]


def seed_bf16() -> Case:
    return _half(_stack(), _input(*VIDEO))


def seed_mid() -> Case:
    return _half(_stack(), _input((2, 8, 16, 128, 128), (2, 8, 4, 16, 16)))


def conv2d_bt() -> Case:
    """Conv2d over the frames of a video, which are folded into the batch; the twin of ``conv3d_133``."""
    return nn.Conv2d(2, 2, 3, padding=1, bias=False), [_input((4000, 2, 64, 64), (16, 2, 16, 16))]


def conv3d_133() -> Case:
    model = nn.Conv3d(2, 2, (1, 3, 3), padding=(0, 1, 1), bias=False)
    return model, [_input((8, 2, 500, 64, 64), (2, 2, 8, 16, 16))]


def conv2d_224() -> Case:
    return nn.Conv2d(64, 128, 3, padding=1), [_input((1, 64, 224, 224), (1, 64, 28, 28))]


def chain() -> Case:
    layers: list[nn.Module] = []
    for a, b in pairwise((3, 64, 64)):
        layers += [nn.Conv2d(a, b, 3, padding=1, bias=False), nn.BatchNorm2d(b), nn.ReLU()]
    return nn.Sequential(*layers), [_input((8, 3, 112, 112), (2, 3, 32, 32))]


class Unfold(nn.Module):
    """A convolution written as unfold and a matrix product."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(16, 27) / 5)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        out = (functional.unfold(x, 3).transpose(1, 2) @ self.weight.T).transpose(1, 2)  # [N, 16, (H - 2) * (W - 2)]
        return out.view(x.shape[0], 16, x.shape[2] - 2, x.shape[3] - 2)


def unfold_bn() -> Case:
    """Launching takes longer than its kernels."""
    return nn.Sequential(Unfold(), nn.BatchNorm2d(16)), [torch.randn(128, 3, 32, 32)]


def grouped() -> Case:
    """A grouped convolution between two dense ones: it alone may keep channels_last from all of them."""
    widths = ((64, 256, 1), (256, 256, 4), (256, 256, 1))
    layers = (nn.Sequential(nn.Conv2d(a, b, 3, padding=1, groups=g), nn.ReLU()) for a, b, g in widths)
    return _half(nn.Sequential(*layers), _input((32, 64, 56, 56), (2, 64, 14, 14)))


def conv_transpose() -> Case:
    layers: list[nn.Module] = []
    for a, b in pairwise((256, 128, 64, 32)):
        layers += [nn.ConvTranspose2d(a, b, 4, stride=2, padding=1), nn.BatchNorm2d(b), nn.ReLU()]
    model = nn.Sequential(*layers, nn.Conv2d(32, 3, 3, padding=1))
    return _half(model, _input((16, 256, 32, 32), (1, 256, 4, 4)))


def _torchvision(name: str, **without_chance: float) -> Case:
    import torchvision

    model = torchvision.models.get_model(name, weights=None, **without_chance)
    return _half(model, _input((64, 3, 224, 224), (2, 3, 64, 64)))


def resnet50() -> Case:
    return _torchvision("resnet50")


def convnext_tiny() -> Case:
    return _torchvision("convnext_tiny", stochastic_depth_prob=0.0)


def efficientnet_b0() -> Case:
    return _torchvision("efficientnet_b0", stochastic_depth_prob=0.0, dropout=0.0)


class UNet(nn.Module):
    """Two convolutions and norms a level, pooling down, transposed convolutions up, skips concatenated."""

    def __init__(self, widths: tuple[int, ...], dimensions: int) -> None:
        super().__init__()
        self.conv, transposed = (getattr(nn, f"{name}{dimensions}d") for name in ("Conv", "ConvTranspose"))
        self.pool = getattr(functional, f"max_pool{dimensions}d")
        ups = list(pairwise(reversed(widths)))
        self.down = nn.ModuleList(self._double(a, b) for a, b in pairwise([3, *widths]))
        self.up = nn.ModuleList(transposed(a, b, 2, stride=2) for a, b in ups)
        self.merge = nn.ModuleList(self._double(2 * b, b) for _, b in ups)
        self.head = self.conv(widths[0], 2, 1)

    def _double(self, channels: int, width: int) -> nn.Module:
        layers: list[nn.Module] = []
        for a in (channels, width):
            norm = nn.GroupNorm(8, width) if self.conv is nn.Conv2d else nn.InstanceNorm3d(width, affine=True)
            layers += [self.conv(a, width, 3, padding=1), norm, nn.SiLU()]
        return nn.Sequential(*layers)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        skips: list[torch.Tensor] = []
        for block in self.down:
            x = block(self.pool(x, 2) if skips else x)
            skips.append(x)
        for up, merge, skip in zip(self.up, self.merge, skips[-2::-1], strict=True):
            x = merge(torch.cat([up(x), skip], dim=1))
        return self.head(x)


def unet() -> Case:
    return _half(UNet((64, 128, 256, 512), 2), _input((8, 3, 256, 256), (2, 3, 32, 32)))


def segmentation_3d() -> Case:
    """A U-Net with InstanceNorm3d, as medical segmentation uses it."""
    return _half(UNet((32, 64, 128, 256), 3), _input((2, 3, 96, 96, 96), (1, 3, 16, 16, 16)))


class Residual(nn.Sequential):
    """Layers and a way around them."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + super().forward(x)


class Attention(nn.Module):
    """The attention of diffusers' AutoencoderKL over all pixels, one head."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm, self.out = nn.GroupNorm(32, width), nn.Linear(width, width)
        self.projections = nn.ModuleList(nn.Linear(width, width) for _ in range(3))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        tokens = self.norm(x).flatten(2).transpose(1, 2)  # [N, C, H, W] -> [N, H * W, C]
        mixed = functional.scaled_dot_product_attention(*(project(tokens) for project in self.projections))
        return x + self.out(mixed).transpose(1, 2).reshape(x.shape)


def _residual(width: int) -> Residual:
    halves = [(nn.GroupNorm(32, width), nn.SiLU(), nn.Conv2d(width, width, 3, padding=1)) for _ in range(2)]
    return Residual(*halves[0], *halves[1])


def vae_decoder() -> Case:
    """By hand, after diffusers' AutoencoderKL (Stable Diffusion): latents [N, 4, H, W] to images [N, 3, 8 H, 8 W]."""
    layers: list[nn.Module] = [nn.Conv2d(4, 512, 3, padding=1), _residual(512), Attention(512)]
    for a, b in pairwise((512, 512, 256, 128)):
        layers += [_residual(a), _residual(a), nn.Upsample(scale_factor=2.0), nn.Conv2d(a, b, 3, padding=1)]
    layers += [_residual(128), nn.GroupNorm(32, 128), nn.SiLU(), nn.Conv2d(128, 3, 3, padding=1)]
    return _half(nn.Sequential(*layers), _input((1, 4, 64, 64), (1, 4, 4, 4)))


class CausalConv3d(nn.Conv3d):
    """A Conv3d that sees no later frame: it pads the time dimension in front alone."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return super().forward(functional.pad(x, (1, 1, 1, 1, 2, 0)))


class ChannelNorm(nn.Module):
    """The norm of Wan's VAE, over channels."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.ones(width, 1, 1, 1))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return functional.normalize(x, dim=1) * x.shape[1] ** 0.5 * self.scale


class FrameUpsample(nn.Conv2d):
    """Twice the height and width: the frames become a batch for a Conv2d, and a video again."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        frames = x.permute(0, 2, 1, 3, 4).flatten(0, 1)  # [N, C, T, H, W] -> [N * T, C, H, W]
        frames = super().forward(functional.interpolate(frames, scale_factor=2.0, mode="nearest"))
        return frames.unflatten(0, (x.shape[0], x.shape[2])).permute(0, 2, 1, 3, 4)  # [N, width, T, 2 H, 2 W]


def video_vae_decoder() -> Case:
    """By hand, a causal decoder of the kind of Wan's and LTX's: latents [N, 16, T, H, W] to [N, 3, T, 4 H, 4 W]."""
    layers: list[nn.Module] = [CausalConv3d(16, 192, 3)]
    for a, b in pairwise((192, 192, 96)):
        halves = [(ChannelNorm(a), nn.SiLU(), CausalConv3d(a, a, 3)) for _ in range(2)]
        layers += [Residual(*halves[0], *halves[1]), FrameUpsample(a, b, 3, padding=1)]
    model = nn.Sequential(*layers, ChannelNorm(96), nn.SiLU(), CausalConv3d(96, 3, 3))
    return _half(model, _input((1, 16, 9, 60, 104), (1, 16, 3, 8, 8)))


# Programs that set a switch of torch, and models that break or fill the memory.


def conv2d_224_benchmark() -> Case:
    torch.backends.cudnn.benchmark = True
    return conv2d_224()


def chain_cudagraphs() -> Case:
    torch._inductor.config.triton.cudagraphs = True
    return chain()


@triton.jit
def _store_far(pointer):  # type: ignore[no-untyped-def]  # Triton reads annotations
    triton.language.store(pointer + (1 << 50), 1.0)


@torch.compiler.disable
def _access_illegally(x: torch.Tensor) -> None:
    if x.device.type == "cpu":
        ctypes.string_at(0)
    _store_far[(1,)](x)
    torch.cuda.synchronize()


class Crashes(nn.Conv2d):
    """Accesses memory that is not there if its input is channels_last."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if x.is_contiguous(memory_format=torch.channels_last):
            _access_illegally(x)
        return super().forward(x)


def illegal_access() -> Case:
    return Crashes(8, 8, 3, padding=1), [torch.randn(2, 8, 32, 32)]


def large() -> Case:
    """One process takes 26 GB, so that several at once do not fit into 80 GB."""
    layers = (nn.Conv2d(64, 64, 3, padding=1), nn.ReLU(), nn.Conv2d(64, 8, 3, padding=1))
    return nn.Sequential(*layers), [_input((32, 64, 1024, 1024), (1, 64, 32, 32))]
