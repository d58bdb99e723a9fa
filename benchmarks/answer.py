"""
Is the answer right? Networks that nobody here wrote, diagnosed, and timed by a plain script in fresh processes.

Each network is diagnosed by the command. Then every configuration of the whole space is written down as the lines that
a report would give, and run by a script that knows nothing of layoutdoctor: each in processes of its own, several
starts, in turns with torch.compile's default; then the default, what was recommended and the best several times more.
Prints what was recommended, what was promised, what the plain script saw of it, and the best that it saw at all.

    pip install transformers diffusers
    python benchmarks/answer.py --output answer.json
    python benchmarks/answer.py --networks resnet18 unet --modes inference

Runs beside nothing else; a network takes some minutes. What is done stays in the output file and is not done again.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path
from statistics import geometric_mean
from typing import TYPE_CHECKING, Any

import torch
from tabulate import tabulate
from torch import nn

if TYPE_CHECKING:
    from collections.abc import Callable

    from layoutdoctor.diagnosis.subject import Mode

HERE = Path(__file__).resolve()
MODES = ("inference", "training")
STARTS = 3
FURTHER_STARTS = 6
ROUNDS = 9
CALLS = 5
LONGEST_SECONDS = 3600.0


class FirstOutput(nn.Module):
    """A network of transformers or diffusers as a plain function of its image."""

    def __init__(self, model: nn.Module, *further: Any) -> None:
        super().__init__()
        self.model = model
        self.further = further

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        """The first thing it gives; images are ``[N, C, H, W]``."""
        first: torch.Tensor = self.model(images, *self.further, return_dict=False)[0]
        return first


def _transformers(kind: str, size: int = 128, **config: Any) -> Callable[[], tuple[nn.Module, tuple[torch.Tensor]]]:
    def make() -> tuple[nn.Module, tuple[torch.Tensor]]:
        import transformers

        model = getattr(transformers, f"{kind}Model")(getattr(transformers, f"{kind}Config")(**config))
        images = torch.randn(2, 3, size, size)
        _let_values_through(model, images)
        return FirstOutput(model), (images,)

    return make


def _let_values_through(model: nn.Module, images: torch.Tensor) -> None:
    """As they come, values of a deep network fade to subnormal numbers, which take many times as long."""
    norms = [module for module in model.modules() if isinstance(module, nn.BatchNorm2d)]
    momenta = [norm.momentum for norm in norms]
    for module in model.modules():
        if isinstance(module, (nn.Conv2d, nn.Linear)):
            nn.init.kaiming_normal_(module.weight)
    for norm in norms:
        norm.momentum = 1.0
    with torch.no_grad():
        model.train()(images)
    for norm, momentum in zip(norms, momenta, strict=True):
        norm.momentum = momentum
    model.eval()


def _unet() -> tuple[nn.Module, tuple[torch.Tensor]]:
    import diffusers

    channels, down, up = (32, 64, 128), ("DownBlock2D",) * 3, ("UpBlock2D",) * 3
    model = diffusers.UNet2DModel(block_out_channels=channels, down_block_types=down, up_block_types=up)
    return FirstOutput(model, 10), (torch.randn(2, 3, 64, 64),)


def _vae() -> tuple[nn.Module, tuple[torch.Tensor]]:
    import diffusers

    blocks = {"down_block_types": ("DownEncoderBlock2D",) * 3, "up_block_types": ("UpDecoderBlock2D",) * 3}
    model = diffusers.AutoencoderKL(block_out_channels=(32, 64, 64), **blocks)
    return FirstOutput(model), (torch.randn(1, 3, 96, 96),)


NETWORKS: dict[str, Callable[[], tuple[nn.Module, tuple[torch.Tensor]]]] = {
    "resnet18": _transformers("ResNet", hidden_sizes=[64, 128, 256, 512], depths=[2] * 4, layer_type="basic"),
    "resnet26": _transformers("ResNet", depths=[2] * 4),
    "mobilenet_v1": _transformers("MobileNetV1"),
    "mobilenet_v2": _transformers("MobileNetV2"),
    "regnet": _transformers("RegNet", hidden_sizes=[64, 128, 256, 512], depths=[1, 2, 4, 1], groups_width=32),
    "efficientnet": _transformers("EfficientNet", width_coefficient=1.0, depth_coefficient=1.0, hidden_dim=1280),
    "convnext": _transformers("ConvNext", depths=[1, 1, 3, 1], hidden_sizes=[64, 128, 256, 512]),
    "bit": _transformers("Bit", depths=[1, 2, 2, 1], hidden_sizes=[128, 256, 512, 1024]),
    "segformer": _transformers("Segformer"),
    "unet": _unet,
    "vae": _vae,
}

# What a user would run: the model, its input as its forward calls it, the lines to paste, and nothing of ours.
PLAIN = """
import sys, time
sys.path.insert(0, {folder!r})
import torch, answer
torch.manual_seed(0)
torch.set_num_threads({threads})
model, (images,) = answer.NETWORKS[{network!r}]()
training = {training}
model.train(training)
{lines}
def call():
    if training:
        model.zero_grad(set_to_none=True)
        out = model(images)
        out.backward(torch.ones_like(out))
    else:
        with torch.no_grad():
            model(images)
