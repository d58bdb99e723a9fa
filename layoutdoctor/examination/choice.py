"""What to recommend: which trial is the baseline, which may win, and what fresh processes make of the winner."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from layoutdoctor.diagnosis.configurations import BASELINE
from layoutdoctor.diagnosis.records import FASTER, Recommendation, Speedup, WithoutFreezing
from layoutdoctor.examination.ratios import RESOLUTION, UNDECIDED, WITHIN_EQUALITY, open_among_fastest, word_of
from layoutdoctor.units import format_ratio
from layoutdoctor.words import be

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence

    from layoutdoctor.diagnosis.records import (
        Comparison,
        Configuration,
        Diagnosis,
        FormatChoice,
        FreshProcesses,
        OptionValue,
        RatioInterval,
        Trial,
    )

ONE_PROCESS = "it was timed beside the other configurations in one process, not in fresh ones"
_AGREEMENT = 0.05
"""What one process and fresh ones may differ by beyond their intervals and still mean the same."""
_WIDEST = 0.2
"""Width of an interval over starts, upper over lower end, from which on it is faster, but nobody can say how much."""
_TELLING_FAULTS = 100
"""Page faults of a call above which their number may explain a time."""

_FORMAT_BY_RANK = {4: "torch.channels_last", 5: "torch.channels_last_3d"}


def how_to_apply(
    configuration: Configuration, parameter_ranks: frozenset[int], input_ranks: frozenset[int] | None = None
) -> str:
    """
    Code that applies a configuration to ``model`` and its input ``x``, one statement a line.

    Args:
        parameter_ranks: Dimensions that occur among the model's parameters and buffers; 4 and 5 matter.
        input_ranks: Dimensions that occur among its inputs; as the parameters' where None.

    Returns:
        Lines without a newline at the end; a comment where nothing has to be done.
    """
    ranks_of_inputs = parameter_ranks if input_ranks is None else input_ranks
    lines = _model_lines(configuration.model_format or "preserve", sorted(parameter_ranks & _FORMAT_BY_RANK.keys()))
    lines += [line for cure in configuration.cures for line in cure.how.splitlines()]
    lines += [f"torch.backends.{name} = {value}" for name, value in configuration.library_switches.items()]
    lines += _compile_lines(configuration)
    lines += _input_lines(configuration.input_format or "preserve", sorted(ranks_of_inputs & _FORMAT_BY_RANK.keys()))
    if configuration.freezes:
        lines += [
            "with torch.no_grad(), torch._inductor.config.patch(freezing=True):  # where it compiles",
            "    y = model(x)",
        ]
    return "\n".join(lines) or "# nothing to change: call the model as it is, without torch.compile"


def effective_options(configuration: Configuration) -> dict[str, OptionValue]:
    """
    What to pass as ``torch.compile(options=...)``.

    Returns:
        Inductor's option names and values. Freezing is never among them: dynamo reads it from the global setting
        before options apply, so it goes through ``global_options``.
    """
    options: dict[str, OptionValue] = {}
    if configuration.layout_optimization in ("off", "on", "forced"):
        options["layout_optimization"] = configuration.layout_optimization != "off"
    if configuration.layout_optimization == "forced":
        options["force_layout_optimization"] = True
    further = {name: value for name, value in configuration.inductor_options.items() if name != "freezing"}
    return {**options, **further}


def global_options(configuration: Configuration) -> dict[str, OptionValue]:
    """
    What has to be patched into Inductor's global settings around the first call.

    Source:
        ``is_parameter_freezing`` in torch/_dynamo reads ``torch._inductor.config.freezing`` while tracing, torch 2.13:
        ``options={"freezing": True}`` leaves the parameters graph inputs.
    """
    return {name: value for name, value in configuration.inductor_options.items() if name == "freezing"}


def _model_lines(choice: FormatChoice, ranks: list[int]) -> list[str]:
    if choice == "preserve" or not ranks:
        return []
    if choice == "contiguous":
        return [
            "for tensor in [*model.parameters(), *model.buffers()]:",
            "    tensor.data = tensor.data.contiguous()",
        ]
    if len(ranks) == 1:
        return [f"model = model.to(memory_format={_FORMAT_BY_RANK[ranks[0]]})"]
    # Module.to(memory_format=...) raises on a model with both ranks.
    lines = ["for tensor in [*model.parameters(), *model.buffers()]:"]
    for rank in ranks:
        lines += [
            f"    if tensor.dim() == {rank}:",
            f"        tensor.data = tensor.data.to(memory_format={_FORMAT_BY_RANK[rank]})",
        ]
    return lines


def _compile_lines(configuration: Configuration) -> list[str]:
    if configuration.backend != "inductor":
        return []
    options = effective_options(configuration)
    display = ", ".join(f'"{name}": {_value(value)}' for name, value in options.items())  # as formatters write it
    compiled = f"model = torch.compile(model{f', options={{{display}}}' if options else ''})"
    if configuration.freezes:
        return ["import torch._inductor.config", "model.eval()", compiled]
    return [compiled]


def _input_lines(choice: FormatChoice, ranks: list[int]) -> list[str]:
    if choice == "preserve" or not ranks:
        return []
    if choice == "contiguous":
        return ["x = x.contiguous()"]
    if len(ranks) == 1:
        return [f"x = x.to(memory_format={_FORMAT_BY_RANK[ranks[0]]})"]
    return [
        "x = x.to(memory_format=torch.channels_last if x.dim() == 4 else torch.channels_last_3d)"
        "  # every 4-D and 5-D input"
    ]


def _value(value: OptionValue) -> str:
    return '"' + value.replace("\\", "\\\\").replace('"', '\\"') + '"' if isinstance(value, str) else repr(value)


Ranks = tuple[frozenset[int], frozenset[int]]
"""Ranks of the parameters and of the inputs, which decide how a memory format is written down."""


def choose_baseline(configurations: Sequence[Configuration], measurable: Collection[str]) -> str:
    """The configuration that ratios refer to: torch.compile's default where it ran, else the first that did."""
    if BASELINE in measurable:
        return BASELINE
    return next(configuration.name for configuration in configurations if configuration.name in measurable)


