"""
Are layoutdoctor's answers right? Diagnoses every network under every default configuration and checks each claim.

Run, again and again until it exits with 0 (75: time ran out):

    python benchmarks/gpu/diagnoses.py OUT --seconds 480
    python benchmarks/gpu/diagnoses.py OUT --only conv3d-stack,resnet50/inference

An item is ``network/mode``. Its result in ``OUT/diagnoses.json`` has:

- ``conversions``: per configuration the library conversions that the diagnosis lists (``live``; those it says change no
  layout are counted in ``changing_no_layout`` only), that ``layoutdoctor.examine_trace`` finds in the same trace
  (``examined``), and that a count by kernel names alone finds (``counted``, see ``kernel_count.py``); how many
  conversions Inductor made (``compiler``), of how many the trace holds the kernel (``compiler_present``; the other
  kernels in ``absent``), and generated kernels that only move elements and that no conversion of the diagnosis names
  (``candidates``: most are copies that keep the layout, such as a slice; to be looked at one by one).
- ``removal``: for ``eager`` and ``inductor`` the redundant pairs claimed, how many of them were gone when another
  configuration was applied by hand (``cure``: the recommended one where it has fewer pairs), seconds promised by the
  pairs and seconds that the step really became shorter, side by side. The latter holds what else the cure changes.
- ``timing``: every configuration applied by hand and timed in turns; the fastest, what the one that the diagnosis calls
  the fastest (``fastest_told``: the recommended one, where there is one) loses against it (``regret``, the median of
  round-by-round ratios less 1; the fastest is chosen by the even rounds and the ratio taken from the odd ones, because
  the luckiest of equals is not faster; one with wrong outputs does not count), the speedup promised and measured, and
  peak memory, measured here and told by the diagnosis.
- ``headline``: eager against compiled, what the findings blame, what is recommended.

``OUT/traces.tar`` holds ``NETWORK.MODE/`` with ``diagnosis.json.gz``, the profiler's trace of each configuration as the
diagnosis recorded it, and ``plain-NAME.json.gz``, recorded by hand with Python's stack, of ``eager``, ``inductor``, the
recommended one and the cures; all as far as there is room.
"""

from __future__ import annotations

import gc
import gzip
import statistics
import tempfile
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from archive import Archive
from claims import conversions, recorded, removal
from networks import item_names, make, networks
from parts import Part, parse_arguments
from plain_runs import WARM_UP_CALLS, paired_ratio, peak_memory, plain_step, time_in_turns

from layoutdoctor.configurations import DEFAULT_CONFIGURATIONS
from layoutdoctor.messages import Request
from layoutdoctor.run.diagnose import diagnose_subject
from layoutdoctor.subjects.subject import subject_from_python

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    import torch

    from layoutdoctor.records import Diagnosis, Finding, Trial

_EXPECTED_SECONDS = {"small": 45.0, "stack": 100.0, "large": 130.0}
_TRAINING_TAKES = 1.6


def expected_seconds(item: str) -> float:
    """
    What an item is expected to take on a GPU, generously.

    Args:
        item: ``network/mode``.
    """
    name, mode = item.rsplit("/", 1)
    kind = "stack" if name.startswith("conv3d-stack") else "large" if networks()[name].is_large else "small"
    return _EXPECTED_SECONDS[kind] * (_TRAINING_TAKES if mode == "training" else 1.0)


def examine(item: str, part: Part, archive: Archive, budget_seconds: float) -> dict[str, Any]:
    """
    Everything about one network in one mode.

    Args:
        item: ``network/mode``.
        part: With device and size.
        archive: Takes traces and the saved diagnosis.
        budget_seconds: Bounds the timing rounds of the diagnosis, and of the timing by hand.
    """
    name, mode = item.rsplit("/", 1)
    model, inputs = make(name, part.device, is_small=part.is_small)
    before = archive.left_out
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch)
        diagnosis = diagnose_subject(
            subject_from_python(model, inputs, name=name),
            Request(
                mode="training" if mode == "training" else "inference",
                configurations=DEFAULT_CONFIGURATIONS,
                budget_seconds=budget_seconds,
                trace_directory=str(folder),
            ),
        )
        gc.collect()  # the compiled steps of the diagnosis, and what they hold on the device
        result: dict[str, Any] = {
            "shapes": [list(tensor.shape) for tensor in inputs],
            "trials": {trial.name: _trial(trial) for trial in diagnosis.trials},
            "recommendation": _recommendation(diagnosis),
            "findings": [_finding(finding) for finding in diagnosis.findings],
            "conversions": {
                trial.name: conversions(trial, folder / f"{trial.name}.json.gz")
                for trial in diagnosis.trials
                if (folder / f"{trial.name}.json.gz").exists()
            },
        }
        diagnosis.save(folder / "diagnosis.json")
        _archive(archive, item, folder)
        steps, errors = _plain_steps(item, model, inputs, diagnosis)
        del model, inputs
        result["timing"] = timing(diagnosis, steps, errors, part.device, budget_seconds)
        result["removal"] = {
            baseline: removal(diagnosis, baseline, steps, result["timing"]["rounds"], part.device, folder)
            for baseline in ("eager", "inductor")
        }
        for shown in {"eager", "inductor", result["timing"]["recommended"]} & steps.keys():
            recorded(shown, steps[shown], part.device, folder)
        _archive_plain(archive, item, folder)
        result["headline"] = headline(diagnosis, result["timing"])
        result["timing"].pop("rounds")
    archive.write()
    result["traces_left_out"] = archive.left_out - before
    del steps
    gc.collect()
    return result


