"""
Is layoutdoctor right on a GPU? Recorded there once, examined anywhere, compared in one table.

    python benchmarks/gpu.py record OUT           where the GPU is, again until it exits with 0 (75: time is up)
    python benchmarks/gpu.py examine OUT          anywhere, without torch
    python benchmarks/gpu.py compare OUT          anywhere: Markdown

``record`` works through networks x modes x element types, the most telling first. Each is diagnosed in a process of its
own (``OUT/ITEM``: ``diagnosis.json``, ``recordings``, ``traces``), timed by a plain loop that knows nothing of
layoutdoctor (``plain.json``), and lowered without the GPU (``static``). ``OUT/manifest.json`` says what is done, where
and by which command; what failed is kept there with its error.

``examine`` looks at every recording again and writes ``OUT/examined.json``: conversions against a count by the names in
the raw trace, round trips against what is gone under another configuration, graphs against the static lowering.
"""

from __future__ import annotations

import argparse
import contextlib
import gzip
import json
import math
import os
import re
import shutil
import signal
import statistics
import subprocess
import sys
import time
from collections import Counter
from dataclasses import dataclass
from itertools import zip_longest
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from layoutdoctor import Diagnosis, Trial
    from layoutdoctor.diagnosis.layout import Layout
    from layoutdoctor.diagnosis.records import Conversion, Graph

ROOT = Path(__file__).resolve().parents[1]
GOES_ON = 75
LEAST_SECONDS = 30.0
ENDED = "it was begun three times, and ended with this script"
LIMIT_SECONDS = {"diagnosis": 900.0, "plain": 450.0, "static": 240.0}
"""How long a step may take; the processor computes what ``static`` traces, which large networks make long."""
TOLERANCE, RESOLUTION = 0.2, 0.01
"""A saving is as promised within 20 % of it; 1 % of a step is none."""
TARGETS = ("cuda:80", "cuda:89", "cuda:90", "cuda:100")
STATIC_CONFIGURATIONS = "inductor,inductor-layout-opt-off,inductor-channels-last"


@dataclass(frozen=True)
class Network:
    """A network to look at, and its input."""

    name: str
    target: str  # as ``layoutdoctor diagnose`` takes it
    shape: tuple[int, ...]
    small: tuple[int, ...]  # where the script is only tried
    kinds: tuple[str, ...] = ("bf16",)  # element types, or ``autocast``, which the network enters by itself
    is_last: bool = False  # whether the input is in channels_last or channels_last_3d


def _own(name: str, function: str, *more: Any, **options: Any) -> Network:
    return Network(name, f"benchmarks/gpu_networks.py:{function}", *more, **options)


def _case(file: str, shape: tuple[int, ...], small: tuple[int, ...] = (1, 3, 32, 32)) -> Network:
    return Network(f"case-{file.replace('_', '-')}", f"tests/casebook/{file}.py", shape, small, ("fp32",))


VIDEO, IMAGES = ((4, 8, 64, 256, 256), (2, 8, 4, 16, 16)), ((64, 3, 224, 224), (2, 3, 32, 32))
FIRST = (
    _own("conv3d-stack-channels-last", "conv3d_stack_autocast", *VIDEO, ("autocast",), is_last=True),
    _own("conv3d-stack-channels-last-input", "conv3d_stack", *VIDEO, is_last=True),
    _own("conv3d-stack", "conv3d_stack", *VIDEO),
)
"""In both modes before anything else."""
OTHERS = (
    _own("unet", "unet_autocast", (8, 3, 256, 256), (2, 3, 32, 32), ("autocast",)),
    _own("conv-chain", "conv_chain", *IMAGES, ("bf16", "fp32", "fp16")),
    Network("resnet50", "torchvision:resnet50", *IMAGES),
    Network("r3d-18", "torchvision:r3d_18", (8, 3, 16, 112, 112), (1, 3, 4, 32, 32)),
    _own("grouped-among-dense", "grouped_among_dense", (32, 64, 56, 56), (2, 64, 14, 14), ("fp16",)),
    _own("vae-decoder", "vae_decoder", (4, 4, 64, 64), (1, 4, 8, 8)),
    _own("conv-transpose", "conv_transpose", (16, 256, 32, 32), (1, 256, 4, 4)),
    _own("unet", "UNet", (8, 3, 256, 256), (2, 3, 32, 32)),
    _case("09_no_global_winner", (16, 3, 128, 128)),
    _case("15_instance_norm", (16, 3, 256, 256)),
    _case("25_conv1d_stack", (32, 2048, 128), (2, 64, 128)),
    _case("29_layernorm2d_flips_network", (32, 3, 512, 512)),
    _case("30_unet_in_out_channels", (16, 3, 256, 256)),
    _case("32_user_contiguous_calls", (32, 3, 224, 224)),
    _case("36_depthwise_mobile", (64, 3, 224, 224)),
    _case("38_half_precision_backbone", (8, 3, 512, 512), (1, 3, 64, 64)),
    Network("convnext-tiny", "timm:convnext_tiny", *IMAGES),
    Network("efficientnet-b0", "timm:efficientnet_b0", *IMAGES),
    Network("regnety-016", "timm:regnety_016", *IMAGES),
)