with torch._inductor.config.patch(freezing={freezing}):
    call()
for _ in range(5):
    call()
print("ready", flush=True)
for word in sys.stdin:
    times = []
    asleep = time.perf_counter()
    while time.perf_counter() - asleep < 0.1:
        call()
    for _ in range(int(word)):
        start = time.perf_counter()
        call()
        times.append(time.perf_counter() - start)
    print(min(times), flush=True)
"""


def main() -> None:
    """Diagnoses, times, and prints the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--networks", nargs="+", choices=NETWORKS, default=list(NETWORKS))
    parser.add_argument("--modes", nargs="+", choices=MODES, default=MODES)
    parser.add_argument("--starts", type=int, default=STARTS)
    parser.add_argument(
        "--within",
        type=float,
        metavar="SHARE",
        help="leave out what the diagnosis saw slower than the fastest by more than this, such as 0.15",
    )
    parser.add_argument("--output", type=Path, help="JSON file of what was done, gone on with where it is there")
    parser.add_argument("--reports", type=Path, help="folder where diagnoses stay, with a reproducer each")
    arguments = parser.parse_args()
    done: dict[str, Any] = {}
    if arguments.output is not None and arguments.output.exists():
        done = json.loads(arguments.output.read_text(encoding="utf-8"))
    for mode in arguments.modes:
        for network in arguments.networks:
            if f"{network}/{mode}" in done:
                continue
            done[f"{network}/{mode}"] = answered(network, mode, arguments.starts, arguments.reports, arguments.within)
            if arguments.output is not None:
                arguments.output.write_text(json.dumps(done, indent=1) + "\n", encoding="utf-8")
            print(_table(done), flush=True)
    print(_summary(done))


