"""One tar file for the traces and saved diagnoses of a run, kept below a size that can be carried about."""

from __future__ import annotations

import io
import tarfile
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path

MOST_BYTES_OF_A_FILE = 1 << 20
MOST_BYTES_OF_A_FOLDER = 5 << 19
MOST_BYTES = 15 << 20


class Archive:
    """
    A tar file that grows file by file, and is whole on the disk after each ``write``.

    Attributes:
        path: Where it is.
        left_out: Files that were too large, or for which there was no room, since it was opened.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.left_out = 0
        self._files: dict[str, bytes] = {}
        if path.exists():
            self._read()

    def _read(self) -> None:
        try:
            with tarfile.open(self.path) as tar:
                for member in tar:
                    stream = tar.extractfile(member)
                    if stream is not None:
                        self._files[member.name] = stream.read()
        except tarfile.TarError as error:  # the end was lost: what came before it is kept
            print(f"{self.path.name}: read {len(self._files)} files, then: {error}", flush=True)

    @property
    def names(self) -> tuple[str, ...]:
        """The files in it."""
        return tuple(self._files)

    def add(self, name: str, data: bytes, most_bytes: int | None = None) -> bool:
        """
        Adds a file, or replaces the one of that name.

        Args:
            name: Its path in the archive, ``FOLDER/FILE``.
            data: Its bytes, compressed already.
            most_bytes: A larger one is left out; None for ``MOST_BYTES_OF_A_FILE``.

        Returns:
            Whether there was room, in the archive and in its folder.
        """
        sizes = {known: len(held) + 1024 for known, held in self._files.items() if known != name}
        beside = sum(size for known, size in sizes.items() if known.split("/")[0] == name.split("/")[0])
        if (
            len(data) > (MOST_BYTES_OF_A_FILE if most_bytes is None else most_bytes)
            or beside + len(data) > MOST_BYTES_OF_A_FOLDER
            or sum(sizes.values()) + len(data) + 1024 > MOST_BYTES
        ):
            self.left_out += 1
            return False
        self._files[name] = data
        return True

    def write(self) -> None:
        """Writes the file anew."""
        scratch = self.path.with_suffix(".part")
        with tarfile.open(scratch, "w") as tar:
            for name, data in self._files.items():
                member = tarfile.TarInfo(name)
                member.size = len(data)
                tar.addfile(member, io.BytesIO(data))
        scratch.replace(self.path)
