"""
What an allocator that keeps its memory brings: torch.compile's default with glibc's limits as they are and lifted.

Each network of ``answer.py`` in processes of its own, the two settings in turns, several starts of each. Prints page
faults and seconds of a call, and the ratio (LD308 names what to set).

    pip install transformers diffusers
    python benchmarks/kept_memory.py --networks resnet18 unet --modes inference training
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
from pathlib import Path

import answer
import torch
from tabulate import tabulate

KEPT = {"MALLOC_TRIM_THRESHOLD_": "4294967296", "MALLOC_MMAP_MAX_": "0"}
STARTS = 3
ONE = (
    answer.CALLED
    + """
import resource
for _ in range(6):
    call()
begin = time.perf_counter()
while time.perf_counter() - begin < 1:
    call()
times, before = [], resource.getrusage(resource.RUSAGE_SELF).ru_minflt
for _ in range({calls}):
    start = time.perf_counter()
    call()
    times.append(time.perf_counter() - start)
faults = (resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before) / {calls}
print(sorted(times)[{calls} // 2], faults)
"""
)
CALLS = 21


def main() -> None:
    """Prints one row for each network and mode as soon as it is known, then the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--networks", nargs="+", choices=answer.NETWORKS, default=["resnet18", "mobilenet_v2", "unet"])
    parser.add_argument("--modes", nargs="+", choices=answer.MODES, default=answer.MODES)
    parser.add_argument("--starts", type=int, default=STARTS)
    arguments = parser.parse_args()
    rows = []
    for network in arguments.networks:
        for mode in arguments.modes:
            rows.append(measured(network, mode, arguments.starts))
            print(*rows[-1], flush=True)
    headers = ["network", "ms", "faults a call", "ms, kept", "faults", "ratio", "of each start"]
    print(tabulate(rows, headers, floatfmt=".1f"))


def measured(network: str, mode: str, starts: int) -> tuple[str, float, float, float, float, str, str]:
    """Milliseconds and faults of a call as it is and with memory kept, and the ratio: medians over the starts."""
    pairs = [(_one(network, mode, {}), _one(network, mode, KEPT)) for _ in range(starts)]
    ratios = [plain[0] / kept[0] for plain, kept in pairs]
    ms, faults, kept_ms, kept_faults = (
        statistics.median(pair[side][part] * scale for pair in pairs)
        for side in (0, 1)
        for part, scale in ((0, 1e3), (1, 1))
    )
    each = ", ".join(f"{ratio:.2f}" for ratio in ratios)
    return f"{network}, {mode}", ms, faults, kept_ms, kept_faults, f"{statistics.median(ratios):.2f}", each


def _one(network: str, mode: str, settings: dict[str, str]) -> tuple[float, float]:
    code = ONE.format(
        folder=str(Path(__file__).parent),
        network=network,
        training=mode == "training",
        threads=torch.get_num_threads(),
        lines="model = torch.compile(model)",
        calls=CALLS,
    )
    environment = {**os.environ, "PYTHONWARNINGS": "ignore", **settings}
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, env=environment)
    seconds, faults = map(float, ended.stdout.split()[-2:])
    return seconds, faults


if __name__ == "__main__":
    main()