def items() -> dict[str, tuple[Network, str, str]]:
    """Network, mode and element type of everything to record, by ``network/mode/kind``, the most telling first."""
    order = [(networks, mode) for networks in (FIRST, OTHERS) for mode in ("inference", "training")]
    return {
        f"{network.name}/{mode}/{kind}": (network, mode, kind)
        for networks, mode in order
        for network in networks
        for kind in network.kinds
    }


# Recording: each step in a process of its own, what is there is not done again.


def record(arguments: argparse.Namespace) -> int:
    """Does every step that is not done, as long as there is time."""
    deadline = time.monotonic() + arguments.seconds
    out: Path = arguments.out.resolve()
    out.mkdir(parents=True, exist_ok=True)
    described = subprocess.run(_itself("describe", out, arguments), stdout=subprocess.PIPE, check=False)
    if described.returncode:
        return 2
    machine = {**json.loads(described.stdout), "small": arguments.small}
    file = out / "manifest.json"
    empty = {"machine": machine, "calls": [], "steps": {}, "begun": {}}
    manifest: dict[str, Any] = read_json(file) if file.exists() else empty
    if any(manifest["machine"][key] != machine[key] for key in ("device", "small")):
        print(f"cannot record in {str(out)!r}: it was begun on another device or in other sizes", file=sys.stderr)
        return 2
    manifest["calls"].append({"command": " ".join(sys.argv), **machine})
    is_first = True
    for name, command in _planned(out, machine, arguments):
        done = manifest["steps"].get(name)
        if done is not None and not (arguments.again and done["error"]):
            continue
        left = deadline - time.monotonic()
        if left < (0 if is_first else LEAST_SECONDS):
            break
        begun = manifest["begun"][name] = manifest["begun"].get(name, 0) + 1
        write_json(file, manifest)
        start = time.monotonic()
        item, _, step = name.rpartition(" ")
        error = ENDED if begun > 3 else _run(command, out / _folder(item), step, min(left, LIMIT_SECONDS[step]))
        seconds = time.monotonic() - start
        is_cut = error is not None and left <= min(seconds, LIMIT_SECONDS[step])
        if is_cut and not is_first:
            del manifest["begun"][name]  # the next call gives it the whole time
        if is_cut and (not is_first or begun < 3):
            break
        del manifest["begun"][name]
        manifest["steps"][name] = {"seconds": round(seconds, 1), "error": error}
        write_json(file, manifest)
        is_first = False
        print(f"{name}: {error or 'done'} ({seconds:.1f} s)", flush=True)
    else:
        return 0
    write_json(file, manifest)
    print("time is up: call again", flush=True)
    return GOES_ON


