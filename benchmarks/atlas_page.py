"""The page of the atlas: sentences, a picture and a table, each made from the rows; what differs between two sets."""

from __future__ import annotations

import math
from collections import Counter
from typing import TYPE_CHECKING, Any

from layoutdoctor.units import format_bytes

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence
    from pathlib import Path

Row = dict[str, Any]

PAGE, PICTURE = "atlas.md", "atlas.svg"
TABLE_BEGINS, TABLE_ENDS = "<!-- rows -->\n", "<!-- end of rows -->\n"
SUMMARY_BEGINS, SUMMARY_ENDS = "<!-- summary -->\n", "<!-- end of summary -->\n"
DEFAULT, CHANNELS_LAST, OFF = "inductor", "inductor-channels-last", "inductor-layout-opt-off"
SHORT = {DEFAULT: "default", CHANNELS_LAST: "channels_last", OFF: "optimization off"}
COLOURS = {DEFAULT: "#c2410c", CHANNELS_LAST: "#0369a1", OFF: "#64748b"}
MIB = 2**20


# ------------------------------------------------------------------------------------------------- facts of one row
def bytes_of(row: Row, configuration: str, *kinds: str) -> int | None:
    """Bytes that conversions move in a call, of some kinds of tensors or of all; None if the configuration failed."""
    found = row["conversions"][configuration]
    return None if isinstance(found, str) else sum(found[kind][1] for kind in kinds or found)


def vetoes(row: Row) -> tuple[str, ...]:
    """The rules by which layout optimization is off for a graph of the inference or of the forward."""
    ahead = [one for one in row["decisions"] if one["direction"] != "backward"]
    return tuple(sorted({one["rule"] for one in ahead if one["applied"] is False}))


def leaves_backward_out(row: Row) -> bool:
    """Whether layout optimization is on in the forward and off in the backward."""
    backward = [one for one in row["decisions"] if one["direction"] == "backward"]
    return bool(row["decisions"]) and not vetoes(row) and any(one["applied"] is False for one in backward)


def least(row: Row) -> tuple[str, ...]:
    """The configurations that move the fewest bytes."""
    moved = {name: bytes_of(row, name) for name in row["conversions"]}
    known = {name: amount for name, amount in moved.items() if amount is not None}
    return tuple(name for name, amount in known.items() if amount == min(known.values()))


# ------------------------------------------------------------------------------------------------------- sentences
def summary(rows: Sequence[Row]) -> list[str]:
    """The five sentences with which the page opens."""
    done = [row for row in rows if "failure" not in row]
    inference = [row for row in done if row["mode"] == "inference"]
    training = [row for row in done if row["mode"] == "training"]
    converting = [amount for row in inference if (amount := bytes_of(row, DEFAULT))]
    weights = sum(bool(bytes_of(row, DEFAULT, "weight")) for row in inference)
    left_out = sum(leaves_backward_out(row) for row in training)
    fewer, more = (sum(_gain(row) * sign > 0 for row in inference) for sign in (1, -1))
    return [
        f"{len(inference)} networks were lowered in inference, {len(training)} of them in training as well"
        f"{f'; {failed} could not be' if (failed := len(rows) - len(done)) else ''}.",
        f"In inference torch.compile's default converts something in every call of {len(converting)} networks"
        f"{f' ({format_bytes(max(converting))} at most)' if converting else ''}, and weights in {weights} of them.",
        f"Layout optimization is off in inference in {_by_rule(inference)} and in the forward of training in "
        f"{_by_rule(training)}; in training it is on in the forward and leaves the backward out in {left_out} of "
        f"{len(training)}.",
        f"The operation that costs most of the format is {_operations(done)}.",
        f"In inference {fewer} networks convert fewer bytes with channels_last than with the default, and {more} "
        f"convert more bytes. {_won(inference, OFF)} convert the fewest bytes with layout optimization off; what cuDNN "
        "converts then is not counted.",
    ]


def _gain(row: Row) -> int:
    """Bytes that channels_last converts less than the default; 0 if one of the two failed."""
    default, channels_last = (bytes_of(row, name) for name in (DEFAULT, CHANNELS_LAST))
    return 0 if default is None or channels_last is None else default - channels_last


def _counted(count: int, noun: str) -> str:
    return f"{count} {noun}" if count == 1 else f"{count} {noun}s"


