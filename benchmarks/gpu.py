"""
What a GPU does, and what layoutdoctor says of it: one command that can be resumed.

    python benchmarks/gpu.py run OUT --plan next [--seconds 560]          on the machine with the GPU
    python benchmarks/gpu.py run OUT --plan second --done OLD/manifest.json
    python benchmarks/gpu.py run OUT --plan next --device cpu --small     tries the program, proves nothing
    python benchmarks/gpu.py compare OUT [OLD ...]   anywhere, without torch: RIGHT or WRONG, line by line
    python benchmarks/gpu.py fixtures OUT FOLDER     anywhere, without torch: small recordings beside the truth

*Truth* is plain torch in a process of its own and imports nothing of layoutdoctor. *Product* is the command
``python -m layoutdoctor``; only its JSON is read. *Profile* is a loop of steps, built as for the truth, inside
``layoutdoctor.profile()``. After each item ``run`` writes OUT again: eight files, no folders.
"""

from __future__ import annotations

import argparse
import contextlib
import copy
import gzip
import io
import json
import os
import re
import signal
import statistics
import subprocess
import sys
import tarfile
import tempfile
import time
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any
from unittest import mock

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping

ROOT = Path(__file__).resolve().parents[1]
MOST_BYTES, MOST_FIXTURE_BYTES = 15 << 20, 1_000_000
MODES = ("inference", "training")
KINDS = ("logs", "products", "traces", *(f"recordings.{mode}" for mode in MODES))

FOUR = "eager,eager-channels-last,inductor,inductor-channels-last"
SETS = {
    "two": "eager,eager-channels-last",
    "few": "inductor,inductor-channels-last,inductor-channels-last-freezing",
    "four": FOUR,
    "six": FOUR + ",inductor-layout-opt-off,inductor-channels-last-opt-off",
    "frozen": FOUR + ",inductor-channels-last-freezing",
    "plain": "eager,inductor",
    "compiled": "inductor,inductor-channels-last",
    "graphs": FOUR + ",inductor+cudagraphs",
    "tuned": FOUR + ",inductor+max-autotune,inductor-channels-last+max-autotune,inductor-channels-last+cudagraphs",
}
PLANS = ("next", "second", "third")
PROFILED_STEPS = 3


@dataclass(frozen=True)
class Item:
    """
    A line of a plan.

    Attributes:
        what: ``probe``, ``truth``, ``product``, ``profile`` or ``static`` (the product's lowering without a GPU).
    """

    name: str
    what: str
    mode: str
    configurations: str
    seconds: float

    @property
    def key(self) -> str:
        """Names the item in the manifest and in the names of files."""
        return ".".join(word for word in (self.what, self.name, self.mode) if word != "-")


def plan_of(name: str) -> list[Item]:
    """The part of ``gpu_plans.txt`` under the name; a line may have several words of what and modes."""
    part = Path(__file__).with_name("gpu_plans.txt").read_text(encoding="utf-8").partition(f"[{name}]\n")[2]
    return [
        Item(case, what, mode, SETS.get(names, names), float(seconds))
        for case, whats, modes, names, seconds in map(str.split, part.partition("\n\n")[0].splitlines())
        for mode in modes.split(",")
        for what in whats.split(",")
    ]


def due(plan: Iterable[Item], done: Mapping[str, Any], *, only: str = "", again: bool = False) -> list[Item]:
    """The items that are still to be done; with ``again`` those that failed as well."""
    wanted = [item for item in plan if any(word in item.key for word in only.split(","))]
    return [item for item in wanted if item.key not in done or (again and done[item.key]["error"])]


def next_that_fits(waiting: Iterable[Item], seconds_left: float, *, small: bool = False) -> Item | None:
    """The first item for which there is time; with small inputs it takes a fifth."""
    return next((item for item in waiting if item.seconds * (0.2 if small else 1.0) <= seconds_left), None)


