"""
Reads files as data with an audit hook and says on standard output what happened.

Called as ``read_under_audit.py FOLDER``: every file in it is examined as a trace, loaded as a diagnosis and as a file
of accepted findings, which all but one of them refuse.
"""

from __future__ import annotations

import contextlib
import json
import sys
import time
from pathlib import Path
from typing import Any

import layoutdoctor
from layoutdoctor.diagnosis.accepted import load_accepted
from layoutdoctor.errors import LayoutDoctorError

HARMLESS = tuple(
    "object.__getattr__ object.__setattr__ object.__delattr__ sys._getframe array.__new__ builtins.id code.__new__ "
    "cpython.run_stdin os.listdir os.scandir gc. sys.unraisablehook sqlite3.connect/handle".split()
)
READERS: dict[str, Any] = {
    "trace": layoutdoctor.examine_trace,
    "diagnosis": layoutdoctor.load,
    "accepted": load_accepted,
}

events: list[str] = []
is_watching = False
allowed = ""


def watch(event: str, arguments: tuple[Any, ...]) -> None:
    if not is_watching or event.startswith(HARMLESS):
        return
    if event in ("open", "sqlite3.connect") and allowed in str(arguments[0]):
        return
    events.append(f"{event} {arguments!r}"[:300])


def main(folder: Path, warm: Path) -> None:
    global is_watching, allowed
    for path in sorted(warm.iterdir()):  # late imports, once
        for read in READERS.values():
            with contextlib.suppress(LayoutDoctorError):
                read(path)
    sys.addaudithook(watch)
    is_watching = True
    eval("1")
    is_watching = False
    assert events, "the hook sees nothing"
    outcomes = {}
    for path in sorted(folder.iterdir()):
        allowed = path.name
        for name, read in READERS.items():
            events.clear()
            message, start = "", time.monotonic()
            is_watching = True
            try:
                read(path)
            except LayoutDoctorError as error:
                message = str(error)
            except BaseException as error:
                message = f"BUG {type(error).__name__}: {error}"
            is_watching = False
            outcomes[f"{path.name} as {name}"] = {
                "message": message,
                "events": list(events),
                "seconds": time.monotonic() - start,
            }
    peak = next(int(line.split()[1]) for line in Path("/proc/self/status").read_text().splitlines() if "VmHWM" in line)
    print(json.dumps({"outcomes": outcomes, "peak_kib": peak, "cwd": sorted(path.name for path in Path().iterdir())}))


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