def answered(
    network: str, mode: Mode, starts: int, reports: Path | None = None, within: float | None = None
) -> dict[str, Any]:
    """What the command recommends of one network, and what a plain script sees of every configuration."""
    with tempfile.TemporaryDirectory() as name:
        folder = reports or Path(name)
        folder.mkdir(parents=True, exist_ok=True)
        target = folder / f"{network}.py"
        target.write_text(
            f"import sys; sys.path.insert(0, {str(HERE.parent)!r})\n"
            f"import answer\nget_module = answer.NETWORKS[{network!r}]\n",
            encoding="utf-8",
        )
        saved = folder / f"{network}.{mode}.json"
        command = [sys.executable, "-m", "layoutdoctor", "-q", str(target), "--mode", mode, "--output", str(saved)]
        if reports is not None:
            command += ["--force", "--output", str(saved.with_suffix(".md"))]
        # What was ended on the way has written what it had: that is no answer.
        if not saved.exists() or json.loads(saved.read_text(encoding="utf-8"))["interrupted"] is not None:
            ended = subprocess.run(command, capture_output=True, text=True, timeout=LONGEST_SECONDS, check=False)
            if not saved.exists():
                raise RuntimeError(f"{network} in {mode} ended with {ended.returncode}: {ended.stderr[-2000:]}")
        diagnosis = json.loads(saved.read_text(encoding="utf-8"))
    advice = diagnosis["recommendation"] or {}
    near = None if within is None else _near(diagnosis, within)
    found = times_of_all(network, mode, diagnosis, range(starts), near)
    middle = {name: statistics.median(times["inductor"] / times[name] for times in found) for name in found[0]}
    asked = {"inductor", advice.get("configuration") or "inductor", max(middle, key=lambda name: middle[name])}
    further = times_of_all(network, mode, diagnosis, range(starts, starts + FURTHER_STARTS), asked)
    ratios = {
        name: [times["inductor"] / times[name] for times in (*found, *further) if name in times] for name in found[0]
    }
    return {
        "recommended": advice.get("configuration"),
        "verified": advice.get("verified"),
        "reason": advice.get("reason"),
        "promised": (advice.get("speedup") or {}).get("median"),
        "promised_interval": [(advice.get("speedup") or {}).get(end) for end in ("low", "high")],
        "diagnosis_seconds": sum(diagnosis["stage_seconds"].values()),
        "ratios": {name: statistics.median(of) for name, of in ratios.items()},
        "start_ratios": ratios,
        "default_seconds": statistics.median(times["inductor"] for times in found),
        "torch": torch.__version__,
        "threads": torch.get_num_threads(),
    }


def _near(diagnosis: dict[str, Any], within: float) -> set[str]:
    """The default, and what the diagnosis saw about as fast as the fastest."""
    ratios = {one["name"]: one["median"] for one in (diagnosis["comparison"] or {}).get("ratios", ())}
    least = (1 - within) * max(1.0, *ratios.values())
    return {"inductor"} | {name for name, ratio in ratios.items() if ratio >= least}


def times_of_all(
    network: str, mode: Mode, diagnosis: dict[str, Any], starts: range, asked: set[str] | None = None
) -> list[dict[str, float]]:
    """
    Seconds of a call of every configuration, or of those that are asked for, in each start.

    A start is one process for each configuration, all of them ready before the first is timed. Each holds
    another amount of memory; the first start holds none.
    """
    from layoutdoctor.diagnosis.configurations import choose_configurations
    from layoutdoctor.examination.advice.applying import ModelCall, how_to_apply

    ran = {trial["configuration"]["name"]: trial["status"] for trial in diagnosis["trials"]}
    ranks, call = frozenset({4}), ModelCall("model(images)", {"images": 4})
    scripts = {}
    for configuration in choose_configurations("all", mode):
        if ran.get(configuration.name) not in ("failed", "crashed", "timed_out"):
            lines = how_to_apply(configuration, ranks, call)
            scripts[configuration.name] = _script(network, mode, lines, freezing=configuration.freezes)
    advice = diagnosis["recommendation"] or {}
    if advice.get("how") and advice["configuration"] not in scripts:  # a derived one: the lines of the report
        scripts[advice["configuration"]] = _script(network, mode, advice["how"], freezing="freezing" in advice["how"])
    found: list[dict[str, float]] = []
    for number in starts:
        names = sorted((name for name in scripts if asked is None or name in asked), reverse=bool(number % 2))
        counts = [(5 * number + at) % 41 if number else 0 for at in range(len(names))]
        held = [f"held = [bytes(100_000) for _ in range({count})]\n" for count in counts]
        chosen = [more + scripts[name] for more, name in zip(held, names, strict=True)]
        found.append(dict(zip(names, in_turns(chosen), strict=True)))
    return found


def _script(network: str, mode: Mode, lines: str, *, freezing: bool) -> str:
    return PLAIN.format(
        folder=str(HERE.parent),
        network=network,
        lines="import torch._inductor.config\n" + lines.split("\nwith torch.no_grad()")[0],
        threads=torch.get_num_threads(),
        training=mode == "training",
        freezing=freezing,
    )


