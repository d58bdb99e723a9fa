"""
Makes the reproducer: a script that needs torch alone and shows the worst finding.

The script's model is the code that torch printed for the traced graph, or it is loaded from the diagnosed file.
Everything else from a record is written by ``repr`` or is in a comment.
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
"""Regular expression for the names of kernels of NVIDIA's and AMD's libraries that only change a layout."""

_STARTS, _QUANTILE = 4, 3.182
"""Number of processes of each configuration, and Student's t quantile for a 95 % interval of that many ratios."""

_WAITS = "GOMP_SPINCOUNT"
"""Environment variable that says how threads wait; a diagnosis beside other programs sets it."""

_FILE = re.compile(r"([\w-][\w.-]*\.py)(?::(\w+(?:\.\w+)*))?")
"""Name of a subject that comes from a file: the file's name, and maybe the model's name in the file."""
_MODEL_NAMES = ("Model", "get_module", "get_model", "model")
_INPUT_NAMES = ("get_inputs", "example_input", "example_inputs")

_WIDTH = 118


@dataclass(frozen=True, slots=True)
class Reproducer:
    """
    A script with its title, or the reason why there is none.

    Attributes:
        script: Python source; if there is a reason, the script only prints the reason.
        title: The compared configurations, and the finding.
        reason: Reason why there is no script to run; empty if there is a script.
        printed: Output of the script when it was run before the report was written; empty if it was not run.
        file: Name of the model's file that the script reads; None if the model is in the script.
    """

    script: str
    title: str
    reason: str = ""
    printed: str = ""
    file: str | None = None

    @property
    def is_runnable(self) -> bool:
        """Whether there is a script to run."""
        return not self.reason


def build_reproducer(diagnosis: Diagnosis) -> Reproducer:
    """Makes the reproducer of a diagnosis, or says why there is none."""
    model, sides = _traced(diagnosis), _sides(diagnosis)
    reason = ""
    if diagnosis.is_recording:
        reason = "a recorded trace does not hold the operations of the model"
    elif diagnosis.subject.target is not None:
        reason = "the graphs were lowered for a GPU that this machine does not have, so nothing ran"
    elif diagnosis.subject.device not in ("cpu", "cuda"):
        reason = "the model ran on neither a CPU nor a GPU"
    elif sides is None:
        reason = "a script needs two configurations that it can apply, and fewer ran"
    elif model is None:
        reason = "torch cannot print the model's operations, and the model is in no Python file that a script can load"
    if reason or sides is None or model is None:
        return Reproducer(f'raise SystemExit("no reproducer: {reason}")\n', "No reproducer", reason)
    title = _title(diagnosis, *sides)
    printed = diagnosis.reproduction.printed if diagnosis.reproduction is not None else ""
    file = model.name if isinstance(model, _ModelFile) else None
    return Reproducer(_script(diagnosis, model, sides, title), title, printed=printed, file=file)


@dataclass(frozen=True, slots=True)
class _ModelFile:
    """
    A file from which the script loads the model.

    Attributes:
        name: File name without folders.
        attribute: Name of the model in the file; None for the first of the usual names.
    """

    name: str
    attribute: str | None


def _traced(diagnosis: Diagnosis) -> TracedModel | _ModelFile | None:
    """Returns the model's text if torch printed all of it, else its file; None if a script can use neither."""
    default = diagnosis.find_trial(BASELINE)
    model = default.traced if default is not None and not default.graph_break_reasons else None
    if model is not None and needs_torch_alone(model.text):
        return model
    file = _FILE.fullmatch(diagnosis.subject.name)
    return _ModelFile(file[1], file[2]) if file is not None and diagnosis.subject.model is not None else None


def render_reproducer(diagnosis: Diagnosis) -> str:
    """Returns the reproducer as Python source, with its output in comments at the end."""
    reproducer = build_reproducer(diagnosis)
    if not reproducer.printed:
        return reproducer.script
    printed = "".join(f"# {line}\n" for line in clean_log(reproducer.printed).splitlines())
    return f"{reproducer.script}\n# Output of this script before the report was written:\n{printed}"


def _sides(diagnosis: Diagnosis) -> tuple[Trial, Trial] | None:
    """
    Chooses the two trials to compare: the baseline and another one; None if a script can apply fewer than two.

    The other trial is the recommended one, or the same configuration without cures. If a script can apply neither, it
    is the trial with the fewest conversions; of several such trials, the fastest. If the default's outputs are wrong,
    the trials are eager mode and the default.
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
    """Whether a trial ran and a script can apply its configuration: eager or Inductor, without cures or switches."""
    configuration = trial.configuration
    is_plain = not configuration.cures and not configuration.library_switches
    return trial.status == "ok" and is_plain and configuration.backend in ("eager", "inductor")


def _has_wrong_values(diagnosis: Diagnosis) -> bool:
    """Whether the default's outputs are wrong and a script can show it by a comparison with eager mode."""
    wrong, eager = wrong_baseline(diagnosis), diagnosis.find_trial("eager")
    if wrong is None or eager is None or wrong.name != BASELINE:
        return False
    return _can_be_written(wrong) and _can_be_written(eager) and is_far_off(wrong)