def run(arguments: argparse.Namespace) -> int:
    deadline, work = time.monotonic() + arguments.seconds, arguments.work
    for folder in (arguments.out, *(work / kind for kind in ("truth", *KINDS))):
        folder.mkdir(parents=True, exist_ok=True)
    kept = work / "manifest.json"
    manifest = read_json(kept) if kept.exists() else {"items": {}, "calls": []}
    done = read_json(arguments.done)["items"] if arguments.done else {}
    manifest["items"] |= {key: item for key, item in done.items() if not key.startswith("probe.")}
    manifest["calls"].append({"arguments": sys.argv[2:], "at": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())})
    waiting = due(plan_of(arguments.plan), manifest["items"], only=arguments.only, again=arguments.again)
    while True:
        kept.write_text(json.dumps(manifest, indent=1), encoding="utf-8")
        publish(arguments.out, work)
        item = next_that_fits(waiting, deadline - time.monotonic(), small=arguments.small)
        if item is None:
            break
        waiting.remove(item)
        before, begun = gpu_state(), time.monotonic()
        limit = 400.0 if arguments.small else 2 * item.seconds + 30
        error = run_item(item, min(limit, deadline - begun), arguments)
        seconds = round(time.monotonic() - begun, 1)
        manifest["items"][item.key] = {"seconds": seconds, "error": error, "before": before, "after": gpu_state()}
        print(f"{item.key}: {error or 'done'} ({seconds} s)", flush=True)
    for item in waiting:
        print(f"{item.key}: not begun, it takes about {item.seconds:.0f} s", flush=True)
    return compare(arguments)


def command_of(item: Item, arguments: argparse.Namespace) -> list[str]:
    if item.what in ("truth", "probe", "profile"):
        own = [sys.executable, __file__, item.what, item.name, "--mode", item.mode, "--device", arguments.device]
        return [*own, "--configurations", item.configurations, *["--small"] * arguments.small]
    file = arguments.work / "products" / f"{item.key}.json"
    command = [sys.executable, "-m", "layoutdoctor", "diagnose", f"{ROOT / 'benchmarks/gpu_cases.py'}:{item.name}"]
    command += ["--mode", item.mode, "-v", "--force", "--timeout", "100", "--output", str(file)]
    command += ["--quick"] if item.configurations == "quick" else ["--configurations", item.configurations]
    if item.what == "static":
        return [*command, "--lower-for", "cuda:90"]
    command += ["--device", arguments.device, "--budget", "12" if item.configurations == "default" else "5"]
    return [*command, "--save-recordings", str(arguments.work / f"recordings.{item.mode}" / item.name)]


def run_item(item: Item, limit: float, arguments: argparse.Namespace) -> str | None:
    """Runs an item; the error in a sentence, None without one."""
    paths = filter(None, (str(ROOT), os.environ.get("PYTHONPATH")))
    # Items share compiled kernels. Truth lowers each graph itself, or it would see no decision.
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(paths), "GPU_CASES_SMALL": str(int(arguments.small))}
    environment["TORCHINDUCTOR_CACHE_DIR"] = str(arguments.work / "cache")
    if item.what in ("truth", "profile"):
        environment |= {"TORCHINDUCTOR_FX_GRAPH_CACHE": "0", "TORCHINDUCTOR_AUTOGRAD_CACHE": "0"}
    if arguments.device == "cpu":
        environment |= {"GPU_CASES_HALF": "float32", "CUDA_VISIBLE_DEVICES": ""}
    command, log = command_of(item, arguments), arguments.work / "logs" / f"{item.key}.log"
    with log.open("w", encoding="utf-8") as out:
        print(" ".join(command), file=out, flush=True)
        process = subprocess.Popen(command, stdout=out, stderr=out, cwd=ROOT, env=environment, start_new_session=True)
        try:
            status = process.wait(limit)
        except subprocess.TimeoutExpired:
            return f"took longer than {limit:.0f} s"
        finally:
            end(process)
    said = [line for line in log.read_text(encoding="utf-8", errors="replace").splitlines() if line.strip()]
    return f"exit status {status}: {said[-1][:300]}" if status else None