def _by_rule(rows: Sequence[Row]) -> str:
    """Networks that a rule vetoes, by rule; the names are those of the decision card."""
    counts = Counter(rule for row in rows for rule in vetoes(row))
    named = ", ".join(f"`{rule}` {count}" for rule, count in counts.most_common())
    return f"{sum(bool(vetoes(row)) for row in rows)} of {len(rows)}" + (f" ({named})" if named else "")


def _operations(rows: Sequence[Row]) -> str:
    networks: dict[str, set[str]] = {}
    for row in rows:
        if row["dearest"] is not None:
            networks.setdefault(row["dearest"]["operation"], set()).add(row["network"])
    most = sorted(networks.items(), key=lambda item: (-len(item[1]), item[0]))[:4]
    if not most:
        return "none: no network has one"
    words = [f"`{operation}` in {_counted(len(found), 'network')}" for operation, found in most]
    without = len({row["network"] for row in rows} - set().union(*networks.values()))
    rest = len(networks) - len(most)
    more = f" and {_counted(rest, 'other operation')}" if rest else ""
    return f"{', '.join(words)}{more}; in {_counted(without, 'network')} no operation does"


def _won(rows: Iterable[Row], configuration: str) -> int:
    return sum(configuration in least(row) for row in rows)


# ----------------------------------------------------------------------------------------------------------- table
HEADERS = (
    "network", "mode", "convolutions", "layout optimization", "activations", "weights", "gradients",
    "costs most of the format", "fewest bytes", "findings",
)  # fmt: skip


def table(rows: Iterable[Row]) -> str:
    """One line for each row; for a failure its reason."""
    lines = [HEADERS, ("---",) * len(HEADERS), *map(_cells, rows)]
    return "\n".join(f"| {' | '.join(cells)} |" for cells in lines)


def _cells(row: Row) -> tuple[str, ...]:
    if "failure" in row:
        return row["network"], row["mode"], "", f"failed: {row['failure']}".replace("|", "/"), *[""] * 6
    return (
        row["network"],
        row["mode"],
        str(row["convolutions"]),
        _decision(row),
        *(_amount(row["conversions"][DEFAULT], kind) for kind in ("activation", "weight", "gradient")),
        _dearest(row["dearest"]),
        _fewest(row),
        " ".join(row["findings"]),
    )


def _decision(row: Row) -> str:
    if not row["decisions"]:
        return "no convolution"
    words = []
    for side in dict.fromkeys(one["direction"] for one in row["decisions"]):
        cards = [one for one in row["decisions"] if one["direction"] == side]
        reached, count = (sum(one[name] for one in cards) for name in ("channels_last", "convolutions"))
        rules = sorted({one["rule"] for one in cards if not one["applied"]})
        said = f"off: {', '.join(rules)}" if rules and not reached else f"{reached} of {count}"
        graphs = f" in {len(cards)} graphs" if len(cards) > 1 else ""
        words.append(f"{'' if side == 'inference' else f'{side} '}{said}{graphs}")
    return "; ".join(words)


def _amount(conversions: Row | str, kind: str) -> str:
    if isinstance(conversions, str):
        return "failed"
    count, moved = conversions[kind]
    return f"{count}, {format_bytes(moved)}" if count else ""


def _dearest(found: Row | None) -> str:
    if found is None:
        return ""
    more = f" and {found['count'] - 1} more" if found["count"] > 1 else ""
    given = "" if found["configuration"] == DEFAULT else f" ({SHORT[found['configuration']]})"
    return f"{found['operation']}, {found['place']}{more}{given}"


def _fewest(row: Row) -> str:
    names = least(row)
    if len(names) == len(row["conversions"]):
        return "all equal"
    amount = bytes_of(row, names[0])
    return f"{', '.join(SHORT[name] for name in names)}: {format_bytes(amount) if amount else 'nothing'}"


# --------------------------------------------------------------------------------------------------------- picture
ROW, LEFT, WIDTH, TOP = 14, 210, 860, 46


