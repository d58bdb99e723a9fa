"""Rows of the tables that ``to_pandas`` makes: a flat dict per row, a value for every column, None where not known."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from layoutdoctor.layout import Layout, Size
    from layoutdoctor.records import (
        Conversion,
        Convolution,
        Diagnosis,
        Finding,
        Graph,
        RedundantPair,
        SourceLocation,
        Trial,
    )

Row = dict[str, str | int | float | bool | None]

OTHER_STRIDES = "other strides"


def trial_rows(diagnosis: Diagnosis) -> Iterator[Row]:
    """One row per trial."""
    comparison, recommendation = diagnosis.comparison, diagnosis.recommendation
    ratios = {ratio.name: ratio for ratio in comparison.ratios} if comparison else {}
    for trial in diagnosis.trials:
        configuration, measurement = trial.configuration, trial.measurement
        kernels, ratio, equivalence = trial.kernels, ratios.get(trial.name), trial.equivalence
        yield {
            "configuration": trial.name,
            "backend": configuration.backend,
            "layout_optimization": configuration.layout_optimization,
            "model_format": configuration.model_format,
            "input_format": configuration.input_format,
            "status": trial.status,
            "same_as": trial.same_as,
            "failure": f"{trial.failure.kind}: {trial.failure.message}" if trial.failure else None,
            "is_baseline": comparison.baseline == trial.name if comparison else None,
            "is_recommended": recommendation.configuration == trial.name if recommendation else None,
            "is_static": trial.is_static,
            "median_seconds": measurement.median_seconds if measurement else None,
            "round_count": len(measurement.round_seconds) if measurement else None,
            "compile_seconds": measurement.compile_seconds if measurement else None,
            "peak_memory_bytes": measurement.peak_memory_bytes if measurement else None,
            "ratio_low": ratio.low if ratio else None,
            "ratio_median": ratio.median if ratio else None,
            "ratio_high": ratio.high if ratio else None,
            "verdict": ratio.verdict if ratio else None,
            "kernel_count": kernels.count if kernels else None,
            "kernel_seconds": kernels.seconds if kernels else None,
            "conversion_count": kernels.conversion_count if kernels else None,
            "conversion_seconds": kernels.conversion_seconds if kernels else None,
            "conversion_share": kernels.share if kernels else None,
            "redundant_pair_count": len(trial.redundant_pairs),
            "graph_count": len(trial.graphs),
            "recompile_count": trial.recompile_count,
            "equivalence": equivalence.status if equivalence else None,
            "max_abs_error": equivalence.max_abs_error if equivalence else None,
        }


def round_rows(diagnosis: Diagnosis) -> Iterator[Row]:
    """One row per measured round, long: configuration, round from 0, seconds."""
    for trial in diagnosis.trials:
        for number, seconds in enumerate(trial.measurement.round_seconds if trial.measurement else ()):
            yield {"configuration": trial.name, "round": number, "seconds": seconds}


def conversion_rows(diagnosis: Diagnosis) -> Iterator[Row]:
    """One row per conversion, of the graphs first, then of the kernel list."""
    for trial in _own_trials(diagnosis):
        for graph in trial.graphs:
            for conversion in graph.conversions:
                yield _conversion_row(trial, "graph", conversion, conversion.graph or graph.name)
        for conversion in trial.kernels.conversions if trial.kernels else ():
            yield _conversion_row(trial, "kernels", conversion, conversion.graph)


def _conversion_row(trial: Trial, evidence: str, conversion: Conversion, graph: str | None) -> Row:
    source, target = conversion.source, conversion.target
    return {
        "configuration": trial.name,
        "evidence": evidence,
        "graph": graph,
        "id": conversion.id,
        "owner": conversion.owner,
        "direction": conversion.direction,
        "tensor": conversion.tensor,
        "role": conversion.role,
        "is_fused": conversion.fused,
        "shape": _shape(source or target),
        "source_format": _format(source),
        "source_strides": _sizes(source.stride if source else None),
        "target_shape": _shape(target),
        "target_format": _format(target),
        "target_strides": _sizes(target.stride if target else None),
        "dtype": conversion.dtype,
        "target_dtype": conversion.target_dtype,
        "count": conversion.count,
        "seconds": conversion.seconds,
        "seconds_source": conversion.seconds_source,
        "exposed_seconds": conversion.exposed_seconds,
        "bytes_moved": conversion.bytes_moved,
        "bandwidth_share": conversion.bandwidth_share,
        "start_seconds": conversion.start_seconds,
        "stream": conversion.stream,
        "step": conversion.step,
        "confidence": conversion.confidence,
        "kernel": conversion.kernel,
        "node": conversion.node,
        "op": conversion.op,
        "cause": conversion.cause,
        **_place(conversion.location, conversion.module),
    }


def pair_rows(diagnosis: Diagnosis) -> Iterator[Row]:
    """One row per redundant pair."""
    for trial in _own_trials(diagnosis):
        for pair in trial.redundant_pairs:
            yield _pair_row(trial, pair)


def _pair_row(trial: Trial, pair: RedundantPair) -> Row:
    return {
        "configuration": trial.name,
        "kind": pair.kind,
        "evidence": pair.evidence,
        "graph": pair.graph,
        "first": pair.first,
        "second": pair.second,
        "also": _listed(pair.also),
        "between": _listed(pair.between),
        "shape": _sizes(pair.tensor_shape),
        "seconds": pair.seconds,
        "seconds_source": pair.seconds_source,
        "exposed_seconds": pair.exposed_seconds,
        "bytes_moved": pair.bytes_moved,
        "confidence": pair.confidence,
        "proof": pair.proof,
        **_place(pair.location, pair.module),
    }


def convolution_rows(diagnosis: Diagnosis) -> Iterator[Row]:
    """One row per convolution on a decision card."""
    for trial in _own_trials(diagnosis):
        for graph in trial.graphs:
            for convolution in graph.decision.convolutions if graph.decision else ():
                yield _convolution_row(trial, graph, convolution)


def _convolution_row(trial: Trial, graph: Graph, convolution: Convolution) -> Row:
    decision = graph.decision
    return {
        "configuration": trial.name,
        "graph": graph.name,
        "direction": graph.direction,
        "node": convolution.node,
        "class": convolution.class_,
        "channels_last": convolution.channels_last,
        "rank": convolution.rank,
        "weight_shape": _sizes(convolution.weight_shape),
        "groups": convolution.groups,
        "stride": _sizes(convolution.stride),
        "padding": _sizes(convolution.padding),
        "dilation": _sizes(convolution.dilation),
        "is_transposed": convolution.is_transposed,
        "is_backward": convolution.is_backward,
        "layout_optimization_applied": decision.applied if decision else None,
        "decision_rule": decision.rule if decision else None,
        **_place(convolution.location, convolution.module),
    }


def finding_rows(diagnosis: Diagnosis) -> Iterator[Row]:
    """One row per finding, in the diagnosis's order."""
    return (_finding_row(finding) for finding in diagnosis.findings)


