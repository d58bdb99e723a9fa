"""
Convolutions of many shapes, by family: dense, odd, pointwise, strided, grouped, transposed, in either format, extreme.

Values without torch, for ``launch_grid``.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

Shape = tuple[int, ...]


@dataclass(frozen=True)
class Case:
    """A convolution to run, forward and backward; sizes of one number stand for every spatial dimension."""

    input: Shape
    channels: int
    kernel: int | Shape = 3
    stride: int = 1
    padding: int = 1
    dilation: int = 1
    groups: int = 1
    is_transposed: bool = False
    input_channels_last: bool = False
    weight_channels_last: bool = False

    @property
    def rank(self) -> int:
        """Spatial dimensions."""
        return len(self.input) - 2

    @property
    def kernel_sizes(self) -> Shape:
        """Of every spatial dimension."""
        return self.kernel if isinstance(self.kernel, tuple) else (self.kernel,) * self.rank

    @property
    def weight(self) -> Shape:
        """Sizes of the weight."""
        if self.is_transposed:
            return (self.input[1], self.channels // self.groups, *self.kernel_sizes)
        return (self.channels, self.input[1] // self.groups, *self.kernel_sizes)

    @property
    def name(self) -> str:
        """What it is, in short."""
        parts = [f"{'x'.join(map(str, self.input))} to {self.channels}", f"k{'x'.join(map(str, self.kernel_sizes))}"]
        parts += [f"{letter}{value}" for letter, value in (("s", self.stride), ("d", self.dilation)) if value > 1]
        parts += [f"p{self.padding}"]
        parts += [f"g{self.groups}"] * (self.groups > 1) + ["transposed"] * self.is_transposed
        parts += ["input last"] * self.input_channels_last + ["weight last"] * self.weight_channels_last
        return " ".join(parts)


def families(*, is_small: bool) -> dict[str, list[Case]]:
    """
    Cases by family.

    Args:
        is_small: Whether to try the program only.
    """
    found = {
        "conv3d": _dense_3d(),
        "conv2d": _dense_2d(),
        "odd 2d": list(_odd((5, 7), (31, 33), (1, 19), (17, 1), (13, 4), (64, 3))),
        "odd 3d": list(_odd((3, 5, 7), (1, 9, 33), (2, 31, 16), (8, 1, 1), (5, 5, 5))),
        "pointwise": [
            Case((n, c, *size), k, kernel=1, padding=0)
            for n, c, k, size in (
                (8, 64, 256, (56, 56)),
                (8, 256, 64, (56, 56)),
                (4, 2048, 512, (7, 7)),
                (3, 48, 40, (15, 21)),
                (2, 64, 128, (4, 28, 28)),
                (2, 24, 72, (3, 9, 11)),
                (16, 512, 10, (1, 1)),
                (1, 320, 1280, (7, 7)),
            )
        ],
        "strided dilated": [
            Case((4, c, *size), k, kernel=kernel, stride=stride, padding=padding, dilation=dilation)
            for kernel, stride, padding, dilation in (
                (3, 2, 1, 1),
                (7, 2, 3, 1),
                (3, 1, 2, 2),
                (5, 3, 0, 1),
                (2, 2, 0, 1),
            )
            for c, k, size in ((32, 64, (56, 56)), (40, 24, (37, 41)), (16, 32, (8, 24, 24)))
        ],
        "grouped": [
            Case((4, c, *size), k, groups=groups)
            for c, k, groups in ((256, 256, 4), (128, 256, 32), (64, 64, 64), (96, 192, 96), (48, 24, 2))
            for size in ((28, 28), (4, 14, 14))
        ],
        "transposed": [
            Case((4, c, *size), k, kernel=kernel, stride=stride, padding=padding, is_transposed=True, groups=groups)
            for c, k, groups in ((128, 64, 1), (64, 33, 1), (64, 64, 4))
            for kernel, stride, padding in ((2, 2, 0), (4, 2, 1), (3, 1, 1))
            for size in ((28, 28), (4, 14, 10))
        ],
        "conv1d": [
            Case((n, c, length), k, kernel=kernel, padding=kernel // 2, stride=stride)
            for n, c, k, length in ((8, 80, 256, 400), (2, 256, 256, 3000), (4, 33, 65, 517), (16, 512, 512, 50))
            for kernel, stride in ((3, 1), (5, 2), (1, 1))
        ],
        "one channels last": list(_one_last()),
        "extreme": [
            Case((70_000, 32, 4, 4), 32),
            Case((1, 3, 2048, 2048), 32),
            Case((1, 64, 1024, 1031), 64),
            Case((2, 4096, 8, 8), 1024),
            Case((1, 2, 2, 2), 2),
            Case((1, 1, 64, 64), 8),
            Case((256, 3, 224, 224), 64, kernel=16, stride=16, padding=0),
            Case((1, 16, 64, 256, 256), 16),
            Case((4, 8, 64, 256, 256), 64),
        ],
    }
    for name in ("conv2d", "conv3d", "odd 2d", "pointwise", "grouped", "transposed"):
        found[f"{name} channels last"] = [_last(case) for case in found[name]]
    return {name: _shrunk(cases) for name, cases in found.items()} if is_small else found


def _dense_2d() -> list[Case]:
    sizes = (
        (8, 64, 64, 56),
        (8, 128, 128, 28),
        (32, 256, 256, 14),
        (8, 512, 512, 7),
        (1, 64, 64, 224),
        (64, 3, 64, 112),
    )
    dense = [Case((n, c, hw, hw), k) for n, c, k, hw in sizes]
    dense += [Case((n, 64, 28, 28), k) for n in (1, 2, 3, 64) for k in (32, 96)]
    return [*dense, Case((8, 3, 224, 224), 64, kernel=7, stride=2, padding=3), Case((4, 3, 224, 224), 768, 16, 16, 0)]


def _dense_3d() -> list[Case]:
    sizes = (
        (2, 8, 64, (16, 64, 64)),
        (2, 64, 64, (16, 64, 64)),
        (1, 64, 64, (8, 112, 112)),
        (4, 128, 128, (8, 28, 28)),
    )
    dense = [Case((n, c, *size), k) for n, c, k, size in sizes]
    dense += [Case((n, c, 4, 14, 14), 48) for n in (1, 3) for c in (16, 256)]
    return [*dense, Case((2, 3, 16, 112, 112), 64, kernel=(3, 7, 7)), Case((2, 144, 8, 28, 28), 64, kernel=(3, 1, 1))]


def _odd(*sizes: Shape) -> Iterator[Case]:
    channels = ((3, 5), (31, 33), (32, 64), (63, 65), (127, 1), (1, 17))
    for number, size in enumerate(sizes):
        for c, k in channels:
            yield Case((1 + number % 4, c, *size), k)


def _one_last() -> Iterator[Case]:
    for c, k, kernel in ((64, 64, 3), (3, 32, 3), (32, 64, 1), (1, 16, 3)):
        for size in ((28, 30), (4, 14, 16)):
            case = Case((4, c, *size), k, kernel=kernel, padding=kernel // 2)
            yield replace(case, input_channels_last=True)
            yield replace(case, weight_channels_last=True)


def _last(case: Case) -> Case:
    return replace(case, input_channels_last=True, weight_channels_last=True)


def _shrunk(cases: list[Case]) -> list[Case]:
    """A few of them, with sizes that take no time."""
    narrow = [case for case in cases if case.input[1] <= 512]
    return [
        replace(case, input=(min(case.input[0], 2), case.input[1], *_cropped(case)))
        for case in narrow[:: max(len(narrow) // 3, 1)][:3]
    ]


def _cropped(case: Case) -> Shape:
    return tuple(min(size, max(6, k)) for size, k in zip(case.input[2:], case.kernel_sizes, strict=True))