def end(process: subprocess.Popen[bytes]) -> None:
    """Ends a process and what it started: first SIGTERM, ten seconds later SIGKILL."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGTERM)
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(10)
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def gpu_state() -> str | None:
    """Clocks in MHz, degrees, watts, MiB in use, reasons of throttling."""
    names = "clocks.sm,clocks.mem,temperature.gpu,power.draw,memory.used,clocks_event_reasons.active"
    query = ["nvidia-smi", f"--query-gpu={names}", "--format=csv,noheader,nounits"]
    with contextlib.suppress(OSError, subprocess.SubprocessError):
        return subprocess.run(query, capture_output=True, text=True, timeout=10, check=False).stdout.strip()
    return None


def publish(out: Path, work: Path) -> None:
    """Writes what comes back, apart from the comparison."""
    (out / "manifest.json").write_bytes((work / "manifest.json").read_bytes())
    truths = {file.stem: read_json(file) for file in sorted((work / "truth").glob("*.json"))}
    (out / "truth.json").write_text(json.dumps(truths), encoding="utf-8")
    for kind in KINDS:
        files = sorted((p for p in (work / kind).rglob("*") if p.is_file()), key=lambda p: (p.stat().st_size, p))
        if left_out := pack(out / f"{kind}.tar", {str(p.relative_to(work / kind)): p.read_bytes() for p in files}):
            print(f"{kind}: no room for {left_out}", flush=True)


def pack(file: Path, contents: Mapping[str, bytes]) -> list[str]:
    """Writes a tar file of gzipped files, at most 15 MiB; the names for which there was no room."""
    left_out: list[str] = []
    with tarfile.open(file, "w") as tar:
        for name, data in contents.items():
            packed = data if data.startswith(b"\x1f\x8b") else gzip.compress(data, 6, mtime=0)
            info = tarfile.TarInfo(f"{name.removesuffix('.gz')}.gz")
            info.size = len(packed)
            if tar.offset + info.size + 12288 > MOST_BYTES:
                left_out.append(name)
            else:
                tar.addfile(info, io.BytesIO(packed))
    return left_out


def unpacked(file: Path) -> Iterator[tuple[str, bytes]]:
    """Names and contents of what ``pack`` wrote."""
    with tarfile.open(file) as tar:
        for member in tar:
            if (stream := tar.extractfile(member)) is not None:
                yield member.name.removesuffix(".gz"), gzip.decompress(stream.read())


def read_json(file: Path) -> Any:
    return json.loads(file.read_text(encoding="utf-8"))


# truth: torch, and nothing of layoutdoctor.

CONVERSION = re.compile(r"(nchwToNhwc|nhwcToNchw|nchwToNhwc3To4|nchwToFoldedNhwc)Kernel")
LOOKS = re.compile(r"nhwc|nchw|transpose|permut|reorder|transform|padding|folded|convertTensor|copy", re.IGNORECASE)


def truth(arguments: argparse.Namespace) -> int:
    """Runs a case under each configuration and writes what was seen."""
    import torch
    import torch._inductor.async_compile
    import torch._inductor.config as inductor

    model, inputs = case_of(arguments)
    exact = exact_output(model, inputs) if arguments.mode == "inference" else None
    case, rows = f"{arguments.out}.{arguments.mode}", dict[str, Any]()
    steps, gradients = dict[str, Any](), dict[str, Any]()
    for name in arguments.configurations.split(","):
        row = rows[name] = {}
        try:
            step, own = step_of(name, model, inputs, arguments.mode)
            with inductor.patch(freezing="freezing" in name):
                row |= first_call(step, own, exact, gradients)
            row |= warm_call(step, arguments.work / "traces" / f"{case}.{name}.json.gz")
            steps[name] = step
        except Exception as error:  # a configuration that fails costs only itself
            row["error"] = f"{type(error).__name__}: {(str(error).splitlines() or [''])[0][:300]}"
    torch._inductor.async_compile.shutdown_compile_workers()  # they may still be starting
    for name, times in times_in_turns(steps, 1.0 if arguments.small else 5.0).items():
        rows[name] |= times
    (arguments.work / "truth" / f"{case}.json").write_text(json.dumps(rows, indent=1), encoding="utf-8")
    return 0


def case_of(arguments: argparse.Namespace) -> tuple[Any, list[Any]]:
    """The model of a case and its inputs, on the device."""
    import gpu_cases
    import torch

    torch.manual_seed(0)
    model, inputs = getattr(gpu_cases, str(arguments.out))()
    return model.to(arguments.device), [x.to(arguments.device) for x in inputs]


def profile(arguments: argparse.Namespace) -> int:
    """Records three steps of a loop under each configuration inside ``layoutdoctor.profile()``."""
    import layoutdoctor
    from layoutdoctor.diagnosis.saved import to_json
    from layoutdoctor.recording.saved import save_recording

    model, inputs = case_of(arguments)
    found, folder = dict[str, Any](), arguments.work / f"recordings.{arguments.mode}" / str(arguments.out)
    folder.mkdir(parents=True, exist_ok=True)
    for name in arguments.configurations.split(","):
        step, _ = step_of(name, model, inputs, arguments.mode)
        with layoutdoctor.profile(steps=PROFILED_STEPS) as seen:
            for _ in range(
                2 * PROFILED_STEPS + 4
            ):  # two warm up, some compile, those after the recorded ones are timed
                step()
                seen.step()
        print(name, seen, sep="\n", flush=True)
        save_recording(seen.recording, folder / f"profile-{name}.recording")
        found[name] = {"summary": seen.summary, "diagnosis": json.loads(to_json(seen.diagnosis))}
    file = arguments.work / "products" / f"profile.{arguments.out}.{arguments.mode}.json"
    file.write_text(json.dumps(found), encoding="utf-8")
    return 0


def step_of(name: str, model: Any, inputs: list[Any], mode: str) -> tuple[Callable[[], Any], Any]:
    """One call under a configuration, applied by hand to a copy of the model; and the copy."""
    import torch

    formats = {4: torch.channels_last, 5: torch.channels_last_3d} if "channels-last" in name else {}
    own = copy.deepcopy(model).train(mode == "training")
    for tensor in [*own.parameters(), *own.buffers()]:
        tensor.data = tensor.data.clone(memory_format=formats.get(tensor.dim(), torch.preserve_format))
    given = [x.clone(memory_format=formats.get(x.dim(), torch.preserve_format)) for x in inputs]
    switches = {"opt-off": ("layout_optimization", False), "cudagraphs": ("triton.cudagraphs", True)}
    switches["max-autotune"] = ("max_autotune", True)
    options: dict[str, Any] = dict(switch for word, switch in switches.items() if word in name)

    def call(*inputs: Any) -> Any:
        return own(*inputs)

    # Dynamo keeps what it compiled by code object, whatever the options were.
    call.__code__ = call.__code__.replace(co_name=re.sub(r"\W", "_", f"truth_{name}"))
    function = call if name.startswith("eager") else torch.compile(call, options=options or None, dynamic=False)
    gradient: list[Any] = []

    def step() -> Any:
        if mode == "inference":
            with torch.no_grad():
                return function(*given)
        own.zero_grad(set_to_none=True)
        output = function(*given)
        if not gradient:  # the same values whatever the layout
            torch.manual_seed(1)
            gradient.append(torch.empty_like(output).copy_(torch.randn(output.shape, device=output.device)))
        output.backward(gradient[0])
        return output

    return step, own


def exact_output(model: Any, inputs: list[Any]) -> Any:
    """The output in float32 without TF32, with which half precision is compared; None if it does not fit."""
    import torch

    with contextlib.suppress(Exception), torch.no_grad(), torch.backends.cudnn.flags(enabled=True, allow_tf32=False):
        return copy.deepcopy(getattr(model, "network", model)).float().eval()(*(x.float() for x in inputs))
    return None


def first_call(step: Any, own: Any, exact: Any, gradients: dict[str, Any]) -> dict[str, Any]:
    """Compiling, decisions, errors against float32 and against the gradients of the first configuration."""
    begun, decisions = time.monotonic(), list[dict[str, Any]]()
    with decisions_seen(decisions):
        output = step()
    synchronize()
    row: dict[str, Any] = {"decisions": decisions, "first_call_seconds": round(time.monotonic() - begun, 2)}
    if exact is not None:
        row["error_over_largest"] = error_over_largest(output.detach().float(), exact)
    found = {n: p.grad.float().clone() for n, p in own.named_parameters() if p.grad is not None}
    errors = [error_over_largest(g, gradients.setdefault(n, g)) for n, g in found.items()]
    return row | {"gradient_error_over_largest": max(errors, default=0.0)}


def error_over_largest(value: Any, exact: Any) -> float:
    return float((value - exact).abs().max() / (exact.abs().max() + 1e-30))


def decisions_seen(found: list[dict[str, Any]]) -> Any:
    """A context that lists what Inductor decides about the layouts of each graph."""
    from torch._inductor.graph import GraphLowering

    original = GraphLowering.decide_layout_opt

    def decide(gm: Any, **keywords: Any) -> Any:
        count = sum(str(node.target) == "aten.convolution.default" for node in gm.graph.nodes)
        found.append({"applied": original(gm, **keywords), "convolutions": count, **keywords})
        return found[-1]["applied"]

    return mock.patch.object(GraphLowering, "decide_layout_opt", staticmethod(decide))


def warm_call(step: Any, file: Path) -> dict[str, Any]:
    """Launch time, peak memory and the kernels of one warm call, whose trace is kept."""
    import torch

    for _ in range(3):
        step()
    synchronize()
    begun = time.perf_counter()
    step()
    row = {"launch_seconds": time.perf_counter() - begun}  # the whole call, if the GPU waits for the processor
    synchronize()
    activities = [torch.profiler.ProfilerActivity.CPU]
    if torch.cuda.is_available():
        activities.append(torch.profiler.ProfilerActivity.CUDA)
        torch.cuda.reset_peak_memory_stats()
        alive = torch.cuda.memory_allocated()
        step()
        synchronize()
        row["peak_bytes"] = torch.cuda.max_memory_allocated() - alive
    for _ in range(2):  # the first profile of a process may lack kernels
        with torch.profiler.profile(activities=activities, record_shapes=True) as profiler:
            step()
            synchronize()
    profiler.export_chrome_trace(str(file))
    return row | kernel_counts(json.loads(gzip.decompress(file.read_bytes()))["traceEvents"])


def kernel_counts(events: Iterable[Mapping[str, Any]]) -> dict[str, Any]:
    """Counts a trace's kernels by name: the library's conversions, kernels that look like one, the longest."""
    kernels = [event for event in events if event.get("cat") == "kernel"]
    counts, seconds, conversions = Counter(event["name"] for event in kernels), Counter[str](), Counter[str]()
    for event in kernels:
        seconds[event["name"]] += event["dur"] * 1e-6
        conversions.update(found[0] for found in CONVERSION.finditer(event["name"]))
    return {
        "kernels": len(kernels),
        "kernel_seconds": sum(seconds.values()),
        "conversions": dict(conversions),
        "conversion_seconds": sum(s for name, s in seconds.items() if CONVERSION.search(name)),
        "look_alikes": {n[:140]: c for n, c in counts.items() if LOOKS.search(n) and not CONVERSION.search(n)},
        "longest": [[name[:140], counts[name], round(s, 8)] for name, s in seconds.most_common(12)],
    }


def times_in_turns(steps: Mapping[str, Any], seconds: float) -> dict[str, dict[str, Any]]:
    """Times in turns: of loops without a pause, and of single calls after the L2 cache was flushed."""
    import torch

    cache = torch.empty(256 << 20, dtype=torch.int8, device="cuda" if torch.cuda.is_available() else "cpu")
    calls = {name: max(1, min(20, int(0.004 / max(block(step, 1), 1e-6)))) for name, step in steps.items()}
    loops, flushed = ({name: list[float]() for name in steps} for _ in range(2))
    names, until = list(steps), time.monotonic() + seconds
    for number in range(60 if steps else 0):
        if number >= 8 and time.monotonic() > until:
            break
        turn = number % len(names)
        for name in names[turn:] + names[:turn]:
            loops[name].append(block(steps[name], calls[name]))
            cache.zero_()
            flushed[name].append(block(steps[name], 1))
    found = {}
    for name, own in loops.items():
        ratio = statistics.median(default / one for default, one in zip(loops.get("inductor", own), own, strict=True))
        found[name] = {"loop_seconds": statistics.median(own), "flushed_seconds": statistics.median(flushed[name])}
        found[name] |= {"ratio": ratio, "rounds": len(own)}
    return found


def block(step: Callable[[], Any], calls: int) -> float:
    """Seconds of one call, the mean of some without a pause."""
    import torch

    if not torch.cuda.is_available():
        begun = time.perf_counter()
        for _ in range(calls):
            step()
        return (time.perf_counter() - begun) / calls
    begin, finish = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    begin.record()
    for _ in range(calls):
        step()
    finish.record()
    finish.synchronize()
    return float(begin.elapsed_time(finish)) * 1e-3 / calls


def synchronize() -> None:
    import torch

    if torch.cuda.is_available():
        torch.cuda.synchronize()


def probe(arguments: argparse.Namespace) -> int:
    """Writes the facts of the machine, or runs the tests that need a GPU."""
    if str(arguments.out) == "gpu_tests":
        files = [str(f) for f in sorted((ROOT / "tests").rglob("test_*.py")) if "mark.gpu" in f.read_text("utf-8")]
        command = [sys.executable, "-m", "pytest", "-q", "-m", "gpu", "-p", "no:cacheprovider", *files]
        return subprocess.run(command, cwd=ROOT, check=False).returncode
    from importlib.metadata import distributions

    import torch

    wanted = "torch triton numpy msgspec cloudpickle psutil networkx torchvision".split()
    found: dict[str, Any] = {d.name: d.version for d in distributions() if d.name in wanted}
    found |= {"python": sys.version.split()[0], "processors": os.cpu_count(), "name": "cpu"}
    if arguments.device != "cpu":
        device = torch.cuda.get_device_properties(0)
        found |= {"name": device.name, "memory_bytes": device.total_memory, "l2_bytes": device.L2_cache_size}
        found |= {"cuda": torch.version.cuda, "cudnn": torch.backends.cudnn.version()}
        found |= {"free_bytes": torch.cuda.mem_get_info()[0], "tf32": torch.backends.cudnn.allow_tf32}
        data = torch.empty(1 << 30, dtype=torch.int8, device="cuda")
        found["copy_bytes_per_second"] = (2 << 30) / min(block(data.clone, 1) for _ in range(10))
    (arguments.work / "truth" / "facts.json").write_text(json.dumps(found, indent=1), encoding="utf-8")
    return 0


# compare: what the product said, held against the truth; without torch.

Judgement = tuple[bool | None, str]


def compare(arguments: argparse.Namespace) -> int:
    """Prints a part for each case, mode and card and writes it into the first folder; later folders count first."""
    truths, said, lines, counts = dict[str, Any](), dict[str, Any](), list[str](), Counter[str]()
    for out in (arguments.out, *arguments.folders):
        by_hand = read_json(out / "truth.json")
        lines.append(f"facts: {json.dumps(facts := by_hand.pop('facts', {}))}")
        on = f" on {facts.get('name', 'an unknown device')}"
        truths |= {key + on: rows for key, rows in by_hand.items()}
        said |= {n.removesuffix(".json") + on: json.loads(data) for n, data in unpacked(out / "products.tar")}
    for key in sorted({*truths, *(name.partition(".")[2] for name in said)}):
        by_hand, product, static = truths.get(key, {}), said.get(f"product.{key}"), said.get(f"static.{key}")
        profiles = said.get(f"profile.{key}", {})
        lines += ["", key, *map(described_row, by_hand.items())]
        judgements: list[Judgement] = []
        if product:
            lines += described_product(product)
            judgements += [*(judged(by_hand, product) if by_hand else ()), *judged_failures(key, product)]
        if product and static:
            judgements += judged_lowerings(static, product)
        for name, seen in profiles.items():
            judgements += judged_profile(name, by_hand[name], seen) if name in by_hand else ()
        for is_right, text in judgements:
            word = {True: "RIGHT", False: "WRONG", None: "OPEN"}[is_right]
            counts[word] += 1
            lines.append(f"  {word:5} {text}")
    lines += ["", ", ".join(f"{counts[word]} {word}" for word in ("RIGHT", "WRONG", "OPEN"))]
    print("\n".join(lines))
    (arguments.out / "compared.txt").write_text("\n".join(lines) + "\n", encoding="utf-8")
    return 0


def described_row(named: tuple[str, Mapping[str, Any]]) -> str:
    name, row = named
    if "loop_seconds" not in row:
        return f"  by hand {name}: {row.get('error')}"
    times = {kind: round(row[f"{kind}_seconds"] * 1e3, 4) for kind in ("loop", "flushed", "kernel", "launch")}
    decisions = [(one["applied"], one["convolutions"]) for one in row["decisions"]]
    errors = [row.get(f"{kind}error_over_largest") for kind in ("", "gradient_")]
    rest = f"{row['kernels']} kernels, conversions {row['conversions']}, decisions {decisions}, errors {errors}"
    return f"  by hand {name}: {row['ratio']:.2f}x, ms {times}, {rest}"


def described_product(said: Mapping[str, Any]) -> Iterator[str]:
    advice = said["recommendation"] or {}
    yield f"  product recommends {advice.get('configuration')}, {advice.get('speedup')}"
    for trial in said["trials"]:
        if trial["failure"]:
            yield f"  product {trial['configuration']['name']} {trial['status']}: {trial['failure']['message'][:200]}"
    yield from (f"  product {f['code']} {f['severity']}: {f['message'][:200]}" for f in said["findings"])


def judged(by_hand: Mapping[str, Any], said: Mapping[str, Any]) -> Iterator[Judgement]:
    """Every time, conversion count, decision, verdict, the choice and the promise: right, wrong or (None) left open."""
    trials = {trial["configuration"]["name"]: trial for trial in said["trials"]}
    rows = {name: row for name, row in by_hand.items() if "loop_seconds" in row and name in trials}
    for name, row in rows.items():
        own, ran = trials[name], trials[trials[name]["same_as"] or name]
        yield from judged_trial(name, row, {**ran, "graphs": own["graphs"] or ran["graphs"]})
    comparison, advice = said["comparison"] or {"baseline": "inductor", "ratios": []}, said["recommendation"] or {}
    chosen = advice.get("configuration") or comparison["baseline"]
    if chosen not in rows or comparison["baseline"] not in rows:
        yield None, f"the choice is {chosen}, which was not timed by hand"
        return
    for ratio in comparison["ratios"]:
        if ratio["name"] in rows and ratio["name"] != comparison["baseline"]:
            real = rows[ratio["name"]]["ratio"]
            right = {"faster": real > 1, "slower": real < 1, "equal": abs(real - 1) <= 0.03}.get(ratio["verdict"])
            yield right, f"{ratio['name']} is called {ratio['verdict']}, {ratio['median']:.3f}x; by hand {real:.3f}x"
    best = min(rows, key=lambda name: rows[name]["loop_seconds"])
    over = rows[chosen]["loop_seconds"] / rows[best]["loop_seconds"]
    yield over <= 1.02, f"the choice is {chosen}, which takes {over:.3f}x the time of {best}, the fastest by hand"
    if advice.get("speedup"):
        promised, real = advice["speedup"]["median"], rows[chosen]["ratio"]
        yield abs(promised / real - 1) <= 0.05, f"the promise is {promised:.3f}x; by hand {real:.3f}x"


def judged_trial(name: str, row: Mapping[str, Any], trial: Mapping[str, Any]) -> Iterator[Judgement]:
    if seconds := (trial["measurement"] or {}).get("median_seconds"):
        off = min((seconds / row[kind] - 1 for kind in ("loop_seconds", "flushed_seconds")), key=abs)
        yield abs(off) <= 0.1, f"the time of {name} is {seconds * 1e3:.4f} ms, {off:+.1%} from the time by hand"
    listed = listed_conversions(trial)
    yield listed == Counter(row["conversions"]), f"conversions of {name}: {dict(listed)}; by hand {row['conversions']}"
    decisions = listed_decisions(trial)
    # Inductor decides about a frozen graph before and after it folds the weights.
    real = sorted(str(one["applied"]) for one in row["decisions"][:: 2 if "freezing" in name else 1])
    if decisions or real:
        yield decisions == real, f"decisions of {name}: {decisions}; by hand {real}"
    if (trial["equivalence"] or {}).get("status") == "different":
        error = max(row.get("error_over_largest", 0), row.get("gradient_error_over_largest", 0))
        yield error > 0.05, f"outputs of {name} are called different; the error by hand is {error:.2g}"


def listed_conversions(trial: Mapping[str, Any]) -> Counter[str]:
    """Counts the library's conversion kernels that the product lists."""
    listed = Counter[str]()
    for one in (trial["kernels"] or {}).get("conversions", []):
        listed.update([found[0] for found in CONVERSION.finditer(one["kernel"] or "")] * one.get("count", 1))
    return listed


