"""
The results of a run as Markdown: what was claimed, what was confirmed, and plainly what is missing or failed.

    python benchmarks/gpu/tables.py OUT > tables.md

Reads whatever of the parts' files there is in ``OUT``; needs neither torch nor a GPU. The goals: every conversion
confirmed and none missed, every pair gone when it was removed, savings promised within 20 % of those measured, a regret
of at most 1 %. ``**no**`` marks what misses its goal, a dash what could not be asked.
"""

from __future__ import annotations

import argparse
import json
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

PARTS = ("diagnoses", "target_check", "launch_grid", "timers", "winners")
PROMISE_TOLERANCE = 0.2
LEAST_SAVING = 0.01
"""Savings below this share of a step count as none, promised or measured."""
MOST_REGRET = 0.01
PEAK_TOLERANCE = 0.05
MOST_NAMED = 20

Item = dict[str, Any]


def render(output: Path) -> str:
    """
    Everything there is, as Markdown.

    Args:
        output: The directory with the parts' results.
    """
    records = {name: _read(output / f"{name}.json") for name in PARTS}
    lines = _heading(records)
    diagnoses = records["diagnoses"]
    if isinstance(diagnoses, dict):
        items = {name: item for name, item in diagnoses["items"].items() if "error" not in item}
        lines += [*_networks(items), *_headlines(items), *_pairs(items), *_disagreements(items), *_memory(items)]
    for name in PARTS[1:]:
        record = records[name]
        if isinstance(record, dict):
            lines += _plain_table(name, record["items"])
    return "\n".join([*lines, *_missing(records)]) + "\n"


def _read(file: Path) -> dict[str, Any] | str:
    """A part's results, or why there are none."""
    try:
        record = json.loads(file.read_text(encoding="utf-8"))
        return {**record, "items": dict(record["items"])}
    except FileNotFoundError:
        return "was not run"
    except (OSError, ValueError, KeyError, TypeError) as error:
        return f"cannot be read: {type(error).__name__}: {error}"


def _heading(records: Mapping[str, dict[str, Any] | str]) -> list[str]:
    found = {
        tuple(f"{key} {value}" for key, value in record.get("environment", {}).items() if value is not None)
        for record in records.values()
        if isinstance(record, dict)
    }
    lines = ["## Truth on a GPU", "", *(", ".join(one) + "." for one in sorted(found))]
    if any(isinstance(record, dict) and record.get("small") for record in records.values()):
        lines += ["", "**Small shapes: this tries the programs and proves nothing.**"]
    return lines


def conversion_verdict(item: Item) -> tuple[int, int, int]:
    """
    Conversions of all configurations of a network.

    Args:
        item: A result of ``diagnoses``.

    Returns:
        How many the diagnoses list, how many of these every other way of counting confirms, and how many there are
        that a diagnosis or ``examine_trace`` does not list.
    """
    found = confirmed = missed = 0
    for one in item["conversions"].values():
        live, examined, counted = (Counter(one[key]) for key in ("live", "examined", "counted"))
        found += live.total() + one["compiler"]
        confirmed += (live & examined & counted).total() + one["compiler_present"]
        missed += max((counted - live).total(), (counted - examined).total())
    return found, confirmed, missed


def pair_verdict(item: Item) -> tuple[int, int, int]:
    """
    Redundant pairs of ``eager`` and ``inductor``.

    Args:
        item: A result of ``diagnoses``.

    Returns:
        How many were claimed, how many of them could be removed, and how many of these were gone.
    """
    claimed = removable = confirmed = 0
    for one in item["removal"].values():
        claimed += one["claimed"]
        if one["confirmed"] is not None:
            removable += one["claimed"]
            confirmed += one["confirmed"]
    return claimed, removable, confirmed


def savings(item: Item) -> tuple[float, float] | None:
    """
    What the recommendation saves of the step under torch.compile's default: promised, and measured by hand.

    Args:
        item: A result of ``diagnoses``.
    """
    timing = item["timing"]
    if not timing.get("speedup_promised") or not timing.get("speedup_measured"):
        return None
    return 1 - 1 / timing["speedup_promised"], 1 - 1 / timing["speedup_measured"]


def is_kept(promised: float, measured: float) -> bool:
    """
    Whether a promise was kept within 20 %.

    Args:
        promised: Share of the step, or seconds over it.
        measured: Likewise.
    """
    small = max(abs(promised), abs(measured)) < LEAST_SAVING
    return small or abs(promised - measured) <= PROMISE_TOLERANCE * abs(measured)


