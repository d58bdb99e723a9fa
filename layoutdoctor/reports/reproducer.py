"""
The reproducer: a script with torch alone that shows the worst finding.

The model in it is torch's own text of the traced graph, or comes from the file that was diagnosed; everything else that
comes from a record is written by ``repr`` or is in a comment.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable
from dataclasses import dataclass
from importlib import resources

from layoutdoctor.diagnosis import Diagnosis, Finding, Subject, TracedModel, Trial
from layoutdoctor.diagnosis.answer import INCONCLUSIVE
from layoutdoctor.diagnosis.configurations import BASELINE, name_without_cures
from layoutdoctor.examination.advice.applying import effective_options, global_options
from layoutdoctor.examination.advice.choice import is_far_off, wrong_baseline
from layoutdoctor.examination.counts import counted_conversions
from layoutdoctor.examination.traced_text import needs_torch_alone
from layoutdoctor.reports.sections.wording import clean_log, clean_name
from layoutdoctor.units import format_ratio, format_seconds
from layoutdoctor.words import phrase

GPU_CONVERSIONS = "nchwToNhwc|nhwcToNchw|[Tt]ransposeKernel|batched_transpose|nchwToFold|nChwTo"
"""Names of the kernels that only change a layout, in the libraries of NVIDIA and AMD."""

_FEWEST_STARTS, _MOST_STARTS = 3, 5
"""Processes of each configuration: fewer if the interval of the ratio is narrow."""
_QUANTILES = {3: 4.303, 4: 3.182, 5: 2.776}
"""Student's t for 95 %, by the number of starts."""

_AS_IN_A_DIAGNOSIS = {"MALLOC_TRIM_THRESHOLD_": "4294967296", "MALLOC_MMAP_MAX_": "0", "GOMP_SPINCOUNT": "10000"}
"""glibc keeps what a call frees, so that page faults do not decide a ratio, and threads that wait soon sleep."""

_FILE = re.compile(r"([\w-][\w.-]*\.py)(?::(\w+(?:\.\w+)*))?")
"""A model's file, and the name in it, as a subject is called."""
_MODEL_NAMES = ("Model", "get_module", "get_model", "model")
_INPUT_NAMES = ("get_inputs", "example_input", "example_inputs")

_WIDTH = 118


@dataclass(frozen=True, slots=True)
class Reproducer:
    """
    A script with its title, or the reason why there is none.

    Attributes:
        script: Python source; without a model it only prints the reason.
        title: The configurations that it compares, and the finding.
        reason: Why there is nothing to run; None if there is.
        printed: The output of a run before the script was handed out; None if it was not run.
        file: Name of the model's file that the script reads; None if the model is in the script.
    """

    script: str
    title: str
    reason: str | None = None
    printed: str | None = None
    file: str | None = None

    @property
    def is_runnable(self) -> bool:
        """Whether it shows the finding."""
        return self.reason is None


def build_reproducer(diagnosis: Diagnosis) -> Reproducer:
    """The reproducer of a diagnosis, or why there is none."""
    model, sides = _traced(diagnosis), _sides(diagnosis)
    reason = None
    if diagnosis.is_recording:
        reason = "a recorded trace does not hold the operations of the model"
    elif diagnosis.subject.target is not None:
        reason = "the graphs were lowered for a GPU that was not there, so nothing ran"
    elif diagnosis.subject.device not in ("cpu", "cuda"):
        reason = "the model ran on neither a CPU nor a GPU"
    elif sides is None:
        reason = "fewer than two configurations ran that a script can apply"
    elif model is None:
        reason = "torch cannot print the model's operations, and a script finds a model only in a file of its own"
    if reason is not None or sides is None or model is None:
        return Reproducer(f'raise SystemExit("no reproducer: {reason}")\n', "No reproducer", reason or "")
    title = _title(diagnosis, *sides)
    printed = diagnosis.reproduction.printed if diagnosis.reproduction is not None else None
    file = model.name if isinstance(model, _ModelFile) else None
    return Reproducer(_script(diagnosis, model, sides, title), title, printed=printed, file=file)


@dataclass(frozen=True, slots=True)
class _ModelFile:
    """
    A file that a script takes the model from.

    Attributes:
        name: Without folders.
        attribute: The model in it; None for the first of the usual names.
    """

    name: str
    attribute: str | None