def listed_decisions(trial: Mapping[str, Any]) -> list[str]:
    return sorted(str(graph["decision"]["applied"]) for graph in trial["graphs"] if graph["decision"])


def judged_profile(name: str, row: Mapping[str, Any], seen: Mapping[str, Any]) -> Iterator[Judgement]:
    """The number of recorded steps, and the kernels, conversions and decisions of one step in ``profile()``."""
    summary, trial = seen["summary"], seen["diagnosis"]["trials"][0]
    steps = summary["recorded_step_count"]
    yield steps == PROFILED_STEPS, f"profile() of {name} recorded {steps:.0f} steps of {PROFILED_STEPS}"
    if "kernels" not in row:
        return
    each = 1 if trial["graphs"] else steps  # with captured graphs, one step stands for all
    count = trial["kernels"]["count"] / each if trial["kernels"] else None
    yield count == row["kernels"], f"kernels of a step of {name} in profile(): {count}; by hand {row['kernels']}"
    listed = listed_conversions(trial)
    real = {kernel: number * each for kernel, number in row["conversions"].items()}
    yield listed == Counter(real), f"conversions of {name} in profile(): {dict(listed)}; by hand {real}"
    decisions = listed_decisions(trial)
    by_hand = sorted(str(one["applied"]) for one in row["decisions"])
    if decisions or by_hand:
        yield decisions == by_hand, f"decisions of {name} in profile(): {decisions}; by hand {by_hand}"


