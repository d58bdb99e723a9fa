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

HARMLESS = ("object.__getattr__", "object.__setattr__", "object.__delattr__", "sys._getframe", "array.__new__")
HARMLESS += (
    "builtins.id",
    "code.__new__",
    "cpython.run_stdin",
    "os.listdir",
    "os.scandir",
    "gc.",
    "sys.unraisablehook",
)

events: list[str] = []
is_watching = False
allowed = ""


def watch(event: str, arguments: tuple[Any, ...]) -> None:
    if not is_watching or event.startswith(HARMLESS):
        return
    named = {"open": 0, "sqlite3.connect": 0}.get(event)
    if named is not None and allowed in str(arguments[named]):
        return
    if event == "sqlite3.connect/handle":
        return
    events.append(f"{event} {arguments!r}"[:300])


def readers() -> dict[str, Any]:
    return {"trace": layoutdoctor.examine_trace, "diagnosis": layoutdoctor.load, "accepted": load_accepted}


def main(folder: Path, warm: Path) -> None:
    global is_watching, allowed
    for path in sorted(warm.iterdir()):  # late imports, once
        for read in readers().values():
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
        for name, read in readers().items():
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