def _traced(diagnosis: Diagnosis) -> TracedModel | _ModelFile | None:
    """The model as text if torch printed it whole, else its file; None if a script can have neither."""
    default = diagnosis.find_trial(BASELINE)
    model = default.traced if default is not None and not default.graph_break_reasons else None
    if model is not None and needs_torch_alone(model.text):
        return model
    file = _FILE.fullmatch(diagnosis.subject.name)
    return _ModelFile(file[1], file[2]) if file is not None and diagnosis.subject.model is not None else None


def render_reproducer(diagnosis: Diagnosis) -> str:
    """The reproducer as Python source, with its output behind it."""
    reproducer = build_reproducer(diagnosis)
    if not reproducer.printed:
        return reproducer.script
    printed = "".join(f"# {line}\n" for line in clean_log(reproducer.printed).splitlines())
    return f"{reproducer.script}\n# Before it was handed out it printed:\n{printed}"


def _sides(diagnosis: Diagnosis) -> tuple[Trial, Trial] | None:
    """
    The baseline and the trial to compare it with; eager mode and the default if the default's outputs are wrong.

    The other trial is the recommended one, without its cures; else the fastest of those with the fewest conversions.
    """
    ran = [trial for trial in diagnosis.trials if _can_be_written(trial)]
    usable = {trial.name: trial for trial in ran}
    if len(usable) < 2:
        return None
    if _has_wrong_values(diagnosis):
        return usable["eager"], usable[BASELINE]
    first = usable.get(diagnosis.baseline_name) or ran[0]
    fastest, ratios = diagnosis.fastest, diagnosis.ratios
    if fastest is not None:
        for name in (fastest.name, name_without_cures(fastest.configuration)):
            if name in usable and name != first.name:
                return first, usable[name]

    def rank(trial: Trial) -> tuple[float, float]:
        conversions = math.inf if trial.kernels is None else len(counted_conversions(trial))
        return conversions, -ratios[trial.name].median if trial.name in ratios else 0.0

    return first, min((trial for trial in ran if trial is not first), key=rank)


def _can_be_written(trial: Trial) -> bool:
    """Whether it ran, and a script can apply its configuration: a cure changes modules, and a script has none."""
    configuration = trial.configuration
    is_plain = not configuration.cures and not configuration.library_switches
    return trial.status == "ok" and is_plain and configuration.backend in ("eager", "inductor")


def _has_wrong_values(diagnosis: Diagnosis) -> bool:
    """Whether the default computes something else, and a script can show that beside eager mode."""
    wrong, eager = wrong_baseline(diagnosis), diagnosis.find_trial("eager")
    if wrong is None or eager is None or wrong.name != BASELINE:
        return False
    return _can_be_written(wrong) and _can_be_written(eager) and is_far_off(wrong)


def _title(diagnosis: Diagnosis, first: Trial, second: Trial) -> str:
    title = f"{clean_name(second.name)} against {clean_name(first.name)}"
    finding = next((f for f in diagnosis.findings if _is_shown(f, diagnosis, first, second)), None)
    return title if finding is None else f"{clean_name(finding.code)} {clean_name(finding.rule)}: {title}"


def _is_shown(finding: Finding, diagnosis: Diagnosis, first: Trial, second: Trial) -> bool:
    """Whether the script shows a finding, by values or by times and conversions; LD4xx are about measuring."""
    trial = first if finding.configuration is None else diagnosis.measured_trial(finding.configuration)
    is_one = trial is not None and trial.name in (first.name, second.name)
    return is_one and (finding.code == "LD402" if _has_wrong_values(diagnosis) else finding.code[:3] != "LD4")


def _script(diagnosis: Diagnosis, model: TracedModel | _ModelFile, sides: tuple[Trial, Trial], title: str) -> str:
    import jinja2  # late: most commands write no script

    subject, environment = diagnosis.subject, diagnosis.environment
    ratio = _recorded_ratio(diagnosis, *sides)
    source = (resources.files("layoutdoctor.reports") / "page" / "reproducer.py.j2").read_text(encoding="utf-8")
    template = jinja2.Environment(
        trim_blocks=True, lstrip_blocks=True, keep_trailing_newline=True, undefined=jinja2.StrictUndefined
    ).from_string(source)
    return template.render(
        head=_head(diagnosis, model, sides, title),
        compares_values=_has_wrong_values(diagnosis),
        is_on_cpu=subject.device == "cpu",
        device=subject.device,
        is_training=subject.mode == "training",
        thread_count=environment.thread_count if subject.device == "cpu" else None,
        **_values_of_model(model, subject),
        configurations={repr(trial.name): _applied(trial) for trial in sides},
        recorded={trial.name: _counts(trial, subject.device) for trial in sides},
        counted="(reorders, copies)" if subject.device == "cpu" else "(conversion kernels)",
        ratio=None if ratio is None else round(ratio, 3),
        environment=_AS_IN_A_DIAGNOSIS,
        gpu_conversions=GPU_CONVERSIONS,
        fewest_starts=_FEWEST_STARTS,
        most_starts=_MOST_STARTS,
        quantiles=_QUANTILES,
    )


