"""
The readers under a coverage-guided fuzzer, for hours rather than minutes.

    pip install atheris
    python tests/fuzz/fuzz_readers.py build/fuzz tests/fuzz/corpus -max_len=65536 -timeout=20 -rss_limit_mb=2048

Atheris needs Linux or macOS (see its README); it is no dependency of the tests and is imported here only. New inputs
go into the first folder, which has to exist; the seeds are in the second. What crashes is left as ``crash-*`` and is
seen again with ``python tests/fuzz/fuzz_readers.py crash-...``. The first byte of an input, where it is 0 to 5,
chooses the name it is read under, as some kinds are known by their name.
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

import atheris

with atheris.instrument_imports(include=["layoutdoctor"]):
    from layoutdoctor import LayoutDoctorError, examine_trace
    from layoutdoctor.recording.reading import read_trace

FOLDER = tempfile.TemporaryDirectory(prefix="layoutdoctor-fuzz-")
NAMES = ("trace.json", "trace.json.gz", "run.sqlite", "kernels.csv", "onednn.log", "unknown")


def read_one(data: bytes) -> None:
    """Reads an input; anything but an error of our own is a finding."""
    is_chosen = data[:1] < bytes((len(NAMES),))
    name, content = (NAMES[data[0]], data[1:]) if data and is_chosen else (NAMES[0], data)
    path = Path(FOLDER.name) / name
    path.write_bytes(content)
    try:
        read_trace(path)
        examine_trace(path)
    except LayoutDoctorError:
        pass


if __name__ == "__main__":
    atheris.Setup(sys.argv, read_one)
    atheris.Fuzz()
