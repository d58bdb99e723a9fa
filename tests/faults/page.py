"""The table of faults as a Markdown page."""

from __future__ import annotations

from faults.fault import ROWS, TABLE, Fault

_HEAD = """\
# Planted faults

What layoutdoctor does when something goes wrong: {count} faults, each planted in a model, a machine or a file, and what
has to come of it. The table is made from the rows that `test_faults.py` runs (`--update-golden` writes it again), so
it says what is tested, and the tests say whether it is true.

In every row, besides: the command ends in time; no process of the run is alive afterwards; no temporary file, lock or
half-written output is left; what is saved is a valid diagnosis that `layoutdoctor.load` reads; standard error holds no
traceback of layoutdoctor's own.

- *Reported* stands on standard output or standard error, or in the saved record, word for word; "…" stands for any
  words; "-" means that the usual report says it all.
- *Kept* is what the record holds: configurations with their status, with times where it says so.
- *Left* is what stays besides the outputs: nothing, or the folder from which `--resume` continues.
- *Run*: `make test` runs the rows marked fast, `make test-all` all of them; "Python" calls `layoutdoctor.diagnose`.
"""
_COLUMNS = ("Fault", "Strikes at", "Reported", "Exit status", "Kept", "Left", "Run")
_WORDS = {"timed_out": "timed out", "ok": "ok"}
_WAYS = {"command": "command", "python": "Python"}


def render_page() -> str:
    """The whole page."""
    parts = [_HEAD.format(count=len(ROWS))]
    for chapter, rows in TABLE.items():
        lines = [f"## {chapter}", "", _line(_COLUMNS), _line(["---"] * len(_COLUMNS))]
        lines += [_line(_cells(row)) for row in rows]
        parts.append("\n".join(lines) + "\n")
    return "\n".join(parts)


def _cells(row: Fault) -> list[str]:
    return [
        f"**{row.name}**: {row.planted}",
        f"{row.at} of {row.of}" if row.of else row.at,
        f"`{row.says.replace(' ... ', ' … ')}`" if row.says else "-",
        f"{row.status}, then 0 with `--resume`" if row.is_resumed else str(row.status),
        _kept(row),
        "the folder of recordings" if row.is_resumed else "nothing",
        f"{_WAYS[row.way]}, {'slow' if row.is_slow else 'fast'}",
    ]


def _kept(row: Fault) -> str:
    """What the record holds, in words."""
    if not row.expected_trials:
        return "no configuration had been tried"
    return "; ".join(
        f"{name} {_WORDS.get(status, status)}{' with times' if name in row.expected_times else ''}"
        for name, status in row.expected_trials.items()
    )


def _line(cells: list[str] | tuple[str, ...]) -> str:
    return f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in cells)} |"