def _values_of_model(model: TracedModel | _ModelFile, subject: Subject) -> dict[str, object]:
    """The template's values about the model and its inputs."""
    if isinstance(model, TracedModel):
        numbers = [name for name in ("inf", "nan", "prod") if name == "prod" or f" {name}" in model.text]
        weights, inputs = (
            _packed((tensor.shape, tensor.stride, tensor.dtype, tensor.requires_grad) for tensor in tensors)
            for tensors in (model.weights, model.inputs)
        )
        return {"file": None, "text": model.text, "numbers": ", ".join(numbers), "weights": weights, "inputs": inputs}
    return {
        "file": repr(model.name),
        "attribute": repr(model.attribute),
        "model_names": repr(_MODEL_NAMES),
        "input_names": repr(_INPUT_NAMES),
        "inputs": _packed((tensor.shape, tensor.dtype) for tensor in subject.inputs),
    }


def _head(diagnosis: Diagnosis, model: TracedModel | _ModelFile, sides: tuple[Trial, Trial], title: str) -> list[str]:
    subject = diagnosis.subject
    step = "forward and backward" if subject.mode == "training" else "inference"
    versions = f"layoutdoctor {clean_name(diagnosis.layoutdoctor_version)}"
    versions += phrase(" with torch {}", diagnosis.environment.torch, clean_name)
    times = [
        f"{clean_name(trial.name)} {format_seconds(trial.seconds)}" for trial in sides if trial.seconds is not None
    ]
    ratio = _recorded_ratio(diagnosis, *sides)
    head = [
        f"{title}.",
        f"{_origin(model)}; {step} on a {'CPU' if subject.device == 'cpu' else 'GPU'}.",
        f"Recorded by {versions}: {', '.join(times) or 'no times'}{phrase('; {} as fast', ratio, format_ratio)}.",
    ]
    if _has_wrong_values(diagnosis):
        return [*head, "Compares outputs and gradients with those of eager mode, and exits 1 if they do not differ."]
    return [
        *head,
        f"Starts {_FEWEST_STARTS} to {_MOST_STARTS} processes of each and times them in turns.",
        "Exits 1 if conversions are not as recorded, or the interval of the ratio lies on the other side of 1.",
    ]


def _origin(model: TracedModel | _ModelFile) -> str:
    if isinstance(model, TracedModel):
        return f"The model as torch.compile traced it ({model.text.count(chr(10))} lines), with random weights"
    return f"The model of {model.name}, which is beside this script or is given as its argument"


def _packed(tensors: Iterable[tuple[object, ...]]) -> list[str]:
    """The facts of each tensor, as many tensors on a line as fit."""
    lines: list[str] = []
    for tensor in tensors:
        text = f"{tensor!r},"
        if lines and len(lines[-1]) + len(text) < _WIDTH - 4:
            lines[-1] += f" {text}"
        else:
            lines.append(text)
    return lines


def _applied(trial: Trial) -> str:
    """How the script applies a configuration, in the order that its ``prepared`` reads."""
    configuration = trial.configuration
    formats = configuration.model_format or "preserve", configuration.input_format or "preserve"
    return repr((configuration.backend, *formats, effective_options(configuration), global_options(configuration)))


def _counts(trial: Trial, device: str | None) -> list[int] | None:
    """The conversions that the script counts, as they were recorded."""
    kernels = trial.kernel_summary
    if trial.kernels is None or kernels.count != len(kernels.kernels):
        return None
    names = [kernel.name for kernel in kernels.kernels]
    if device != "cpu":
        return [sum(re.search(GPU_CONVERSIONS, name) is not None for name in names)]
    return [names.count("reorder"), names.count("aten::copy_")] if "onednn_log" in kernels.sources else None


def _recorded_ratio(diagnosis: Diagnosis, first: Trial, second: Trial) -> float | None:
    """How many times faster the second one was; None if they were not compared, or the ratio is inconclusive."""
    ratio = diagnosis.ratios.get(second.name)
    if ratio is None or first.name != diagnosis.baseline_name or ratio.verdict == INCONCLUSIVE:
        return None
    return ratio.median if 0 < ratio.median < math.inf else None