def in_turns(scripts: list[str]) -> list[float]:
    """
    Median over the rounds of each script's shortest call; one runs while the others wait. Two get ready side by side.

    Args:
        scripts: Each says a line when it is ready, and after each number of calls that it is told the seconds.

    Raises:
        RuntimeError: One ended.
    """
    processes: list[subprocess.Popen[str]] = []
    seconds: list[list[float]] = [[] for _ in scripts]
    try:
        for script in scripts:
            processes.append(
                subprocess.Popen(
                    [sys.executable, "-c", script],
                    stdin=subprocess.PIPE,
                    stdout=subprocess.PIPE,
                    text=True,
                    env={**os.environ, "PYTHONWARNINGS": "ignore"},
                )
            )
            if len(processes) > 1:
                _answer_of(processes[-2])
        _answer_of(processes[-1])
        for number in range(ROUNDS):
            for position in list(range(len(processes)))[:: -1 if number % 2 else 1]:
                seconds[position].append(_turn(processes[position]))
    finally:
        for process in processes:
            process.kill()
            process.wait()
    return [statistics.median(times) for times in seconds]


def _turn(process: subprocess.Popen[str]) -> float:
    """Seconds of the shortest call, after some that are not timed: a process that slept is slow at first."""
    stdin = process.stdin
    assert stdin is not None
    stdin.write(f"{CALLS}\n")
    stdin.flush()
    return float(_answer_of(process))


def _answer_of(process: subprocess.Popen[str]) -> str:
    assert process.stdout is not None
    line = process.stdout.readline()
    if not line:
        raise RuntimeError(f"a plain script ended with status {process.wait()}")
    return line.strip()


def _rows(done: dict[str, Any]) -> list[list[Any]]:
    rows = []
    for name, answer in done.items():
        chosen = answer["recommended"] or "inductor"
        ratios = answer["ratios"]
        # A derived configuration, such as one with a cure, is not in the space that was tried plainly.
        seen = ratios.get(chosen)
        starts = answer["start_ratios"]
        most = max(map(len, starts.values()))
        # One start of many is the best by luck: the best is one of those that were started again.
        best = max((other for other in ratios if len(starts[other]) == most), key=lambda other: ratios[other])
        rows.append([name, chosen, answer["promised"], seen, best, ratios[best], answer["diagnosis_seconds"]])
    return rows


def _table(done: dict[str, Any]) -> str:
    headers = ["network", "recommended", "promised", "fresh", "best", "fresh", "seconds"]
    return tabulate(_rows(done), headers=headers, floatfmt=".2f")


def _summary(done: dict[str, Any]) -> str:
    lines = []
    for mode in MODES:
        rows = [row for row in _rows(done) if row[0].endswith(mode) and row[3] is not None]
        if not rows:
            continue
        regret = [row[5] / row[3] for row in rows]
        verified = [answer for name, answer in done.items() if name.endswith(mode) and answer["verified"]]
        seen = [statistics.median(answer["start_ratios"][answer["recommended"]]) for answer in verified]
        near = sum(abs(one["promised"] / ratio - 1) <= 0.05 for one, ratio in zip(verified, seen, strict=True))
        inside = sum(
            one["promised_interval"][0] <= ratio <= one["promised_interval"][1]
            for one, ratio in zip(verified, seen, strict=True)
        )
        lines.append(
            f"{mode}: {len(rows)} networks, {geometric_mean([row[3] for row in rows]):.2f}x the default (best possible "
            f"{geometric_mean([row[5] for row in rows]):.2f}x), regret {geometric_mean(regret):.3f}, "
            f"at most {max(regret):.3f}; "
            f"of {len(verified)} verified promises {near} within 5 %, {inside} with the plain ratio in their interval; "
            f"slower than the default: {sum(row[3] < 0.99 for row in rows)}"
        )
    return "\n".join(lines)


if __name__ == "__main__":
    main()
