"""
What torch.compile does with the memory layouts of networks that people run, lowered for a GPU that is not there.

Each network of ``atlas_networks.py`` is lowered with torch.compile's default, with channels_last and without layout
optimization; nothing runs. A row says what Inductor decided, what is converted in every call, the operation that costs
most of the format, and what was found. ``docs/atlas.json`` holds the rows; ``docs/atlas.md`` is made from it.

    python benchmarks/atlas.py --resume                             # what is done is not done again
    python benchmarks/atlas.py --networks resnet18 --modes training
    python benchmarks/atlas.py --page                               # only writes the page again
    python benchmarks/atlas.py --compare OLD.json                   # what another torch decides otherwise
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import sys
import time
from collections import defaultdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from atlas_networks import NETWORKS
from atlas_page import changes, write_page

from layoutdoctor.diagnosis.configurations import choose_configurations
from layoutdoctor.diagnosis.graph import base_name
from layoutdoctor.errors import LayoutDoctorError, first_line
from layoutdoctor.examination.counts import counted_conversions
from layoutdoctor.run.diagnose import diagnose_request
from layoutdoctor.run.watching import Watch
from layoutdoctor.workers.launcher import kept_launcher
from layoutdoctor.workers.messages import Request

if TYPE_CHECKING:
    from collections.abc import Iterable

    from layoutdoctor.diagnosis.diagnosis import Diagnosis
    from layoutdoctor.diagnosis.subject import SourceLocation
    from layoutdoctor.diagnosis.trial import Trial

Row = dict[str, Any]

HERE = Path(__file__).resolve().parent
ROWS = HERE.parent / "docs" / "atlas.json"
GPU = "cuda:90"
CONFIGURATIONS = "inductor,inductor-channels-last,inductor-layout-opt-off"
MODES = ("inference", "training")
KINDS = ("activation", "weight", "gradient")


def row_of(diagnosis: Diagnosis) -> Row:
    """
    What one diagnosis says, as it is committed.

    Conversions are ``[count, bytes]`` of each kind of tensor, for each configuration, without those fused into a kernel
    that computes as well. A configuration that failed has its reason instead.
    """
    default = diagnosis.trials[0]
    cards = [(graph.direction, graph.decision) for graph in default.graphs if graph.decision is not None]
    return {
        "convolutions": sum(card.convolution_count for _, card in cards),
        "decisions": [
            {
                "direction": direction,
                "applied": card.applied,
                "rule": card.rule,
                "convolutions": card.convolution_count,
                "channels_last": card.channels_last_convolution_count,
                "vetoing": len(card.deciding_nodes),
            }
            for direction, card in cards
            if card.convolution_count
        ],
        "conversions": {trial.name: _conversions(diagnosis, trial) for trial in diagnosis.trials},
        "dearest": next((found for trial in diagnosis.trials[:2] if (found := _dearest(trial)) is not None), None),
        "findings": sorted({finding.code for finding in diagnosis.findings}),
        "not_understood": sum(len(graph.not_understood) for graph in default.graphs),
        "graph_breaks": max((graph.graph_breaks for graph in default.graphs), default=0),
    }


def _conversions(diagnosis: Diagnosis, trial: Trial) -> Any:
    own = diagnosis.measured_trial(trial.name) or trial
    if own.failure is not None:
        return own.failure.message
    found = {kind: [0, 0] for kind in KINDS}
    for conversion in counted_conversions(own):
        amount = found.setdefault(conversion.tensor, [0, 0])
        amount[0] += conversion.count
        amount[1] += conversion.bytes_moved or 0
    return found


def _dearest(trial: Trial) -> Row | None:
    """
    The operation that costs most of the format, all its places added up.

    It is one at which a channels-last region ends without need and whose neighbours are converted for that; if there is
    none, one whose result, or whose input other than the caller's own, is converted. Fused conversions do not count.
    """
    counted = {conversion.id: conversion for conversion in counted_conversions(trial)}
    by_operation: dict[str, list[tuple[int, str]]] = defaultdict(list)
    for breaker in (breaker for graph in trial.graphs for breaker in graph.breakers):
        paid = [counted[one] for one in breaker.conversions if one in counted]
        if paid:
            cost = sum(conversion.bytes_moved or 0 for conversion in paid)
            by_operation[breaker.op].append((cost, _place(breaker.location)))
    if not by_operation:
        for conversion in counted.values():
            if conversion.tensor == "activation" and conversion.role != "entry" and conversion.op is not None:
                cost = conversion.bytes_moved or 0
                by_operation[base_name(conversion.op)].append((cost, _place(conversion.location)))
    if not by_operation:
        return None
    operation, places = max(by_operation.items(), key=lambda item: sum(cost for cost, _ in item[1]))
    return {
        "operation": operation,
        "place": max(places)[1],
        "count": len(places),
        "bytes": sum(cost for cost, _ in places),
        "configuration": trial.name,
    }


def _place(location: SourceLocation | None) -> str:
    return "" if location is None else f"{Path(location.file).name}:{location.line}"


def looked_at(name: str, mode: str, limit_seconds: float, reports: Path | None = None) -> Row:
    """
    The row of one network, with its reason if it fails.

    Args:
        limit_seconds: For one configuration, each of which has a process of its own.
        reports: A folder in which the diagnosis is saved; None keeps none.
    """
    network = NETWORKS[name]
    row: Row = {"network": name, "library": network.library, "mode": mode, "torch": torch.__version__}
    began = time.monotonic()
    request = Request(
        target=f"{HERE / 'atlas_networks.py'}:{name}",
        mode=mode,  # type: ignore[arg-type]
        configurations=choose_configurations(CONFIGURATIONS),
        lower_for=GPU,
        timeout_seconds=limit_seconds,
    )
    try:
        diagnosis = diagnose_request(kept_launcher(), request, Watch(lambda _: None))
    except LayoutDoctorError as error:
        row["failure"] = first_line(error)
    else:
        if reports is not None:
            reports.mkdir(parents=True, exist_ok=True)
            diagnosis.save(reports / f"{name}.{mode}.json")
        default = diagnosis.trials[0]
        row["inputs"] = [f"{one.dtype}[{','.join(map(str, one.shape))}]" for one in diagnosis.subject.inputs]
        if default.failure is not None:
            row["failure"] = default.failure.message
        else:
            row.update(row_of(diagnosis))
    row["seconds"] = round(time.monotonic() - began)
    return row


def is_installed(library: str) -> bool:
    """Whether a library that defines networks can be imported; torchvision's compiled part may be missing."""
    return importlib.util.find_spec(library.lower().replace("-", "_")) is not None


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--networks", nargs="+", choices=NETWORKS, default=list(NETWORKS), metavar="NETWORK")
    parser.add_argument("--modes", nargs="+", choices=MODES, default=MODES)
    parser.add_argument("--output", type=Path, default=ROWS, help="JSON file of the rows (default: docs/atlas.json)")
    parser.add_argument("--resume", action="store_true", help="keep the rows of this torch that did not fail")
    parser.add_argument("--limit", type=float, default=600.0, metavar="SECONDS", help="for one configuration")
    parser.add_argument("--reports", type=Path, metavar="FOLDER", help="keep the diagnoses there")
    parser.add_argument("--page", action="store_true", help="only write the page of the rows again")
    parser.add_argument(
        "--compare", type=Path, metavar="OLD", help="only say what differs from the rows of another file"
    )
    arguments = parser.parse_args()
    rows = read_rows(arguments.output) if arguments.output.exists() else []
    if arguments.compare is not None:
        print("\n".join(changes(read_rows(arguments.compare), rows)) or "nothing differs")
        return
    if not arguments.page:
        asked = [(name, mode) for mode in MODES for name in arguments.networks if mode in NETWORKS[name].modes]
        asked = [(name, mode) for name, mode in asked if mode in arguments.modes]
        missing = sorted({library for name, _ in asked if not is_installed(library := NETWORKS[name].library)})
        if missing:
            print(f"left out, as they are not installed: {', '.join(missing)}", file=sys.stderr)
            asked = [(name, mode) for name, mode in asked if NETWORKS[name].library not in missing]
        if arguments.resume:
            done = {(row["network"], row["mode"]) for row in rows if _is_kept(row)}
            asked = [one for one in asked if one not in done]
        for name, mode in asked:
            row = looked_at(name, mode, arguments.limit, arguments.reports)
            rows = [one for one in rows if (one["network"], one["mode"]) != (name, mode)] + [row]
            write_rows(arguments.output, rows)
            print(f"{name} {mode}: {row.get('failure') or 'done'}, {row['seconds']} s", flush=True)
    if arguments.output == ROWS:
        write_page(read_rows(ROWS), HERE.parent / "docs")  # in the order of the networks


def _is_kept(row: Row) -> bool:
    return row["torch"] == torch.__version__ and "failure" not in row


def read_rows(path: Path) -> list[Row]:
    """The rows of a file, in their order."""
    rows: list[Row] = json.loads(path.read_text(encoding="utf-8"))
    return rows


def write_rows(path: Path, rows: Iterable[Row]) -> None:
    """Writes one line for each row, in the order of the networks."""
    names = list(NETWORKS)
    ordered = sorted(
        rows, key=lambda row: (names.index(row["network"]) if row["network"] in names else -1, row["mode"])
    )
    lines = ",\n".join(json.dumps(row, separators=(",", ":")) for row in ordered)
    unfinished = path.with_suffix(".part")
    unfinished.write_text(f"[\n{lines}\n]\n", encoding="utf-8")
    unfinished.replace(path)


if __name__ == "__main__":
    main()