def judged_failures(key: str, said: Mapping[str, Any]) -> Iterator[Judgement]:
    """``illegal_access`` has to fail in channels_last alone, other cases nowhere."""
    breaks = key.startswith("illegal_access")
    for trial in said["trials"]:
        name, failed = trial["configuration"]["name"], trial["status"] in ("failed", "crashed", "timed_out")
        if failed or breaks:
            expected = breaks and "channels-last" in name
            yield failed == expected, f"{name} is {trial['status']}; {'it' if expected else 'nothing'} has to fail"


def judged_lowerings(static: Mapping[str, Any], said: Mapping[str, Any]) -> Iterator[Judgement]:
    """Graph by graph: the lowering for a GPU that is not there, and what the GPU compiled."""
    real = {trial["configuration"]["name"]: trial["graphs"] for trial in said["trials"] if trial["status"] == "ok"}
    for trial in static["trials"]:
        name = trial["configuration"]["name"]
        if name in real and not name.startswith("eager"):  # eager is not lowered
            lowered, compiled = (sorted(map(graph_facts, graphs)) for graphs in (trial["graphs"], real[name]))
            yield lowered == compiled, f"graphs of {name} as lowered: {lowered}; as compiled: {compiled}"


def graph_facts(graph: Mapping[str, Any]) -> str:
    decision = graph["decision"] or {"applied": None, "channels_last_convolution_count": None}
    own = [f"{one['tensor']} {one['direction']}" for one in graph["conversions"] if one["owner"] == "compiler"]
    facts = decision["applied"], decision["channels_last_convolution_count"], sorted(own)
    return f"{graph['direction']}: applied, channels_last convolutions, conversions {facts}"