def _planned(out: Path, machine: Mapping[str, Any], arguments: argparse.Namespace) -> Iterator[tuple[str, list[str]]]:
    """``item step`` and its command."""
    only = [word for word in arguments.only.split(",") if word]
    for item, (network, mode, kind) in items().items():
        if only and not any(word in item for word in only):
            continue
        folder = out / _folder(item)
        diagnose = _diagnose(network, mode, kind, arguments)
        options = ["--device", arguments.device, "--save-traces", str(folder / "traces"), "--resume"]
        options += [str(folder / "journal"), "--output", str(folder / "diagnosis.json"), "--save-recordings"]
        options += [str(folder / "recordings"), "--budget", "2" if arguments.small else "10"]
        yield f"{item} diagnosis", [*diagnose, *options]
        yield f"{item} plain", _itself("time", folder, arguments, "--only", item)
        if machine["target"] is not None and kind != "autocast":  # a processor traces an autocast of its own
            static = ["--target", machine["target"], "--configurations", STATIC_CONFIGURATIONS]
            static += ["--save-recordings", str(folder / "static")]
            yield f"{item} static", [*diagnose, *static]


def _diagnose(network: Network, mode: str, kind: str, arguments: argparse.Namespace) -> list[str]:
    shape = ",".join(map(str, network.small if arguments.small else network.shape))
    given = f"f32[{shape}]" + ":channels_last" * network.is_last
    command = [sys.executable, "-m", "layoutdoctor", "diagnose", network.target, "--input", given, "--mode", mode]
    is_cast = arguments.device != "cpu" and kind in ("bf16", "fp16")
    return [*command, "-q", "--force", *(["--dtype", kind.replace("fp", "f")] if is_cast else [])]


def _itself(command: str, folder: Path, arguments: argparse.Namespace, *more: str) -> list[str]:
    size = ["--small"] * arguments.small
    return [sys.executable, __file__, command, str(folder), "--device", arguments.device, *size, *more]


def _run(command: list[str], folder: Path, step: str, limit: float) -> str | None:
    """Runs a step; what went wrong in a sentence, None where nothing did."""
    folder.mkdir(parents=True, exist_ok=True)
    log = folder / f"{step}.log"
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, (str(ROOT), os.environ.get("PYTHONPATH"))))}
    with log.open("w", encoding="utf-8") as stream:
        print(" ".join(command), file=stream, flush=True)
        process = subprocess.Popen(
            command, stdout=stream, stderr=stream, cwd=ROOT, env=environment, start_new_session=True
        )
        try:
            status = process.wait(limit)
        except subprocess.TimeoutExpired:
            _end(process)
            return f"it took longer than {limit:.0f} s"
        except BaseException:
            _end(process)
            raise
    if status == 0 or (status == 4 and step != "plain"):  # 4: examined, and nothing could be concluded
        shutil.rmtree(folder / "journal", ignore_errors=True)
        return None
    said = [line for line in log.read_text(encoding="utf-8", errors="replace").splitlines() if line.strip()]
    return f"exit status {status}: {said[-1][:300]}"


def _end(process: subprocess.Popen[bytes]) -> None:
    """The process and what it started, first asked and then made to."""
    with contextlib.suppress(ProcessLookupError, subprocess.TimeoutExpired):
        os.killpg(process.pid, signal.SIGTERM)
        process.wait(20)
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def _folder(item: str) -> str:
    return item.replace("/", ".")


def read_json(file: Path) -> Any:
    """What a file holds."""
    return json.loads(file.read_text(encoding="utf-8"))


def write_json(file: Path, value: Any) -> None:
    """Replaces a file whole."""
    scratch = file.with_suffix(".part")
    scratch.write_text(json.dumps(value, indent=1) + "\n", encoding="utf-8")
    scratch.replace(file)


# What runs on the device, in processes of its own: torch, and nothing of layoutdoctor.


def describe(arguments: argparse.Namespace) -> int:
    """Prints the machine as JSON."""
    import torch

    machine = {"device": arguments.device, "name": "a processor", "torch": torch.__version__, "target": "cuda:90"}
    machine |= {"python": sys.version.split()[0], "date": time.strftime("%Y-%m-%d", time.gmtime())}
    if arguments.device == "cuda":
        if not torch.cuda.is_available():
            print("cannot record on cuda: torch sees no GPU; try --device cpu --small", file=sys.stderr)
            return 2
        target = "cuda:{}{}".format(*torch.cuda.get_device_capability())
        query = ["nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader"]
        driver = (
            subprocess.run(query, capture_output=True, text=True, check=False).stdout if shutil.which(query[0]) else ""
        )
        machine |= {"name": torch.cuda.get_device_name(), "driver": driver.strip(), "cuda": torch.version.cuda}
        machine |= {"cudnn": torch.backends.cudnn.version(), "target": target if target in TARGETS else None}
    print(json.dumps(machine))
    return 0