def _title(diagnosis: Diagnosis, first: Trial, second: Trial) -> str:
    title = f"{clean_name(second.name)} against {clean_name(first.name)}"
    finding = next((f for f in diagnosis.findings if _is_shown(f, diagnosis, first, second)), None)
    return title if finding is None else f"{clean_name(finding.code)} {clean_name(finding.rule)}: {title}"


def _is_shown(finding: Finding, diagnosis: Diagnosis, first: Trial, second: Trial) -> bool:
    """
    Whether the script shows a finding: only LD402 if it compares values, else all except LD4xx.

    All configurations that the finding or its evidence names are those of the script.
    """
    named = (finding.configuration or first.name, *finding.evidence)
    trials = [trial for name in named if (trial := diagnosis.measured_trial(name)) is not None]
    is_one = bool(trials) and {trial.name for trial in trials} <= {first.name, second.name}
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
        head=_head(diagnosis, model, sides, title, ratio),
        compares_values=_has_wrong_values(diagnosis),
        is_on_cpu=subject.device == "cpu",
        device=subject.device,
        is_training=subject.mode == "training",
        thread_count=environment.thread_count if subject.device == "cpu" else None,
        **_values_of_model(model, subject),
        configurations={repr(trial.name): _applied(trial) for trial in sides},
        recorded={trial.name: _counts(trial, subject.device) for trial in sides},
        counted="reorders and copies" if subject.device == "cpu" else "conversion kernels",
        ratio=ratio,
        recorded_ratio="no certain ratio" if ratio is None else format_ratio(ratio),
        environment={name: of for name, of in environment.settings.items() if name == _WAITS},
        gpu_conversions=GPU_CONVERSIONS,
        starts=_STARTS,
        quantile=_QUANTILE,
    )


def _values_of_model(model: TracedModel | _ModelFile, subject: Subject) -> dict[str, object]:
    """Returns the template's values for the model and its inputs."""
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


def _head(
    diagnosis: Diagnosis, model: TracedModel | _ModelFile, sides: tuple[Trial, Trial], title: str, ratio: float | None
) -> list[str]:
    subject = diagnosis.subject
    step = "forward and backward" if subject.mode == "training" else "inference"
    versions = f"layoutdoctor {clean_name(diagnosis.layoutdoctor_version)}"
    versions += phrase(" with torch {}", diagnosis.environment.torch, clean_name)
    times = [
        f"{clean_name(trial.name)} {format_seconds(trial.seconds)}" for trial in sides if trial.seconds is not None
    ]
    head = [
        f"{title}.",
        f"{_origin(model)}; {step} on a {'CPU' if subject.device == 'cpu' else 'GPU'}.",
        f"Recorded by {versions}: {', '.join(times) or 'no times'}{phrase('; ratio {}', ratio, format_ratio)}.",
    ]
    if _has_wrong_values(diagnosis):
        return [*head, "Compares outputs and gradients with those of eager mode. Exit status: 1 if none differs."]
    return [
        *head,
        f"Times both in turns, in {_STARTS} processes each.",
        "Exit status: 1 if conversions differ from the record, or the ratio is now certainly reversed.",
    ]


def _origin(model: TracedModel | _ModelFile) -> str:
    if isinstance(model, TracedModel):
        return f"The model as torch.compile traced it ({model.text.count(chr(10))} lines), with random weights"
    return f"The model of {model.name}, a file beside this script or given as its argument"


def _packed(tensors: Iterable[tuple[object, ...]]) -> list[str]:
    """Returns the facts of tensors as lines, with as many tensors per line as fit."""
    lines: list[str] = []
    for tensor in tensors:
        text = f"{tensor!r},"
        if lines and len(lines[-1]) + len(text) < _WIDTH - 4:
            lines[-1] += f" {text}"
        else:
            lines.append(text)
    return lines


def _applied(trial: Trial) -> str:
    """Returns the settings of a configuration as source, in the order in which the script's ``prepared`` reads them."""
    configuration = trial.configuration
    formats = configuration.model_format or "preserve", configuration.input_format or "preserve"
    return repr((configuration.backend, *formats, effective_options(configuration), global_options(configuration)))


def _counts(trial: Trial, device: str | None) -> list[int] | None:
    """Returns the recorded numbers of the conversions that the script counts; None if they were not recorded."""
    kernels = trial.kernel_summary
    if trial.kernels is None or kernels.count != len(kernels.kernels):
        return None
    names = [kernel.name for kernel in kernels.kernels]
    if device != "cpu":
        return [sum(re.search(GPU_CONVERSIONS, name) is not None for name in names)]
    return [names.count("reorder"), names.count("aten::copy_")] if "onednn_log" in kernels.sources else None


def _recorded_ratio(diagnosis: Diagnosis, first: Trial, second: Trial) -> float | None:
    """Returns the second trial's recorded ratio; None if the two were not compared or the ratio is inconclusive."""
    ratio = diagnosis.ratios.get(second.name)
    if ratio is None or first.name != diagnosis.baseline_name or ratio.verdict == INCONCLUSIVE:
        return None
    return ratio.median if 0 < ratio.median < math.inf else None