def eligible_names(trials: Sequence[Trial]) -> frozenset[str]:
    """The trials that may be recommended: those that ran and whose outputs are not known to differ."""
    return frozenset(
        trial.name
        for trial in trials
        if trial.status == "ok" and not (trial.equivalence is not None and trial.equivalence.status == "different")
    )


def recommend(
    trials: Sequence[Trial], comparison: Comparison | None, without_freezing: Comparison | None, ranks: Ranks
) -> Recommendation:
    """
    What the rounds recommend; whether that holds is for fresh processes to say.

    Args:
        comparison: None where fewer than two trials were measured.
        without_freezing: Of the same rounds, those of frozen weights left out; None where nothing is left to compare.
    """
    if comparison is None or not comparison.fastest:
        return _none(_why_nothing(trials, comparison))
    chosen = _surely_faster(trials, comparison)
    if chosen is None and comparison.fastest[0] != comparison.baseline:
        name, first = _baseline_phrase(comparison), comparison.fastest[0]
        return _none(f"{name} may not be chosen, as its outputs are not right, and {first} is not surely faster")
    if chosen is None:
        return _none(_why_baseline(comparison))
    by_name = {trial.name: trial for trial in trials}
    free: WithoutFreezing | None = None
    if by_name[chosen].configuration.freezes:
        name = _surely_faster(trials, without_freezing) or comparison.baseline
        how = how_to_apply(by_name[name].configuration, *ranks)
        free = WithoutFreezing(configuration=name, speedup=_speedup(comparison, name), how=how)
    return Recommendation(
        configuration=chosen,
        speedup=_speedup(comparison, chosen),
        how=how_to_apply(by_name[chosen].configuration, *ranks),
        verified=False,
        reason=ONE_PROCESS,
        without_freezing=free,
    )