def _trial(trial: Trial) -> dict[str, Any]:
    measurement, kernels = trial.measurement, trial.kernels
    decisions = [graph.decision for graph in trial.graphs if graph.decision is not None]
    return {
        "status": trial.status,
        "same_as": trial.same_as,
        "failure": trial.failure.message if trial.failure is not None else None,
        "median_seconds": measurement.median_seconds if measurement is not None else None,
        "compile_seconds": measurement.compile_seconds if measurement is not None else None,
        "outputs": trial.equivalence.status if trial.equivalence is not None else None,
        "kernel_count": kernels.count if kernels is not None else None,
        "kernel_seconds": kernels.seconds if kernels is not None else None,
        "conversion_count": kernels.conversion_count if kernels is not None else None,
        "conversion_seconds": kernels.conversion_seconds if kernels is not None else None,
        "redundant_pairs": len(trial.redundant_pairs),
        "decisions": [[one.rule, one.channels_last_convolution_count, one.convolution_count] for one in decisions],
        "lacks": list(kernels.lacks) if kernels is not None else [],
        "notes": list(trial.notes),
    }


def _recommendation(diagnosis: Diagnosis) -> dict[str, Any] | None:
    chosen = diagnosis.recommendation
    if chosen is None:
        return None
    speedup = chosen.speedup
    return {
        "configuration": chosen.configuration,
        "speedup": [speedup.low, speedup.median, speedup.high] if speedup is not None else None,
        "verified": chosen.verified,
        "how": chosen.how,
        "reason": chosen.reason,
    }


def _finding(finding: Finding) -> dict[str, Any]:
    return {
        "code": finding.code,
        "rule": finding.rule,
        "severity": finding.severity,
        "configuration": finding.configuration,
        "message": finding.message,
        "seconds": finding.seconds,
    }


def _plain_steps(
    item: str, model: torch.nn.Module, inputs: tuple[torch.Tensor, ...], diagnosis: Diagnosis
) -> tuple[dict[str, Callable[[], None]], dict[str, str]]:
    """Warm iterations of each configuration applied by hand, and why there is none of another."""
    name, mode = item.rsplit("/", 1)
    steps: dict[str, Callable[[], None]] = {}
    errors: dict[str, str] = {}
    for trial in diagnosis.trials:
        if trial.same_as is not None and networks()[name].is_large:
            errors[trial.name] = f"not compiled once more: the same as {trial.same_as}"
            continue
        try:
            step = plain_step(trial.name, model, inputs, mode, f"{item}/{trial.name}")
            for _ in range(WARM_UP_CALLS):
                step()
            steps[trial.name] = step
        except Exception as error:  # a configuration that fails costs only itself
            errors[trial.name] = f"{type(error).__name__}: {(str(error).splitlines() or [''])[0][:300]}"
    return steps, errors