def _networks(items: Mapping[str, Item]) -> list[str]:
    rows = []
    reached: Counter[str] = Counter()
    asked: Counter[str] = Counter()
    for name, item in items.items():
        found, confirmed, missed = conversion_verdict(item)
        claimed, removable, gone = pair_verdict(item)
        saved, timing = savings(item), item["timing"]
        regret = timing.get("regret")
        verdicts = {
            "conversions": found == confirmed and not missed if _has_kernels(item) else None,
            "pairs": removable == gone if removable else None,
            "promise": is_kept(*saved) if saved is not None else None,
            "regret": regret <= MOST_REGRET if regret is not None else None,
        }
        for goal, verdict in verdicts.items():
            asked[goal] += verdict is not None
            reached[goal] += verdict is True
        rows.append(
            [
                name,
                _mark(f"{found} / {confirmed}" + (f", {missed} missed" if missed else ""), verdicts["conversions"]),
                _mark(f"{claimed} / {gone}" if removable else f"{claimed} / -", verdicts["pairs"]),
                _mark(f"{_percent(saved[0])} / {_percent(saved[1])}" if saved else "-", verdicts["promise"]),
                timing.get("fastest_told") or "-",
                timing.get("fastest") or "-",
                _mark(_percent(regret) if regret is not None else "-", verdicts["regret"]),
            ]
        )
    header = ["network", "conversions found / confirmed", "pairs claimed / confirmed by removal"]
    header += ["saving promised / measured", "fastest by layoutdoctor", "by exhaustive timing", "regret"]
    goals = ("conversions", "pairs", "promise", "regret")
    summary = ", ".join(f"{goal} {reached[goal]} of {asked[goal]}" for goal in goals)
    return ["", "### Per network", "", *_table(header, rows), "", f"Goals reached: {summary}."]


def _has_kernels(item: Item) -> bool:
    return any(one["kernel_count"] for one in item["conversions"].values())


def _headlines(items: Mapping[str, Item]) -> list[str]:
    rows, blame = [], []
    for name, item in items.items():
        if not name.startswith("conv3d-stack") or not item["headline"]["compiled_over_eager"]:
            continue
        headline, saved = item["headline"], item["timing"].get("speedup_measured")
        rows.append(
            [
                name,
                f"{headline['compiled_over_eager']:.2f}",
                headline["recommended"] or "-",
                f"{saved:.2f}x" if saved else "-",
            ]
        )
        blame += [f"- {name}: {sentence}" for sentence in headline["blamed"]]
    if not rows:
        return []
    header = ["Conv3d stack", "compiled / eager", "recommended", "faster than compiled, measured"]
    return ["", "### Eager against compiled", "", *_table(header, rows), "", "Who is to blame:", "", *blame]


def _pairs(items: Mapping[str, Item]) -> list[str]:
    rows = []
    for name, item in items.items():
        for baseline, one in item["removal"].items():
            if not one["claimed"]:
                continue
            step = one.get("baseline_seconds")
            promised = one["promised_seconds"] / step if step else None
            kernels = one["kernel_seconds_saved"] / step if step and "kernel_seconds_saved" in one else None
            measured = one["saved_seconds"] / step if step else None
            confirmed = one["confirmed"]
            rows.append(
                [
                    f"{name} {baseline}",
                    one["cure"] or "-",
                    str(one["claimed"]),
                    _mark(str(confirmed), confirmed == one["claimed"]) if confirmed is not None else one["why_not"],
                    *(_percent(value) if value is not None else "-" for value in (promised, kernels, measured)),
                ]
            )
    header = ["configuration", "cured by", "pairs", "gone", "promised", "conversions saved", "step saved"]
    return ["", "### Redundant pairs, removed", "", *_table(header, rows)] if rows else []