PLAIN: dict[str, tuple[bool, dict[str, Any] | None]] = {
    "eager": (False, None),
    "eager-channels-last": (True, None),
    "inductor": (False, {}),
    "inductor-channels-last": (True, {}),
    "inductor-layout-opt-off": (False, {"layout_optimization": False}),
    "inductor-layout-opt-on": (False, {"layout_optimization": True}),
    "inductor-channels-last-opt-off": (True, {"layout_optimization": False}),
}
"""Configurations by hand: whether all is in channels_last, and options of ``torch.compile``."""


def time_plainly(arguments: argparse.Namespace) -> int:
    """Times a network as somebody would by hand: a few lines of torch, events of the device, one after the other."""
    import torch

    network, mode, kind = items()[arguments.only]
    torch.manual_seed(0)
    model = _build(network.target).to(arguments.device)
    x = torch.randn(network.small if arguments.small else network.shape, device=arguments.device)
    if arguments.device != "cpu" and kind in ("bf16", "fp16"):
        dtype = {"bf16": torch.bfloat16, "fp16": torch.float16}[kind]
        model, x = model.to(dtype), x.to(dtype)
    if network.is_last:
        x = _channels_last(x)
    steps: dict[str, Callable[[], None]] = {}
    result: dict[str, Any] = {"seconds": {}, "do_bench_seconds": {}, "errors": {}}
    for name in PLAIN:
        try:
            step = _plain_step(name, model, x, mode)
            for _ in range(3):
                step()
            steps[name] = step
        except Exception as error:  # a configuration that fails costs only itself
            result["errors"][name] = f"{type(error).__name__}: {(str(error).splitlines() or [''])[0][:200]}"
    if not steps:
        raise SystemExit(f"nothing runs: {result['errors']['eager']}")
    seconds = result["seconds"] = {name: [] for name in steps}
    calls = {name: max(1, min(50, int(0.005 / max(_block(step, 1), 1e-6)))) for name, step in steps.items()}
    until = time.monotonic() + (2.0 if arguments.small else 10.0)
    order = list(steps)
    for number in range(100):
        if number >= 10 and time.monotonic() > until:
            break
        for name in order[number % len(order) :] + order[: number % len(order)]:
            seconds[name].append(_block(steps[name], calls[name]))
    if arguments.device == "cuda":
        from triton.testing import do_bench

        for name, step in steps.items():
            result["do_bench_seconds"][name] = do_bench(step, return_mode="median") * 1e-3
    write_json(arguments.out / "plain.json", result)
    return 0


def _build(target: str) -> Any:
    import importlib.util

    where, _, name = target.partition(":")
    if where == "timm":
        import timm

        return timm.create_model(name, pretrained=False)
    if where == "torchvision":
        import torchvision

        return torchvision.models.get_model(name, weights=None)
    spec: Any = importlib.util.spec_from_file_location("network", ROOT / where)
    module: Any = importlib.util.module_from_spec(spec)
    sys.modules["network"] = module  # dynamo looks the globals of what it inlines up by the module's name
    spec.loader.exec_module(module)
    return getattr(module, name)() if name else module.Model(*module.get_init_inputs())


def _channels_last(tensor: Any) -> Any:
    import torch

    formats = {4: torch.channels_last, 5: torch.channels_last_3d}
    return tensor.to(memory_format=formats[tensor.dim()]) if tensor.dim() in formats else tensor