def timing(
    diagnosis: Diagnosis,
    steps: Mapping[str, Callable[[], None]],
    errors: Mapping[str, str],
    device: str,
    seconds: float,
) -> dict[str, Any]:
    """
    The fastest configuration by timing them all, against the recommended one.

    Args:
        diagnosis: With its recommendation.
        steps: Warm iterations applied by hand.
        errors: Why a configuration has none.
        device: ``cuda`` or ``cpu``.
        seconds: How long to time.
    """
    rounds = time_in_turns(steps, device, seconds)
    medians = {name: statistics.median(times) for name, times in rounds.items()}
    memory = (
        {name: [peak_memory(step), _peak_told(diagnosis, name)] for name, step in steps.items()}
        if (device == "cuda")
        else {}
    )
    wrong = {trial.name for trial in diagnosis.trials if trial.equivalence and trial.equivalence.status == "different"}
    wrong |= {trial.name for trial in diagnosis.trials if trial.same_as in wrong}
    even = {name: statistics.median(times[::2]) for name, times in rounds.items() if name not in wrong}
    result: dict[str, Any] = {
        "rounds": rounds,
        "round_count": len(next(iter(rounds.values()), ())),
        "median_seconds": medians,
        "errors": dict(errors),
        "wrong_outputs": sorted(wrong),
        "peak_memory_bytes": memory,
        "fastest": min(even, key=lambda name: even[name]) if even else None,
    }
    recommendation = diagnosis.recommendation
    result["recommended"] = recommendation.configuration if recommendation is not None else None
    result["fastest_told"] = diagnosis.fastest.name if diagnosis.fastest is not None else None
    timed = _timed_name(diagnosis, result["fastest_told"], rounds)
    if timed is None or result["fastest"] is None:
        return result
    result["regret"] = max(0.0, paired_ratio(rounds[timed][1::2], rounds[result["fastest"]][1::2]) - 1)
    if recommendation is not None and recommendation.configuration is not None and "inductor" in rounds:
        speedup = recommendation.speedup
        result["speedup_promised"] = speedup.median if speedup is not None else 1.0
        result["speedup_measured"] = paired_ratio(rounds["inductor"], rounds[timed])
    return result


def _timed_name(diagnosis: Diagnosis, name: str | None, rounds: Mapping[str, list[float]]) -> str | None:
    """The configuration that was timed for a name: itself, or the one it is the same as."""
    trial = diagnosis.trial(name) if name is not None else None
    if trial is None:
        return None
    return next((one for one in (trial.name, trial.same_as) if one in rounds), None)


def _peak_told(diagnosis: Diagnosis, name: str) -> int | None:
    trial = diagnosis.measured_trial(name)
    return trial.measurement.peak_memory_bytes if trial is not None and trial.measurement is not None else None


def headline(diagnosis: Diagnosis, timed: Mapping[str, Any]) -> dict[str, Any]:
    """
    Eager against compiled, as the forum thread asked, who is to blame, and what to do.

    Args:
        diagnosis: With its findings.
        timed: What ``timing`` returned.
    """
    medians = timed["median_seconds"]
    eager, compiled = medians.get("eager"), medians.get("inductor")
    rounds = timed["rounds"]
    blamed = [
        finding
        for finding in diagnosis.findings
        if finding.configuration in (None, "inductor") and not finding.code.startswith("LD4")  # about measuring
    ]
    return {
        "eager_seconds": eager,
        "compiled_seconds": compiled,
        "compiled_over_eager": paired_ratio(rounds["inductor"], rounds["eager"]) if eager and compiled else None,
        "blamed": [f"{finding.code} {finding.rule}: {finding.message}" for finding in blamed],
        "recommended": timed["recommended"],
        "how": diagnosis.recommendation.how if diagnosis.recommendation is not None else None,
    }


def _archive(archive: Archive, item: str, folder: Path) -> None:
    """The diagnosis and its traces, smallest first, so that as many as possible find room."""
    place = item.replace("/", ".")
    saved = gzip.compress((folder / "diagnosis.json").read_bytes(), mtime=0)
    archive.add(f"{place}/diagnosis.json.gz", saved, most_bytes=2 << 20)
    for trace in sorted(folder.glob("*.json.gz"), key=lambda file: file.stat().st_size):
        archive.add(f"{place}/{trace.name}", trace.read_bytes())


def _archive_plain(archive: Archive, item: str, folder: Path) -> None:
    for trace in sorted(folder.glob("plain-*.json.gz")):
        archive.add(f"{item.replace('/', '.')}/{trace.name}", trace.read_bytes())


def main() -> int:
    part, arguments = parse_arguments(
        "diagnoses",
        __doc__,
        more=lambda parser: parser.add_argument(
            "--budget", type=float, default=0.0, help="seconds of timing rounds each (default: 4, small 2)"
        ),
    )
    budget = arguments.budget or (2.0 if part.is_small else 4.0)
    part.output.mkdir(parents=True, exist_ok=True)
    archive = Archive(part.output / "traces.tar")
    do = partial(examine, part=part, archive=archive, budget_seconds=budget)
    return part.run(item_names(), do, expected_seconds=expected_seconds)


if __name__ == "__main__":
    raise SystemExit(main())
