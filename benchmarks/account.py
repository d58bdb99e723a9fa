"""
Does the account of a difference explain it? Networks that nobody here wrote, each in five configurations.

Each network is diagnosed by the command. Of each account in the diagnosis, the default against the recommended and
against faster eager code, where they differ by 10 % or more: the measured difference, how much of it is explained (all
but what stands outside kernels), and the row that contributes most, to be checked by hand.
Where they differ by less, the slowest and the fastest configuration are diagnosed once more, alone.

    pip install transformers diffusers
    python benchmarks/account.py --networks fire resnet18 unet --modes training

Runs beside nothing else; a network takes one to five minutes. ``--keep DIR`` keeps diagnoses and recordings.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

import answer
from tabulate import tabulate

import layoutdoctor
from layoutdoctor.reports.sections.account import row_name

if TYPE_CHECKING:
    from layoutdoctor.diagnosis.answer import Account
    from layoutdoctor.diagnosis.diagnosis import Diagnosis

CONFIGURATIONS = {
    "training": "eager,eager-channels-last,inductor,inductor-channels-last,inductor-layout-opt-off",
    "inference": "eager,eager-channels-last,inductor,inductor-channels-last,inductor-channels-last-freezing",
}
WORTH_EXPLAINING = 1.10


EXAMPLE = Path(__file__).resolve().parent.parent / "examples" / "fire_module.py"
NETWORKS = ("fire", *answer.NETWORKS)


def main() -> None:
    """Diagnoses, accounts, and prints the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--networks", nargs="+", choices=NETWORKS, default=list(NETWORKS))
    parser.add_argument("--modes", nargs="+", choices=answer.MODES, default=answer.MODES)
    parser.add_argument("--keep", type=Path, help="folder for diagnoses and recordings")
    arguments = parser.parse_args()
    rows = []
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch) if arguments.keep is None else arguments.keep
        folder.mkdir(parents=True, exist_ok=True)
        for mode in arguments.modes:
            for network in arguments.networks:
                diagnosis = _diagnosed(network, mode, folder, CONFIGURATIONS[mode])
                found = _accounts(diagnosis) or _accounts(_diagnosed(network, mode, folder, _extremes(diagnosis)))
                cells = [*map(_cells, found)] or [["no difference"]]
                rows += [[f"{network}/{mode}", *own] for own in cells]
                print(tabulate(rows, headers=_HEAD, floatfmt=".2f"), flush=True)


_HEAD = ["network", "slower", "faster", "slower ms", "faster ms", "difference", "explained", "most", "of it ms", "kind"]


def _extremes(diagnosis: Diagnosis) -> str:
    seconds = {t.name: t.measurement.median_seconds for t in diagnosis.trials if t.measurement is not None}
    ordered = sorted(seconds, key=lambda name: -seconds[name])
    return f"{ordered[0]},{ordered[-1]}"


def _diagnosed(network: str, mode: str, folder: Path, configurations: str) -> Diagnosis:
    name = f"{network}.{mode}"
    target, saved = folder / f"{network}.py", folder / f"{name}.json"
    if network == "fire":
        target = EXAMPLE
    else:
        answer.write_target(network, target)
    command = [sys.executable, "-m", "layoutdoctor", "-q", str(target), "--mode", mode, "--budget", "20", "--force"]
    command += ["--configurations", configurations, "--output", str(saved), "--save-recordings", str(folder / name)]
    ended = subprocess.run(command, capture_output=True, text=True, check=False, timeout=answer.LONGEST_SECONDS)
    if ended.returncode != 0:
        raise RuntimeError(f"{network} in {mode} was not diagnosed ({ended.returncode}): {ended.stderr[-2000:]}")
    return layoutdoctor.load(saved)


def _accounts(diagnosis: Diagnosis) -> list[Account]:
    return [each for each in diagnosis.accounts if each.slower_seconds >= WORTH_EXPLAINING * each.faster_seconds]


def _cells(found: Account) -> list[Any]:
    difference = found.slower_seconds - found.faster_seconds
    outside = sum(row.seconds for row in found.rows if row.kind == "outside_kernels")
    most = max(found.rows, key=lambda row: row.seconds)
    seconds = [1e3 * found.slower_seconds, 1e3 * found.faster_seconds, 1e3 * difference]
    explained = f"{100 * (1 - outside / difference):.0f} %"
    return [found.slower, found.faster, *seconds, explained, row_name(most), 1e3 * most.seconds, most.kind]


if __name__ == "__main__":
    main()