def _surely_faster(trials: Sequence[Trial], comparison: Comparison | None) -> str | None:
    """The best that is faster than the baseline beyond doubt, be it told from what may be better still or not."""
    if comparison is None:
        return None
    eligible = eligible_names(trials)
    faster = [ratio for ratio in comparison.ratios if ratio.verdict == FASTER and ratio.name in eligible]
    names = {ratio.name for ratio in faster}
    best = max(faster, key=lambda ratio: ratio.median, default=None)
    return next((name for name in comparison.fastest if name in names), None if best is None else best.name)


def undecided(diagnosis: Diagnosis) -> tuple[RatioInterval, ...]:
    """
    What may be faster than the baseline though the rounds could not tell, where nothing is recommended.

    Returns:
        Ratios to the baseline, highest first; empty where there is a conclusion.
    """
    comparison, advice = diagnosis.comparison, diagnosis.recommendation
    if comparison is None or (advice is not None and advice.configuration not in (None, comparison.baseline)):
        return ()
    eligible = eligible_names(diagnosis.trials)
    ratios = [ratio for ratio in comparison.ratios if ratio.name in eligible]
    if any(ratio.verdict == FASTER for ratio in ratios):
        return ()  # it may not be recommended for another reason
    found = [
        ratio for ratio in ratios if word_of(ratio) == UNDECIDED and (ratio.high > 1 + RESOLUTION or ratio.lacks_rounds)
    ]
    return tuple(sorted(found, key=lambda ratio: -ratio.median))


def has_open_questions(diagnosis: Diagnosis) -> bool:
    """Whether more rounds could say more: of what may be faster than the baseline, or as fast as the best."""
    open_among = () if diagnosis.comparison is None else diagnosis.comparison.undecided
    return bool(open_among or undecided(diagnosis))


def _speedup(comparison: Comparison, name: str) -> Speedup | None:
    ratio = next((ratio for ratio in comparison.ratios if ratio.name == name), None)
    return None if ratio is None else _bounds(ratio)


def _bounds(interval: RatioInterval | FreshProcesses) -> Speedup:
    return Speedup(low=interval.low, median=interval.median, high=interval.high)


def with_fresh_processes(
    recommendation: Recommendation, comparison: Comparison, trials: Sequence[Trial], fresh: Mapping[str, FreshProcesses]
) -> Recommendation:
    """
    The recommendation once fresh processes have timed it: theirs is the speed that the user will see.

    Args:
        fresh: Of each configuration that was timed beside the baseline.
    """
    free, name = recommendation.without_freezing, recommendation.configuration
    if free is not None and free.configuration in fresh:
        free = _free_in_fresh_processes(free, comparison, fresh[free.configuration])
    if name is None or name not in fresh:
        return recommendation
    seen, within = fresh[name], recommendation.speedup
    if not _is_faster(seen):
        why = _why_not_in_fresh_processes(name, within, seen)
        if free is None or free.speedup is None or free.fresh_processes is None:
            return msgspec.structs.replace(_none(why), fresh_processes=seen)
        # The best without freezing holds, and is what is left to recommend.
        within = _speedup(comparison, free.configuration)
        name, seen, how, free = free.configuration, free.fresh_processes, free.how, None
    else:
        how, why = recommendation.how, ""
    trial = next(trial for trial in trials if trial.name == name)
    equal = trial.equivalence is not None and trial.equivalence.status == "equal"
    doubt = _scatter(seen) or _disagreement(within, seen)
    reason = doubt or _why_chosen(comparison, name, equal=equal)
    return Recommendation(
        configuration=name,
        speedup=_bounds(seen),
        how=how,
        verified=equal and doubt is None,
        reason=f"{why}; {reason}" if why else reason,
        fresh_processes=seen,
        without_freezing=free,
    )


def _free_in_fresh_processes(free: WithoutFreezing, comparison: Comparison, seen: FreshProcesses) -> WithoutFreezing:
    if not _is_faster(seen):
        return WithoutFreezing(configuration=comparison.baseline, speedup=None, how=None)
    return msgspec.structs.replace(free, speedup=_bounds(seen), fresh_processes=seen)


def _is_faster(seen: FreshProcesses) -> bool:
    return seen.low > 1 + RESOLUTION


