"""
Keeps the smallest traces of a run that show each kind of conversion, for the tests and notebooks that have no GPU.

    python benchmarks/gpu/fixtures.py OUT tests/traces --prefix h100

Of the traces in ``OUT/traces.tar`` the smallest one is chosen for every kind of kernel that ``kernel_count.py`` counts
(each library conversion by its name, ATen's strided copy), in inference and in training; a trace that was chosen
already for another kind serves. Folders are taken out of every path in it. Prints the lines for the folder's README:
file, what it shows, and what it was recorded with. Nothing that is there already is written over.
"""

from __future__ import annotations

import argparse
import gzip
import json
import re
import tarfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kernel_count import Count, count_kernels

if TYPE_CHECKING:
    from collections.abc import Mapping

MOST_BYTES = 1 << 20

_PATH = re.compile(r"(?<![\w.:)/])(?:/[\w.+@~ -]+)+/(?=[\w.+<-])")


def choose(traces: Mapping[str, bytes]) -> dict[str, Count]:
    """
    The smallest traces that together show every kind of conversion in each mode.

    Args:
        traces: Gzipped traces by ``NETWORK.MODE/CONFIGURATION.json.gz``.

    Returns:
        What was counted in each one that was chosen, in the order of their sizes.
    """
    counted = {
        name: count_kernels(data)
        for name, data in sorted(traces.items(), key=lambda entry: len(entry[1]))
        if len(data) <= MOST_BYTES
    }
    chosen: dict[str, Count] = {}
    shown: set[tuple[str, str]] = set()
    for name, count in counted.items():
        mode = name.split("/")[0].rsplit(".", 1)[-1]
        # Whether a generated kernel only moves was read from its code, which is not kept with the trace.
        kinds = {(mode, kind) for kind in count.groups() if kind != "generated copy"}
        if not kinds <= shown:
            chosen[name] = count
            shown |= kinds
    return chosen


def without_folders(trace: bytes) -> bytes:
    """
    A trace whose paths keep the file's name only, or what is below ``site-packages``.

    Args:
        trace: Gzipped.

    Returns:
        Gzipped likewise, the same bytes every time.
    """
    text = gzip.decompress(trace).decode("utf-8")
    return gzip.compress(_PATH.sub(_below_packages, text).encode("utf-8"), mtime=0)


def _below_packages(path: re.Match[str]) -> str:
    _, found, below = path[0].partition("-packages/")
    return below if found else ""


def describe(name: str, count: Count, environment: Mapping[str, Any]) -> str:
    """
    The line for the README of the folder.

    Args:
        name: In the archive, ``NETWORK.MODE/CONFIGURATION.json.gz``.
        count: What was counted in it.
        environment: Of the run.
    """
    place, file = name.split("/")
    network, mode = place.rsplit(".", 1)
    kinds = ", ".join(f"{launches} {kind}" for kind, launches in sorted(count.groups().items()))
    versions = ", ".join(f"{key} {environment.get(key)}" for key in ("torch", "cuda", "cudnn", "driver", "date"))
    return (
        f"{network}, {mode}, {file.removesuffix('.json.gz')}: {count.kernel_count} kernels, of these {kinds}; "
        f"`diagnoses.py OUT --only {network}/{mode}` on {environment.get('device')}, {versions}"
    )


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("output", type=Path, help="directory with diagnoses.json and traces.tar")
    parser.add_argument("destination", type=Path, help="where to put the chosen traces")
    parser.add_argument("--prefix", default="gpu", help="how their names begin, such as the GPU's (default: gpu)")
    arguments = parser.parse_args()
    environment = json.loads((arguments.output / "diagnoses.json").read_text(encoding="utf-8"))["environment"]
    traces = {}
    with tarfile.open(arguments.output / "traces.tar") as tar:
        for member in tar:
            stream = tar.extractfile(member)
            if stream is not None and not member.name.endswith("diagnosis.json.gz"):
                traces[member.name] = stream.read()
    chosen = choose(traces)
    arguments.destination.mkdir(parents=True, exist_ok=True)
    for name, count in chosen.items():
        file = arguments.destination / f"{arguments.prefix}_{re.sub(r'[^a-z0-9]+', '_', name[:-8])}.json.gz"
        if not file.exists():
            file.write_bytes(without_folders(traces[name]))
        print(f"- `{file.name}`: {describe(name, count, environment)}")
    if not chosen:
        print(f"no trace of {len(traces)} shows a conversion on a device")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