def _plain_step(name: str, model: Any, x: Any, mode: str) -> Callable[[], None]:
    import copy

    import torch

    is_last, options = PLAIN[name]
    own, given = copy.deepcopy(model).train(mode == "training"), x.clone()
    if is_last:
        for tensor in [*own.parameters(), *own.buffers()]:
            tensor.data = _channels_last(tensor.data)
        given = _channels_last(given)
    run = own if options is None else torch.compile(own, options=options)
    gradients: list[Any] = []

    def train() -> None:
        output = run(given)
        if not gradients:
            gradients.append(torch.randn_like(output))
        output.backward(gradients[0])
        own.zero_grad(set_to_none=True)

    def infer() -> None:
        with torch.no_grad():
            run(given)

    return train if mode == "training" else infer


def _block(step: Callable[[], None], calls: int) -> float:
    """Seconds of one call, on average over some without a pause."""
    import torch

    if not torch.cuda.is_initialized():
        start = time.perf_counter()
        for _ in range(calls):
            step()
        return (time.perf_counter() - start) / calls
    begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    begin.record()
    for _ in range(calls):
        step()
    end.record()
    end.synchronize()
    return float(begin.elapsed_time(end)) * 1e-3 / calls


# Counting by hand, in the raw trace, by a few names.

LIBRARY = re.compile(
    r"(nchwToNhwc|nhwcToNchw|nchwToNhwc3To4|nchwToFoldedNhwc)Kernel"  # cuDNN, any namespace
    r"|^batched_transpose_\d+x\d+_\w+|^transpose_(NCHW2CNHW|CNHW2NCHW)_\w+|^general_4d_reorder_\w+"  # MIOpen
)
ANNOTATED = re.compile(r"^layoutdoctor::.*::(cpp_\w+)$")
"""On a processor a generated kernel has no event; the range around it stands for it."""
LOOKS_LIKE_ONE = re.compile(r"nhwc|nchw|transpose|permut|reorder|transform|padding|folded|convertTensor", re.IGNORECASE)


def count_kernels(trace: Path) -> tuple[Counter[str], float, Counter[str]]:
    """
    Counts the conversions of a trace.

    Returns:
        Launches of the library's conversions by kernel, their seconds, and launches of every kernel by its name.
    """
    conversions: Counter[str] = Counter()
    kernels: Counter[str] = Counter()
    seconds = 0.0
    for event in events_of(trace):
        name = str(event.get("name", ""))
        if annotated := ANNOTATED.match(name):
            kernels[annotated[1]] += 1
        elif event.get("ph") == "X" and str(event.get("cat", "")).lower() == "kernel":
            kernels[name] += 1
            if found := LIBRARY.search(name):
                conversions[found[0]] += 1
                seconds += float(event.get("dur", 0)) * 1e-6
    return conversions, seconds, kernels


def events_of(trace: Path) -> list[dict[str, Any]]:
    """All events of a Chrome trace, gzipped or not."""
    data = trace.read_bytes()
    document = json.loads(gzip.decompress(data) if data.startswith(b"\x1f\x8b") else data)
    return [event for event in (document["traceEvents"] if isinstance(document, dict) else document) if event]


# Examining: what the recordings prove, held against the count, the static lowering and each other.


def examine(arguments: argparse.Namespace) -> int:
    """Examines every recording again and writes what agrees and what does not."""
    out: Path = arguments.out
    found: dict[str, Any] = {}
    manifest = read_json(out / "manifest.json")
    for item in dict.fromkeys(name.rpartition(" ")[0] for name in manifest["steps"]):
        folder = out / _folder(item)
        try:
            found[item] = examine_item(folder, is_gpu=manifest["machine"]["device"] != "cpu")
        except Exception as error:  # an item costs only itself
            found[item] = {"error": f"{type(error).__name__}: {str(error)[:300]}"}
        print(f"{item}: {found[item].get('error') or '; '.join(found[item]['problems']) or 'agrees'}", flush=True)
    write_json(out / "examined.json", found)
    return 0