def _finding_row(finding: Finding) -> Row:
    return {
        "code": finding.code,
        "rule": finding.rule,
        "severity": finding.severity,
        "configuration": finding.configuration,
        "message": finding.message,
        "suggestion": finding.suggestion,
        "seconds": finding.seconds,
        "bytes_moved": finding.bytes_moved,
        "evidence": _listed(finding.evidence),
        "accepted": finding.accepted,
        **_place(finding.location, finding.module),
    }


def _own_trials(diagnosis: Diagnosis) -> Iterator[Trial]:
    """Those whose records are their own: a trial that is the same as another one repeats that one's."""
    return (trial for trial in diagnosis.trials if trial.status != "same_as")


def _place(location: SourceLocation | None, module: str | None) -> Row:
    return {
        "module": module,
        "file": location.file if location else None,
        "line": location.line if location else None,
    }


def _format(layout: Layout | None) -> str | None:
    """Every memory format it satisfies, or oneDNN's name of a blocked one."""
    if layout is None:
        return None
    return layout.format or " or ".join(layout.memory_formats) or OTHER_STRIDES


def _shape(layout: Layout | None) -> str | None:
    return _sizes(layout.shape) if layout else None


def _sizes(sizes: Sequence[Size] | None) -> str | None:
    return None if sizes is None else f"[{', '.join(str(size) for size in sizes)}]"


def _listed(names: Sequence[str]) -> str:
    return "; ".join(names)