def _scatter(seen: FreshProcesses) -> str | None:
    """Where the starts differ too much among themselves to promise any one speed; None where they do not."""
    if seen.high / seen.low <= 1 + _WIDEST:
        return None
    least, most = format_ratio(min(seen.start_ratios)), format_ratio(max(seen.start_ratios))
    return f"its {seen.starts} starts scatter from {least} to {most}; measure on a machine that does nothing else"


def _disagreement(within: Speedup | None, seen: FreshProcesses) -> str | None:
    """Where one warm process and fresh ones differ by more than their intervals and a little; None where they agree."""
    if within is None:
        return None
    apart = max(within.low / seen.high, seen.low / within.high)
    if apart <= 1 + _AGREEMENT:
        return None
    return (
        f"beside the other configurations in one process it was {format_ratio(within.median)}, in fresh processes "
        f"{format_ratio(seen.median)}{_faults_text(seen)}"
    )


def _why_not_in_fresh_processes(name: str, within: Speedup | None, seen: FreshProcesses) -> str:
    gain = "" if within is None else f" beside the others in one process ({format_ratio(within.median)})"
    what = "slower" if seen.high < 1 else "not surely faster"
    interval = f"{format_ratio(seen.median)}, {format_ratio(seen.low)} to {format_ratio(seen.high)}"
    return f"{name} led{gain}, but in fresh processes it is {what} ({interval}){_faults_text(seen)}"


def _faults_text(seen: FreshProcesses) -> str:
    """Page faults, where those explain a difference between processes."""
    mine, theirs = seen.page_faults_per_call, seen.baseline_page_faults_per_call
    if mine is None or theirs is None or max(mine, theirs) < _TELLING_FAULTS:
        return ""
    return f", with {mine:.0f} page faults a call against {theirs:.0f}"


def _none(reason: str) -> Recommendation:
    return Recommendation(configuration=None, speedup=None, how=None, verified=False, reason=reason)


def _why_nothing(trials: Sequence[Trial], comparison: Comparison | None) -> str:
    if comparison is not None:
        return "no configuration whose outputs are right was measured"
    measured = [trial.name for trial in trials if trial.measurement is not None]
    if not measured:
        return "nothing was measured"
    same = [trial.name for trial in trials if trial.same_as in measured]
    if same and len(measured) == 1:
        return f"all configurations are the same as {measured[0]} for this model"
    return f"only {measured[0]} was measured, so there is nothing to compare it with"


def _baseline_phrase(comparison: Comparison) -> str:
    return "torch.compile's default" if comparison.baseline == BASELINE else comparison.baseline


def _why_baseline(comparison: Comparison) -> str:
    name = _baseline_phrase(comparison)
    ties = [name for name in comparison.fastest if name != comparison.baseline]
    noisy = [ratio.name for ratio in comparison.ratios if word_of(ratio) == UNDECIDED]
    open_ones, equal = ([name for name in ties if (name in noisy) is is_noisy] for is_noisy in (True, False))
    reasons = [f"nothing is measurably faster than {name}"]
    if equal:
        reasons.append(f"{', '.join(equal)} {be(len(equal))} equal to it {WITHIN_EQUALITY}")
    if open_ones:
        reasons.append(f"{', '.join(open_ones)} {be(len(open_ones))} undecided")
    return "; ".join(reasons)


def _why_chosen(comparison: Comparison, chosen: str, *, equal: bool) -> str:
    ties = [name for name in comparison.fastest if name not in (chosen, comparison.baseline)]
    open_ones = [name for name in open_among_fastest(comparison) if name in ties]
    as_fast = [name for name in ties if name not in open_ones and chosen in comparison.fastest]
    reason = "it is the fastest measured" if chosen in comparison.fastest else "it is the fastest of which that is sure"
    if as_fast:
        reason += f", together with {', '.join(as_fast)}, equal to it {WITHIN_EQUALITY}"
    if open_ones:
        reason += f"; whether {', '.join(open_ones)} may be as fast is undecided"
    return reason if equal else f"{reason}; its outputs were not checked against the reference"