def examine_item(folder: Path, *, is_gpu: bool) -> dict[str, Any]:
    """Everything about one network in one mode and element type."""
    import layoutdoctor

    diagnosis = _examined(folder / "recordings")
    saved = folder / "diagnosis.json"
    before = {trial.name: trial for trial in layoutdoctor.load(saved).trials} if saved.exists() else {}
    counts: dict[str, dict[str, Any]] = {}
    problems: list[str] = []
    for trial in diagnosis.trials:
        found: list[str] = []
        if trial.failure is not None:
            found.append(f"{trial.status}: {trial.failure.message}")
        if trial.name in before and _conversions(before[trial.name]) != _conversions(trial):
            found.append("examined otherwise than on the day")
        trace = folder / "traces" / f"{trial.name}.json.gz"
        if trial.same_as is None and trace.exists():
            counts[trial.name] = compare_counts(trial, trace)
            found += counts[trial.name].pop("problems")
        problems += [f"{trial.name}: {problem}" for problem in found]
    pairs = {name: round_trips(diagnosis, name, counts) for name in ("eager", "inductor")}
    problems += [f"{name}: {one['problem']}" for name, one in pairs.items() if one["problem"]]
    result: dict[str, Any] = {"counts": counts, "round_trips": pairs}
    if is_gpu and (folder / "static").is_dir():
        result["lowering"] = compare_lowerings(_examined(folder / "static"), diagnosis)
        problems += [f"static lowering: {text}" for text in result["lowering"]["differences"][:3]]
    return {**result, "problems": problems}


def _examined(folder: Path) -> Diagnosis:
    from layoutdoctor.recording.saved import load_recording
    from layoutdoctor.run.recorded import diagnose_recordings

    files = sorted(folder.glob("*.recording"))
    if not files:
        raise FileNotFoundError(f"nothing was recorded in {folder.name}")
    return diagnose_recordings([load_recording(file) for file in files])


def _conversions(trial: Trial) -> tuple[Any, ...]:
    library = trial.kernels.conversions if trial.kernels is not None else ()
    return library, tuple(graph.conversions for graph in trial.graphs), trial.redundant_pairs


def compare_counts(trial: Trial, trace: Path) -> dict[str, Any]:
    """A configuration's conversions three ways: from its recording, from its trace alone, and by hand."""
    import layoutdoctor

    conversions, seconds, kernels = count_kernels(trace)
    sides = [_of_library(one) for one in (trial, layoutdoctor.examine_trace(trace).trials[0])]
    listed, alone = (Counter(name for one, name in side for _ in range(one.count)) for side in sides)
    told = sum(one.seconds or 0.0 for one, _ in sides[0])
    generated = {one.kernel for graph in trial.graphs for one in graph.conversions if one.owner == "compiler"}
    absent = sorted(kernel for kernel in generated if kernel is not None and kernel not in kernels)
    problems = [f"Inductor's {', '.join(absent)} did not run"] if absent and kernels else []
    if not listed == alone == conversions:
        problems.append(f"listed {dict(listed)}, in the trace {dict(alone)}, by hand {dict(conversions)}")
    if not math.isclose(told, seconds, rel_tol=0.01, abs_tol=1e-6):
        problems.append(f"conversions take {told:.3g} s, by hand {seconds:.3g} s")
    return {
        "kernels": kernels.total(),
        "listed": dict(listed),
        "by_hand": dict(conversions),
        "generated": len(generated),
        "look_alikes": sorted(
            name[:160] for name in kernels if LOOKS_LIKE_ONE.search(name) and not LIBRARY.search(name)
        ),
        "problems": problems,
    }


def _of_library(trial: Trial) -> list[tuple[Conversion, str]]:
    """What cuDNN or MIOpen converts, and by which kernel; oneDNN's have other names, and are in no trace."""
    conversions = trial.kernels.conversions if trial.kernels is not None else ()
    return [(one, found[0]) for one in conversions if (found := LIBRARY.search(one.kernel or ""))]