def _disagreements(items: Mapping[str, Item]) -> list[str]:
    lines: list[str] = []
    look_alikes: set[str] = set()
    for name, item in items.items():
        for configuration, one in item["conversions"].items():
            live, examined, counted = (Counter(one[key]) for key in ("live", "examined", "counted"))
            if not live == examined == counted:
                lines.append(
                    f"- {name} {configuration}: listed {dict(live)}, in the trace {dict(examined)}, "
                    f"by name {dict(counted)}"
                )
            if one["absent"]:
                lines.append(f"- {name} {configuration}: conversions of Inductor that did not run: {one['absent']}")
            if one["candidates"]:
                lines.append(f"- {name} {configuration}: only move elements, not listed: {one['candidates']}")
            look_alikes |= set(one["look_alikes"])
        for configuration, trial in item["trials"].items():
            if trial["failure"]:
                lines.append(f"- {name} {configuration}: {trial['status']}: {trial['failure']}")
        lines += [f"- {name} {which} by hand: {why}" for which, why in item["timing"]["errors"].items()]
        if item["timing"]["wrong_outputs"]:
            lines.append(f"- {name}: other outputs than the reference: {', '.join(item['timing']['wrong_outputs'])}")
    if look_alikes:
        lines += ["- names with a layout in them that count as no conversion:"]
        lines += [f"    - `{kernel}`" for kernel in sorted(look_alikes)]
    return ["", "### What does not agree", "", *(lines or ["Nothing."])]


def _memory(items: Mapping[str, Item]) -> list[str]:
    compared = [
        (name, configuration, told / measured - 1)
        for name, item in items.items()
        for configuration, (measured, told) in item["timing"]["peak_memory_bytes"].items()
        if measured and told is not None
    ]
    if not compared:
        return []
    off = sorted((entry for entry in compared if abs(entry[2]) > PEAK_TOLERANCE), key=lambda entry: -abs(entry[2]))
    lines = [f"- {name} {configuration}: {share:+.1%}" for name, configuration, share in off]
    within = f"{len(compared) - len(off)} of {len(compared)} within {PEAK_TOLERANCE:.0%} of what torch counts."
    return ["", "### Peak memory told", "", within, "", *lines]


def _plain_table(name: str, items: Mapping[str, Item]) -> list[str]:
    """Another part's items: each one's summary, else every field that fits into a cell."""
    summaries = {key: item["summary"] for key, item in items.items() if "summary" in item}
    if summaries:
        return ["", f"### {name}", "", *_table(["item", "result"], list(map(list, summaries.items())))]
    flat = {key: _cells(item) for key, item in items.items() if "error" not in item}
    columns = list(dict.fromkeys(column for cells in flat.values() for column in cells))
    if not columns:
        return []
    rows = [[key, *(cells.get(column, "-") for column in columns)] for key, cells in flat.items()]
    return ["", f"### {name}", "", *_table(["item", *columns], rows)]


def _cells(item: Mapping[str, Any], prefix: str = "") -> dict[str, str]:
    cells: dict[str, str] = {}
    for key, value in item.items():
        if isinstance(value, dict) and not prefix:
            cells |= _cells(value, f"{key} ")
        elif isinstance(value, bool):
            cells[prefix + key] = "yes" if value else "no"
        elif isinstance(value, float):
            cells[prefix + key] = f"{value:.4g}"
        elif isinstance(value, int) or (isinstance(value, str) and len(value) <= 40):
            cells[prefix + key] = str(value)
    cells.pop("item_seconds", None)
    return cells


def _missing(records: Mapping[str, dict[str, Any] | str]) -> list[str]:
    lines = []
    for part, record in records.items():
        if isinstance(record, str):
            lines.append(f"- {part}: {record}")
            continue
        items = record["items"]
        left = [name for name in record.get("names", ()) if name not in items]
        if left:
            named = ", ".join(left[:MOST_NAMED]) + (" ..." if len(left) > MOST_NAMED else "")
            lines.append(f"- {part}: {len(left)} of {len(record['names'])} not run: {named}")
        lines += [f"- {part}: {name} failed: {item['error']}" for name, item in items.items() if "error" in item]
        traces = sum(item.get("traces_left_out", 0) for item in items.values())
        if traces:
            lines.append(f"- {part}: {traces} traces were too large to be kept")
    return ["", "### Missing", "", *(lines or ["Nothing."])]


def _table(header: Sequence[str], rows: Iterable[Sequence[str]]) -> list[str]:
    cells = [header, ["---"] * len(header), *rows]
    return [f"| {' | '.join(cell.replace('|', '/').replace(chr(10), ' ') for cell in row)} |" for row in cells]


def _percent(share: float) -> str:
    return f"{share:.1%}"


def _mark(text: str, verdict: bool | None) -> str:
    return f"{text} **no**" if verdict is False else text


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("output", type=Path, help="directory with the results")
    print(render(parser.parse_args().output), end="")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