def picture(rows: Iterable[Row]) -> str:
    """
    A line for each network in inference: MiB converted in a call with each configuration, on a logarithmic axis.

    What moves less than 0.01 MiB is drawn at the left end.
    """
    shown = [row for row in rows if "failure" not in row and row["mode"] == "inference"]
    shown.sort(key=lambda row: (-max(bytes_of(row, name) or 0 for name in row["conversions"]), row["network"]))
    height = TOP + ROW * len(shown) + 10
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" font-family="sans-serif" '
        'font-size="10">',
        f'<rect width="{WIDTH}" height="{height}" fill="#ffffff"/>',
        '<text x="8" y="14" font-size="12" fill="#0f172a">MiB converted in each call in inference</text>',
    ]
    for number, name in enumerate((OFF, CHANNELS_LAST, DEFAULT)):
        left = 330 + number * 140
        parts.append(f'<circle cx="{left}" cy="10" r="4" fill="{COLOURS[name]}"/>')
        parts.append(f'<text x="{left + 8}" y="14" fill="#0f172a">{SHORT[name]}</text>')
    for power in range(-2, 5):
        x = _x(10.0**power * MIB)
        parts.append(f'<line x1="{x}" y1="{TOP - 8}" x2="{x}" y2="{height - 8}" stroke="#e2e8f0"/>')
        words = "0" if power == -2 else f"{10.0**power:g}"
        parts.append(f'<text x="{x}" y="{TOP - 12}" text-anchor="middle" fill="#475569">{words}</text>')
    for number, row in enumerate(shown):
        y = TOP + ROW * number + ROW // 2
        parts.append(f'<text x="{LEFT - 10}" y="{y + 3}" text-anchor="end" fill="#0f172a">{row["network"]}</text>')
        places = {name: _x(bytes_of(row, name) or 0) for name in row["conversions"] if bytes_of(row, name) is not None}
        parts.append(
            f'<line x1="{min(places.values())}" y1="{y}" x2="{max(places.values())}" y2="{y}" stroke="#cbd5e1"/>'
        )
        parts += [
            f'<circle cx="{places[name]}" cy="{y}" r="{radius}" fill="{COLOURS[name]}"/>'
            for name, radius in ((OFF, 5), (CHANNELS_LAST, 4), (DEFAULT, 3))
            if name in places
        ]
    return "\n".join((*parts, "</svg>\n"))


def _x(moved: float) -> float:
    share = (math.log10(max(moved / MIB, 0.01)) + 2) / 6
    return round(LEFT + min(share, 1.0) * (WIDTH - LEFT - 20), 1)


# ------------------------------------------------------------------------------------------------------------ page
def page(text: str, rows: Sequence[Row]) -> str:
    """The page with what the rows say now between its marks."""
    sentences = " ".join(summary(rows)) + "\n"
    text = _between(text, SUMMARY_BEGINS, SUMMARY_ENDS, sentences)
    return _between(text, TABLE_BEGINS, TABLE_ENDS, "\n" + table(rows) + "\n\n")


def _between(text: str, begins: str, ends: str, new: str) -> str:
    before, _, rest = text.partition(begins)
    _, found, after = rest.partition(ends)
    if not found:
        raise ValueError(f"cannot write the page: expected the marks {begins.strip()} and {ends.strip()}, once each")
    return before + begins + new + ends + after


def write_page(rows: Sequence[Row], docs: Path) -> None:
    """Writes page and picture of the rows again."""
    file = docs / PAGE
    file.write_text(page(file.read_text(encoding="utf-8"), rows), encoding="utf-8")
    (docs / "images" / PICTURE).write_text(picture(rows), encoding="utf-8")


# ------------------------------------------------------------------------------------------------- two sets of rows
FACTS: dict[str, Callable[[Row], Any]] = {
    "layout optimization": _decision,
    "conversions": lambda row: {
        SHORT[name]: found if isinstance(found, str) else {kind: count for kind, (count, _) in found.items()}
        for name, found in row["conversions"].items()
    },
    "costs most of the format": lambda row: _dearest(row["dearest"]),
    "findings": lambda row: " ".join(row["findings"]),
}


def changes(old: Sequence[Row], new: Sequence[Row]) -> list[str]:
    """The changes in the new rows, one line each; rows that only one of the two has are left out."""
    before = {(row["network"], row["mode"]): row for row in old}
    lines = []
    for row in new:
        other = before.get((row["network"], row["mode"]))
        if other is None:
            continue
        where = f"{row['network']} {row['mode']}, torch {other['torch']} to {row['torch']}"
        if "failure" in row or "failure" in other:
            reasons = [one.get("failure", "lowered") for one in (other, row)]
            if reasons[0] != reasons[1]:
                lines.append(f"{where}: {reasons[0]} -> {reasons[1]}")
            continue
        lines += [
            f"{where}: {name}: {fact(other)} -> {fact(row)}" for name, fact in FACTS.items() if fact(other) != fact(row)
        ]
    return lines