def round_trips(diagnosis: Diagnosis, baseline: str, counts: Mapping[str, Mapping[str, Any]]) -> dict[str, Any]:
    """Whether the library's round trips are gone, by hand, under the configuration of which fewest are told."""
    told = {trial.name: _library_pairs(trial) for trial in diagnosis.trials if trial.name in counts}
    result: dict[str, Any] = {"told": told.get(baseline, 0), "cure": None, "gone": None, "problem": None}
    if not result["told"]:
        return result
    backend = {trial.name: trial.configuration.backend for trial in diagnosis.trials}
    cure = min((name for name in told if backend[name] == backend[baseline]), key=lambda name: told[name])
    before, after = (sum(counts[name]["by_hand"].values()) for name in (baseline, cure))
    result |= {"cure": cure, "gone": before - after}
    if before - after < 2 * (told[baseline] - told[cure]):
        fewer = f"{told[baseline] - told[cure]} round trips fewer are told of {cure}"
        result["problem"] = f"{fewer}, which has {after} conversions by hand, not {before}"
    return result


def _library_pairs(trial: Trial) -> int:
    known = {one.id for one, _ in _of_library(trial)}
    return sum(pair.first in known and pair.second in known for pair in trial.redundant_pairs)


def compare_lowerings(static: Diagnosis, real: Diagnosis) -> dict[str, Any]:
    """The graphs as lowered for a target against those that the device compiled."""
    compared: Counter[str] = Counter()
    differences: list[str] = []
    for name in (trial.name for trial in static.trials):
        trials = [one for one in (static.measured_trial(name), real.measured_trial(name)) if one is not None]
        failures = [trial.failure.message for trial in trials if trial.failure is not None]
        if len(trials) < 2 or failures:
            differences += [f"{name} cannot be compared: {message}" for message in failures]
            continue
        for graphs in zip_longest(*(sorted(trial.graphs, key=lambda graph: graph.direction) for trial in trials)):
            ours, theirs = ({} if graph is None else _graph_facts(graph) for graph in graphs)
            for kind, what in {**ours, **theirs}:
                told, found = ours.get((kind, what)), theirs.get((kind, what))
                compared[kind] += 1
                if told != found:
                    compared[f"{kind} differing"] += 1
                    differences.append(f"{name}, {kind} {what}: {told} against {found}")
    return {"compared": dict(compared), "differences": differences[:100]}


def _graph_facts(graph: Graph) -> dict[tuple[str, str], Any]:
    facts: dict[tuple[str, str], Any] = {}
    if (decision := graph.decision) is not None:
        counts = decision.convolution_count, decision.channels_last_convolution_count
        facts["decision", graph.direction] = (decision.applied, decision.rule, *counts)
    calls = [node for node in graph.nodes if node.op == "call_function"]
    facts |= {("node", one.name): (one.target, one.dtype, _strides(one.layout)) for one in calls}
    facts |= {("buffer", one.name): (one.dtype, _strides(one.layout), one.is_removed) for one in graph.buffers}
    for number, one in enumerate(graph.conversions):
        facts["conversion", f"{number} of {one.node}"] = (one.owner, one.tensor, one.direction, one.fused)
    return facts


def _strides(layout: Layout | None) -> Any:
    """Sizes and strides; a stride along a dimension of one element says nothing."""
    if layout is None or layout.stride is None:
        return None
    return [(size, stride * (size != 1)) for size, stride in zip(layout.shape, layout.stride, strict=True)]


# Comparing: one table, what disagrees first.


def compare(arguments: argparse.Namespace) -> int:
    """Prints the table."""
    out: Path = arguments.out
    manifest, examined = read_json(out / "manifest.json"), read_json(out / "examined.json")
    rows = [row_of(item, out / _folder(item), found) for item, found in examined.items()]
    rows.sort(key=lambda row: -len(row[-1]))
    header = ["item", "recommended", "promised / plain / do_bench", "fastest by hand", "conversions listed / by hand"]
    header += ["round trips told / conversions gone", "static decisions that agree", "disagrees"]
    machine = ", ".join(f"{key} {value}" for key, value in manifest["machine"].items() if value is not None)
    lines = [f"{machine}.", ""]
    for cells in (header, ["---"] * len(header), *([*row[:-1], "; ".join(row[-1]) or "-"] for row in rows)):
        lines.append(f"| {' | '.join(cell.replace('|', '/').replace(chr(10), ' ') for cell in cells)} |")
    steps = manifest["steps"]
    lines += ["", *(f"- {name}: {step['error']}" for name, step in steps.items() if step["error"])]
    missing = [name for name in items() if f"{name} diagnosis" not in steps]
    lines += [f"- not recorded yet: {len(missing)} of {len(items())}"] if missing else []
    print("\n".join(lines).rstrip())
    return 0


