"""
What the parts of the GPU benchmark share: arguments, a result file written after every item, what the machine is.

Each part is a program with the arguments of ``parse_arguments``. It works through named items, keeps each result at
once, and on another call goes on with what is missing.
"""

from __future__ import annotations

import argparse
import contextlib
import functools
import json
import platform
import subprocess
import time
import traceback
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from layoutdoctor._version import __version__
from layoutdoctor.capture.compat import triton_version

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

GOES_ON = 75
"""Exit status where time ran out with items left: call again."""


@dataclass
class Part:
    """
    One part of the benchmark and its results so far.

    Attributes:
        name: Names the result file, ``<output>/<name>.json``.
        output: Where results go.
        device: ``cuda`` or ``cpu``.
        is_small: Whether shapes are small, to try the program itself.
        deadline: When no further item is begun, on ``time.monotonic``.
        only: Parts of names: only items that contain one of them; empty for all.
        again: Whether items whose result is an error are tried once more.
        items: Results by item.
        names: Of all items there are to do.
        begun: How often each item was begun that has no result yet: one that ends the process is not begun for ever.
    """

    name: str
    output: Path
    device: str
    is_small: bool
    deadline: float
    only: tuple[str, ...] = ()
    again: bool = False
    items: dict[str, dict[str, Any]] = field(default_factory=dict)
    names: tuple[str, ...] = ()
    begun: dict[str, int] = field(default_factory=dict)

    @property
    def file(self) -> Path:
        """The result file."""
        return self.output / f"{self.name}.json"

    def run(
        self,
        names: Iterable[str],
        do: Callable[[str], dict[str, Any]],
        *,
        expected_seconds: Callable[[str], float] = lambda _: 0.0,
    ) -> int:
        """
        Does each item that is not done, as long as there is time.

        Args:
            names: Of the items, the most telling ones first.
            do: Returns an item's result, of what JSON can hold; what it raises is kept as ``error``.
            expected_seconds: What an item is expected to take; one that takes longer than there is time left waits for
                the next call, and shorter ones behind it are done instead.

        Returns:
            The exit status: 0 where everything is done, ``GOES_ON`` where time ran out, or where the device can run
            nothing more in this process.
        """
        self.output.mkdir(parents=True, exist_ok=True)
        self._read()
        self.names = tuple(names)
        wanted = [name for name in self.names if not self.only or any(part in name for part in self.only)]
        tried: set[str] = set()
        for name in wanted:
            if name in self.items and not (self.again and "error" in self.items[name]):
                continue
            if time.monotonic() + expected_seconds(name) > self.deadline:
                continue
            tried.add(name)
            self.begun[name] = self.begun.get(name, 0) + 1
            self._write()
            start = time.monotonic()
            try:
                result = do(name)
            except Exception as error:  # one item costs only itself
                first = (str(error).splitlines() or [""])[0][:500]
                where = traceback.format_exc().splitlines()[-6:-1]
                result = {"error": f"{type(error).__name__}: {first}", "where": where}
            seconds = round(time.monotonic() - start, 1)
            self.items[name] = {**result, "item_seconds": seconds}
            del self.begun[name]
            self._write()
            print(f"{self.name}: {name}: {result.get('error') or 'done'} ({seconds} s)", flush=True)
            with contextlib.suppress(Exception):
                torch._dynamo.reset()
            if self.device == "cuda" and not _is_usable():
                print(f"{self.name}: {name} left the device unusable; another process goes on", flush=True)
                return GOES_ON
        left = [name for name in wanted if name not in self.items or (self.again and self._waits(name, tried))]
        if left:
            print(f"{self.name}: time is up, {len(left)} of {len(wanted)} items left", flush=True)
        return GOES_ON if left else 0

    def _waits(self, name: str, tried: set[str]) -> bool:
        return "error" in self.items[name] and name not in tried

    def _read(self) -> None:
        """Takes over earlier results; a file that cannot be read is put aside, results of another kind are refused."""
        if not self.file.exists():
            return
        try:
            record = json.loads(self.file.read_text(encoding="utf-8"))
            items, small, device = dict(record["items"]), record["small"], record["environment"]["device"]
        except (ValueError, KeyError, TypeError) as error:
            aside = self.file.with_suffix(".unreadable")
            self.file.replace(aside)
            print(f"{self.name}: {self.file.name} cannot be read ({error}); it is {aside.name} now", flush=True)
            return
        if small != self.is_small or (device == "cpu") != (self.device == "cpu"):
            raise SystemExit(
                f"{self.name}: {self.file} holds results of {'small' if small else 'full'} shapes on {device}, "
                "which this call would mix with others; choose another directory"
            )
        self.items, self.begun = items, dict(record.get("begun", {}))
        for name in [name for name, count in self.begun.items() if count > 1]:
            self.items[name] = {"error": f"the process ended {self.begun.pop(name)} times while this item ran"}

    def _write(self) -> None:
        record = {
            "environment": environment(self.device),
            "small": self.is_small,
            "names": self.names,
            "begun": self.begun,
            "items": self.items,
        }
        scratch = self.file.with_suffix(".part")
        scratch.write_text(json.dumps(record, indent=1, allow_nan=True) + "\n", encoding="utf-8")
        scratch.replace(self.file)


def parse_arguments(
    name: str, description: str | None, *, more: Callable[[Any], None] | None = None
) -> tuple[Part, Any]:
    """
    Reads the arguments that every part takes.

    Args:
        name: The part's.
        description: Its docstring.
        more: Adds arguments of the part's own to the parser.

    Returns:
        The part, and all arguments.
    """
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("output", type=Path, help="directory for the results; what is there already is not done again")
    parser.add_argument("--seconds", type=float, default=480.0, help="begin no item after this time (default: 480)")
    parser.add_argument("--device", default="cuda", choices=("cuda", "cpu"))
    parser.add_argument("--small", action="store_true", help="small shapes: tries the program, proves nothing")
    parser.add_argument("--only", default="", help="parts of items' names, separated by commas")
    parser.add_argument("--again", action="store_true", help="try items once more whose result is an error")
    if more is not None:
        more(parser)
    arguments = parser.parse_args()
    only = tuple(word for word in arguments.only.split(",") if word)
    deadline = time.monotonic() + arguments.seconds
    part = Part(name, arguments.output, arguments.device, arguments.small, deadline, only, arguments.again)
    return part, arguments


def _is_usable() -> bool:
    """Whether the GPU still runs what it is given; after an illegal access nothing in this process does."""
    try:
        torch.cuda.synchronize()
        torch.cuda.empty_cache()
    except Exception:  # whatever it is, this process can go no further
        return False
    return True


@functools.cache
def environment(device: str) -> dict[str, Any]:
    """
    Versions and names of what the results were recorded with.

    Args:
        device: ``cuda`` or ``cpu``.
    """
    on_gpu = device == "cuda"
    return {
        "layoutdoctor": __version__,
        "torch": torch.__version__,
        "cuda": torch.version.cuda,
        "cudnn": torch.backends.cudnn.version() if on_gpu else None,
        "triton": triton_version(),
        "python": platform.python_version(),
        "device": torch.cuda.get_device_name() if on_gpu else "cpu",
        "driver": _driver() if on_gpu else None,
        "date": time.strftime("%Y-%m-%d", time.gmtime()),
    }


def _driver() -> str | None:
    try:
        command = ["nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader"]
        return subprocess.run(command, capture_output=True, text=True, check=True, timeout=20).stdout.split()[0]
    except (OSError, subprocess.SubprocessError, IndexError):
        return None
