"""
The tables of a diagnosis as pandas DataFrames: flat columns, units in their names, one dtype each in every diagnosis.

What a record does not know is missing in the table too (``NA``, in a float column ``NaN``), never zero. The only user
of pandas, which is loaded late and need not be installed.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from layoutdoctor.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    import msgspec
    import pandas

    from layoutdoctor.diagnosis.layout import Layout, Size
    from layoutdoctor.diagnosis.records import Conversion, Diagnosis, SourceLocation, Trial

Row = dict[str, object]
OTHER_STRIDES = "other strides"
_INTEGERS = frozenset(
    "bytes_moved conversion_count count graph_count groups kernel_count line peak_memory_bytes rank recompile_count "
    "redundant_pair_count round round_count stream".split()
)
_TRUTHS = frozenset(
    "channels_last is_backward is_baseline is_fused is_recommended is_static is_transposed "
    "layout_optimization_applied".split()
)
_REALS = ("seconds", "_share", "max_abs_error", "ratio_high", "ratio_low", "ratio_median")
"""Endings of the columns that hold floats; every other column holds text."""


def to_pandas(diagnosis: Diagnosis, table: str = "trials") -> pandas.DataFrame:
    """
    One table of the diagnosis as a DataFrame.

    A trial that is the same as another one has a row among the trials; its conversions, pairs and convolutions are
    listed under that other one's name, once. A conversion that both the graph and the kernel list show has a row from
    each: ``evidence`` says which.

    Args:
        table: ``trials``, ``rounds``, ``conversions``, ``redundant_pairs``, ``convolutions`` or ``findings``.

    Returns:
        The same columns with the same dtypes for every diagnosis, also if there are no rows.

    Raises:
        UsageError: There is no such table, or pandas is not installed.
    """
    if table not in _TABLES:
        raise UsageError(f"cannot make table {table!r}: expected one of {', '.join(sorted(_TABLES))}")
    try:
        import pandas
    except ModuleNotFoundError as error:
        if error.name != "pandas":
            raise
        raise UsageError(f"cannot make table {table!r}: pandas is not installed; pip install pandas") from error
    names, rows_of = _TABLES[table]
    rows = list(rows_of(diagnosis))
    columns = {name: pandas.Series([row[name] for row in rows], dtype=_dtype(name)) for name in names.split()}
    frame: pandas.DataFrame = pandas.DataFrame(columns)
    return frame


def _dtype(name: str) -> str:
    """The dtype of a column; each of them can hold a missing value."""
    if name in _INTEGERS:
        return "Int64"
    if name in _TRUTHS:
        return "boolean"
    return "float64" if name.endswith(_REALS) else "string"


def _trial_rows(diagnosis: Diagnosis) -> Iterator[Row]:
    comparison, recommendation = diagnosis.comparison, diagnosis.recommendation
    ratios = {ratio.name: ratio for ratio in comparison.ratios} if comparison else {}
    for trial in diagnosis.trials:
        measurement, kernels, ratio = trial.measurement, trial.kernels, ratios.get(trial.name)
        yield {
            "configuration": trial.name,
            **_fields(trial.configuration, "backend", "layout_optimization", "model_format", "input_format"),
            **_fields(trial, "status", "same_as", "is_static", "recompile_count"),
            "failure": f"{trial.failure.kind}: {trial.failure.message}" if trial.failure else None,
            "is_baseline": comparison.baseline == trial.name if comparison else None,
            "is_recommended": recommendation.configuration == trial.name if recommendation else None,
            **_fields(measurement, "median_seconds", "compile_seconds", "peak_memory_bytes"),
            "round_count": len(measurement.round_seconds) if measurement else None,
            **_fields(ratio, "verdict", ratio_low="low", ratio_median="median", ratio_high="high"),
            **_fields(kernels, "conversion_count", "conversion_seconds", conversion_share="share"),
            **_fields(kernels, kernel_count="count", kernel_seconds="seconds"),
            "redundant_pair_count": len(trial.redundant_pairs),
            "graph_count": len(trial.graphs),
            **_fields(trial.equivalence, "max_abs_error", equivalence="status"),
        }


def _round_rows(diagnosis: Diagnosis) -> Iterator[Row]:
    for trial in diagnosis.trials:
        for number, seconds in enumerate(trial.measurement.round_seconds if trial.measurement else ()):
            yield {"configuration": trial.name, "round": number, "seconds": seconds}


def _conversion_rows(diagnosis: Diagnosis) -> Iterator[Row]:
    """Those of the graphs first, then of the kernel list."""
    for trial in _own_trials(diagnosis):
        for graph in trial.graphs:
            for conversion in graph.conversions:
                own = {"evidence": "graph", "graph": conversion.graph or graph.name}
                yield {**_conversion_row(conversion), "configuration": trial.name, **own}
        for conversion in trial.kernels.conversions if trial.kernels else ():
            yield {**_conversion_row(conversion), "configuration": trial.name, "evidence": "kernels"}


def _conversion_row(conversion: Conversion) -> Row:
    source, target = conversion.source, conversion.target
    shaped = source or target
    return {
        **_all_fields(conversion),
        "is_fused": conversion.fused,
        "shape": _sizes(shaped.shape if shaped else None),
        "source_format": _format(source),
        "source_strides": _sizes(source.stride if source else None),
        "target_shape": _sizes(target.shape if target else None),
        "target_format": _format(target),
        "target_strides": _sizes(target.stride if target else None),
    }


def _pair_rows(diagnosis: Diagnosis) -> Iterator[Row]:
    for trial in _own_trials(diagnosis):
        for pair in trial.redundant_pairs:
            listed = {"also": "; ".join(pair.also), "between": "; ".join(pair.between)}
            shape = _sizes(pair.tensor_shape)
            yield {**_all_fields(pair), "configuration": trial.name, **listed, "shape": shape}


def _convolution_rows(diagnosis: Diagnosis) -> Iterator[Row]:
    for trial in _own_trials(diagnosis):
        for graph in trial.graphs:
            for convolution in graph.decision.convolutions if graph.decision else ():
                yield {
                    **_all_fields(convolution),
                    "configuration": trial.name,
                    "graph": graph.name,
                    "direction": graph.direction,
                    "class": convolution.class_,
                    **{
                        name: _sizes(getattr(convolution, name))
                        for name in ("weight_shape", "stride", "padding", "dilation")
                    },
                    **_fields(graph.decision, layout_optimization_applied="applied", decision_rule="rule"),
                }


def _finding_rows(diagnosis: Diagnosis) -> Iterator[Row]:
    return ({**_all_fields(finding), "evidence": "; ".join(finding.evidence)} for finding in diagnosis.findings)


def _all_fields(record: msgspec.Struct) -> Row:
    """The fields of a record under their own names, with its place as file and line."""
    fields = {name: getattr(record, name) for name in record.__struct_fields__}
    location: SourceLocation | None = fields["location"]
    return {**fields, "file": location.file if location else None, "line": location.line if location else None}


def _fields(record: msgspec.Struct | None, *names: str, **columns: str) -> Row:
    """Fields of a record under their own names, and under those of columns."""
    wanted = {**dict(zip(names, names, strict=True)), **columns}
    return {column: None if record is None else getattr(record, field) for column, field in wanted.items()}


def _own_trials(diagnosis: Diagnosis) -> Iterator[Trial]:
    """Those whose records are their own: a trial that is the same as another one repeats that one's."""
    return (trial for trial in diagnosis.trials if trial.status != "same_as")