def row_of(item: str, folder: Path, found: Mapping[str, Any]) -> list[Any]:
    """The cells of an item; the last one is a list of what disagrees."""
    if "error" in found:
        return [item, *["-"] * 6, [found["error"]]]
    problems = list(found["problems"])
    counts, pairs = found["counts"].values(), found["round_trips"].values()
    listed, by_hand = (sum(sum(count[key].values()) for count in counts) for key in ("listed", "by_hand"))
    gone = [f"{one['told']} / {one['gone']}" for one in pairs if one["told"]]
    compared = found.get("lowering", {}).get("compared", {})
    agreeing = compared.get("decision", 0) - compared.get("decision differing", 0)
    return [
        item,
        *_times(folder, problems),
        f"{listed} / {by_hand}",
        ", ".join(gone) or "-",
        f"{agreeing} of {compared['decision']}" if "decision" in compared else "-",
        problems,
    ]


def _times(folder: Path, problems: list[str]) -> list[str]:
    """What is recommended, the ratios, and the fastest; adds the promises that were not kept."""
    files = folder / "diagnosis.json", folder / "plain.json"
    if not all(file.exists() for file in files):
        return ["-", "-", "-"]
    diagnosis, plain = map(read_json, files)
    chosen = diagnosis["recommendation"] or {}
    name, seconds = chosen.get("configuration"), plain["seconds"]
    problems += [f"{one} by hand: {error}" for one, error in plain["errors"].items()]
    wrong = {
        trial["configuration"]["name"]
        for trial in diagnosis["trials"]
        if (trial["equivalence"] or {}).get("status") == "different"
    }
    # The luckiest of equals is not faster: one half of the rounds chooses, the other one judges.
    even = {one: statistics.median(rounds[::2]) for one, rounds in seconds.items() if one not in wrong}
    fastest = min(even, key=lambda one: even[one], default=None)
    if name not in seconds or "inductor" not in seconds or fastest is None:
        return [name or "-", "-", fastest or "-"]
    promised = chosen["speedup"]["median"] if chosen["speedup"] is not None else 1.0
    measured = _ratio(seconds["inductor"], seconds[name])
    if abs((1 - 1 / promised) - (1 - 1 / measured)) > max(TOLERANCE * abs(1 - 1 / measured), RESOLUTION):
        problems.append(f"{name} was promised to be {promised:.2f}x as fast and is {measured:.2f}x")
    regret = _ratio(seconds[name][1::2], seconds[fastest][1::2]) - 1
    if regret > RESOLUTION:
        problems.append(f"{fastest} is {regret:.1%} faster than {name}")
    bench = plain["do_bench_seconds"]
    third = f" / {bench['inductor'] / bench[name]:.2f}" if bench else ""
    return [name, f"{promised:.2f} / {measured:.2f}{third}", fastest]


def _ratio(over: list[float], under: list[float]) -> float:
    return statistics.median(one / other for one, other in zip(over, under, strict=True))


def main() -> int:
    commands = {"record": record, "examine": examine, "compare": compare, "time": time_plainly, "describe": describe}
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("command", choices=commands, help="record calls time and describe by itself")
    parser.add_argument("out", type=Path, help="a folder; what is there already is not done again")
    parser.add_argument("--device", default="cuda", choices=("cuda", "cpu"))
    parser.add_argument("--small", action="store_true", help="small inputs: tries the script, proves nothing")
    parser.add_argument("--seconds", type=float, default=480.0, help="how long to record (default: %(default)g)")
    parser.add_argument("--only", default="", help="parts of items' names, separated by commas")
    parser.add_argument("--again", action="store_true", help="try what failed once more")
    arguments = parser.parse_args()
    return commands[arguments.command](arguments)


if __name__ == "__main__":
    sys.exit(main())
