"""What is prepared around a run: compilers that fail, caches that are broken, files in the way."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path

    from faults.harness import Workplace


def failing_compiler(place: Workplace) -> None:
    """A compiler that says its version and fails at everything else."""
    _compiler(place.work / "cxx", "echo 'planted: internal compiler error' >&2; exit 1")


def _compiler(path: Path, body: str) -> None:
    path.write_text(f'#!/bin/sh\ncase "$*" in *--version*) exec g++ --version;; esac\n{body}\n')
    path.chmod(0o755)


def a_file(place: Workplace) -> None:
    """A file where a folder is expected: not even root makes a folder below it."""
    (place.work / "a-file").write_text("in the way")


def full_disk(place: Workplace) -> None:
    """An output file on a device without room."""
    (place.work / "full.json").symlink_to("/dev/full")


def other_files(place: Workplace) -> None:
    """A folder that somebody keeps other things in."""
    (place.work / "other").mkdir()
    (place.work / "other" / "notes.txt").write_text("mine")


def corrupt_cache(place: Workplace) -> None:
    """Inductor's cache of an earlier run, every file cut in half."""
    cache = place.work / "cache"
    ended = place.run(
        ["model.py", "--configurations", "inductor", "--budget", "0.1"],
        within_seconds=240,
        environment={"TORCHINDUCTOR_CACHE_DIR": str(cache)},
    )
    assert ended.status == 0, ended.said
    assert list(cache.rglob("*.so")), "nothing was compiled"
    _cut(cache)


def _cut(folder: Path) -> None:
    for path in folder.rglob("*"):
        if path.is_file():
            data = path.read_bytes()
            path.write_bytes(data[: len(data) // 2])


def no_torch(place: Workplace) -> None:
    """A torch that is not there."""
    _torch(place, "raise ModuleNotFoundError(\"No module named 'torch'\", name='torch')")


def crashing_torch(place: Workplace) -> None:
    """A torch that ends the process when it is imported."""
    _torch(place, "import os; os.abort()")


def _torch(place: Workplace, code: str) -> None:
    (place.work / "site").mkdir()
    (place.work / "site" / "torch.py").write_text(code)