def fixtures(arguments: argparse.Namespace) -> int:
    """Writes a folder for each case and mode: its recordings, and what was seen by hand."""
    truths, target = read_json(arguments.out / "truth.json"), arguments.folders[0]
    gpu = re.sub(r"\W+", "-", truths.get("facts", {}).get("name", "gpu").lower())
    recordings = {(n, mode): data for mode in MODES for n, data in unpacked(arguments.out / f"recordings.{mode}.tar")}
    for (name, mode), data in recordings.items():
        case, packed = f"{Path(name).parent}.{mode}", gzip.compress(data, mtime=0)
        is_small = len(packed) <= MOST_FIXTURE_BYTES
        print(f"{case} {Path(name).name}: {len(packed)} bytes{'' if is_small else ', left out'}")
        if is_small:
            file = target / f"{case}.{gpu}" / Path(name).name
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_bytes(packed)
            if case in truths:
                file.with_name("truth.json").write_text(json.dumps(truths[case], indent=1), encoding="utf-8")
    return 0


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = {"run": run, "compare": compare, "fixtures": fixtures}
    commands |= {"truth": truth, "profile": profile, "probe": probe}
    parser.add_argument("command", choices=commands, help="run calls truth, profile and probe by itself")
    parser.add_argument("out", type=Path, help="the folder that comes back (of truth, profile and probe: the case)")
    parser.add_argument("folders", type=Path, nargs="*", help="where fixtures go; more results to compare")
    parser.add_argument("--plan", choices=PLANS, default="next")
    parser.add_argument("--seconds", type=float, default=430.0, help="how long to run (default: %(default)g)")
    parser.add_argument("--done", type=Path, help="the manifest.json of an earlier run, whose items are left out")
    parser.add_argument("--again", action="store_true", help="run items once more that failed")
    parser.add_argument("--only", default="", help="parts of items' names, separated by commas")
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    parser.add_argument("--small", action="store_true", help="small inputs: tries the program, proves nothing")
    parser.add_argument("--mode", help="of truth and profile")
    parser.add_argument("--configurations", help="of truth and profile")
    arguments = parser.parse_args()
    # A later run goes on with what lies there.
    arguments.work = Path(tempfile.gettempdir()) / f"layoutdoctor_gpu.{arguments.device}{'.small' * arguments.small}"
    return commands[arguments.command](arguments)


if __name__ == "__main__":
    sys.exit(main())