def _format(layout: Layout | None) -> str | None:
    """Every memory format it satisfies, or oneDNN's name of a blocked one."""
    if layout is None:
        return None
    return layout.format or " or ".join(layout.memory_formats) or OTHER_STRIDES


def _sizes(sizes: Sequence[Size] | None) -> str | None:
    return None if sizes is None else f"[{', '.join(str(size) for size in sizes)}]"


_TABLES: Mapping[str, tuple[str, Callable[[Diagnosis], Iterator[Row]]]] = {
    "trials": (
        "configuration backend layout_optimization model_format input_format status same_as failure is_baseline "
        "is_recommended is_static median_seconds round_count compile_seconds peak_memory_bytes ratio_low ratio_median "
        "ratio_high verdict kernel_count kernel_seconds conversion_count conversion_seconds conversion_share "
        "redundant_pair_count graph_count recompile_count equivalence max_abs_error",
        _trial_rows,
    ),
    "rounds": ("configuration round seconds", _round_rows),
    "conversions": (
        "configuration evidence graph id owner direction tensor role is_fused shape source_format source_strides "
        "target_shape target_format target_strides dtype target_dtype count seconds seconds_source exposed_seconds "
        "bytes_moved bandwidth_share start_seconds stream step confidence kernel node op cause module file line",
        _conversion_rows,
    ),
    "redundant_pairs": (
        "configuration kind evidence graph first second also between shape seconds seconds_source exposed_seconds "
        "bytes_moved confidence proof module file line",
        _pair_rows,
    ),
    "convolutions": (
        "configuration graph direction node class channels_last rank weight_shape groups stride padding dilation "
        "is_transposed is_backward layout_optimization_applied decision_rule module file line",
        _convolution_rows,
    ),
    "findings": (
        "code rule severity configuration message suggestion seconds bytes_moved evidence accepted module file line",
        _finding_rows,
    ),
}
