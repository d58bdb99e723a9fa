"""
Makes the recordings in this folder again: ``python tests/recordings/record.py [NAME...]``.

Each set is one diagnosis: a folder named for the model and what was done with it, a file for each configuration. What
is there already is left alone, so that a run that was stopped goes on; delete a folder to have it recorded again.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from layoutdoctor.diagnosis.configurations import choose_configurations
from layoutdoctor.recording.recording import busy_time

if TYPE_CHECKING:
    from collections.abc import Iterator

    from layoutdoctor.diagnosis.subject import Mode
    from layoutdoctor.recording.recording import Recording

HERE = Path(__file__).parent
ROOT = HERE.parent.parent
BUDGET_SECONDS = 0.2
FORMATS = "eager,eager-channels-last,inductor,inductor-channels-last"
UNFROZEN = (
    "eager,eager-channels-last,inductor,inductor-layout-opt-off,inductor-layout-opt-on,inductor-channels-last,"
    "inductor-channels-last-opt-off"
)


@dataclass(frozen=True)
class Set:
    """One diagnosis that is kept: a file from the root of the project with what in it, and options of the command."""

    model: str
    mode: Mode = "inference"
    configurations: str = UNFROZEN
    lower_for: str | None = None
    inputs: tuple[str, ...] = ()
    dynamic_dimension: int | None = None
    """Of the first input, marked as one that varies."""

    @property
    def name(self) -> str:
        """Of its folder."""
        stem = Path(self.model).name.removesuffix(".py").replace(".py:", ".")
        target = "" if self.lower_for is None else "." + self.lower_for.replace(":", "-")
        dynamic = "" if self.dynamic_dimension is None else ".dynamic"
        return f"{stem}.{self.mode}{target}{dynamic}"

    @property
    def folder(self) -> Path:
        """Where it is kept."""
        return HERE / self.name


TRAINED = ("04", "06", "11", "27")
LOWERED: tuple[tuple[str, Mode], ...] = (
    ("10", "inference"),
    ("30", "training"),
    ("36", "inference"),
    ("36", "training"),
    ("38", "inference"),
    ("38", "training"),
)


def _casebook() -> Iterator[Set]:
    found = sorted((ROOT / "tests" / "casebook").glob("[0-9]*.py"))
    models = {path.name[:2]: path.relative_to(ROOT).as_posix() for path in found}
    for number, model in models.items():
        if number in TRAINED:
            yield Set(model, "training")
        elif number not in ("10", "36", "38"):
            further = ",inductor-layout-opt-forced,inductor-freezing" if number == "22" else ""
            yield Set(model, configurations=UNFROZEN + further)
    for number, mode in LOWERED:
        yield Set(models[number], mode, "inductor", lower_for="cuda:90")
    yield Set(models["10"], configurations="inductor", lower_for="cuda:90", dynamic_dimension=2)


def _false_alarms() -> Iterator[Set]:
    rows: tuple[tuple[str, Mode, str, str], ...] = (
        ("SqueezeAndAttend", "inference", "2,3,16,16", "eager-channels-last,inductor"),
        ("SqueezeAndAttend", "training", "2,3,16,16", "eager-channels-last"),
        ("TwoConvolutions", "inference", "2,3,16,16", "eager,eager-channels-last,inductor"),
        ("MovesOnly", "inference", "2,8,6,6", "eager,inductor"),
        ("MovesOnlyThatKeepChannelsLast", "inference", "2,8,6,6", "eager-channels-last,inductor-channels-last"),
        ("Transposes", "inference", "2,8,6,6", "eager,inductor"),
        ("CopiesOfManyKinds", "training", "2,4,8,16", "eager"),
        ("Tokens", "inference", "2,8,6,6", FORMATS),
        ("ContiguousTokens", "inference", "2,8,6,6", FORMATS),
        ("SequenceConvolution", "inference", "2,32,16", "eager,inductor"),
        ("NormalizedByGroup", "inference", "2,8,16,16", "eager-channels-last,inductor-channels-last"),
        ("SlowConvolution", "inference", "1,2,4,6,6", "eager,inductor"),
        ("ClonesAndMutates", "inference", "2,8,6,6", FORMATS),
        ("Classifier", "inference", "2,3,16,16", "eager-channels-last"),
    )
    for name, mode, shape, configurations in rows:
        yield Set(f"tests/false_alarms.py:{name}", mode, configurations, inputs=(f"f32[{shape}]",))


def _examples() -> Iterator[Set]:
    for path in sorted((ROOT / "examples").glob("*.py")):
        yield Set(path.relative_to(ROOT).as_posix(), "training" if path.stem == "fire_module" else "inference")


SETS = {found.name: found for found in (*_casebook(), *_false_alarms(), *_examples())}
OF_GPUS = tuple(sorted(folder.name for folder in HERE.glob("*.nvidia-*")))
"""Sets that ``benchmarks/gpu.py`` recorded on a GPU, with what was seen by hand there beside them."""


def record(wanted: Set) -> list[Recording]:
    """Runs a diagnosis; of several profiled iterations only the quietest is kept."""
    from layoutdoctor.privacy import scrub
    from layoutdoctor.run.diagnose import diagnose_object, diagnose_request
    from layoutdoctor.run.watching import Watch
    from layoutdoctor.workers.launcher import kept_launcher
    from layoutdoctor.workers.messages import Request

    request = Request(
        target=str(ROOT / wanted.model),
        inputs=wanted.inputs,
        mode=wanted.mode,
        configurations=choose_configurations(wanted.configurations, wanted.mode),
        lower_for=wanted.lower_for,
        budget_seconds=BUDGET_SECONDS,
    )
    watch = Watch(lambda progress: None)
    if wanted.dynamic_dimension is None:
        diagnose_request(kept_launcher(), request, watch)
    else:
        import torch

        from layoutdoctor.subjects.load import load_target

        subject = load_target(str(ROOT / wanted.model), inputs=wanted.inputs)
        torch._dynamo.mark_dynamic(subject.args[0], wanted.dynamic_dimension)
        diagnose_object(subject.model, subject.args, request, watch)
    quietest = ((recording, sorted(recording.iterations, key=busy_time)[:1]) for recording in watch.latest)
    return [scrub(msgspec.structs.replace(one, iterations=tuple(kept))) for one, kept in quietest]


def main(names: list[str]) -> None:
    """Records the named sets that are not there yet, or all."""
    from layoutdoctor.files.writing import RECORDING_SUFFIX
    from layoutdoctor.recording.saved import save_recording

    for name in names or SETS:
        wanted = SETS[name]
        if wanted.folder.exists():
            continue
        print(name, flush=True)
        recordings = record(wanted)
        unfinished = HERE / f"{name}.unfinished"
        unfinished.mkdir(exist_ok=True)
        for recording in recordings:
            save_recording(recording, unfinished / f"{recording.name}{RECORDING_SUFFIX}")
        unfinished.rename(wanted.folder)


if __name__ == "__main__":
    main(sys.argv[1:])
