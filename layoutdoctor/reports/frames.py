"""
Makes the tables of a diagnosis as pandas DataFrames, with flat columns and units in their names.

A column has the same dtype in every diagnosis. A fact that a record lacks is missing in the table too (``NA``, or
``NaN`` in a float column), never zero. Only this module uses pandas. It imports pandas on first use, so that pandas
need not be installed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

from layoutdoctor.diagnosis import Conversion, Diagnosis, Layout, Size, SourceLocation, Trial
from layoutdoctor.errors import UsageError

if TYPE_CHECKING:
    import msgspec
    import pandas


Row = dict[str, object]
OTHER_STRIDES = "other strides"
_SIZES = ("tensor_shape", "weight_shape", "stride", "padding", "dilation")
_DTYPES = {"": "string", "int": "Int64", "float": "float64", "bool": "boolean"}
"""The pandas dtype of a column, by the type after its colon (``count:int``); each dtype has a missing value."""


def to_pandas(diagnosis: Diagnosis, table: str = "trials") -> pandas.DataFrame:
    """
    Returns one table of the diagnosis as a DataFrame.

    A trial that runs the same code as another trial has its own row in ``trials``. The conversions, pairs and
    convolutions of both are listed once, under the other trial's name. A conversion that is in a graph and in the
    kernel list has two rows; the column ``evidence`` has the source of each.

    Args:
        table: ``trials``, ``rounds``, ``conversions``, ``redundant_pairs``, ``convolutions`` or ``findings``.

    Returns:
        A DataFrame whose columns and dtypes are the same for every diagnosis, also if it has no rows.

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
    columns, rows_of = _TABLES[table]
    rows = list(rows_of(diagnosis))
    typed = [column.partition(":") for column in columns.split()]
    series = {name: pandas.Series([row.get(name) for row in rows], dtype=_DTYPES[kind]) for name, _, kind in typed}
    frame: pandas.DataFrame = pandas.DataFrame(series)
    return frame


def _trial_rows(diagnosis: Diagnosis) -> Iterator[Row]:
    baseline, ratios = diagnosis.compared_with, diagnosis.ratios
    for trial in diagnosis.trials:
        measurement, kernels, ratio = trial.measurement, trial.kernels, ratios.get(trial.name)
        yield {
            "configuration": trial.name,
            **_fields(trial.configuration, "backend", "layout_optimization", "model_format", "input_format"),
            **_fields(trial, "status", "same_as", "is_static", "recompile_count"),
            "failure": f"{trial.failure.kind}: {trial.failure.message}" if trial.failure else None,
            "is_baseline": baseline == trial.name if baseline else None,
            "is_recommended": diagnosis.recommended_name == trial.name if diagnosis.recommendation else None,
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
    """Yields the conversions of each trial: first from its graphs, then from its kernel list."""
    for trial in diagnosis.own_trials:
        for graph in trial.graphs:
            for conversion in graph.conversions:
                yield {**_conversion(conversion, trial, "graph"), "graph": conversion.graph or graph.name}
        for conversion in trial.kernel_summary.conversions:
            yield _conversion(conversion, trial, "kernels")


def _conversion(conversion: Conversion, trial: Trial, evidence: str) -> Row:
    row = _flat(conversion, configuration=trial.name, evidence=evidence, is_fused=conversion.fused)
    return {**row, "shape": row.get("source_shape") or row.get("target_shape")}


def _pair_rows(diagnosis: Diagnosis) -> Iterator[Row]:
    for trial in diagnosis.own_trials:
        for pair in trial.redundant_pairs:
            yield _flat(pair, configuration=trial.name, shape=_sizes(pair.tensor_shape))


def _convolution_rows(diagnosis: Diagnosis) -> Iterator[Row]:
    for trial in diagnosis.own_trials:
        for graph in trial.graphs:
            own: Row = {"configuration": trial.name, "graph": graph.name, "direction": graph.direction}
            own |= _fields(graph.decision, layout_optimization_applied="applied", decision_rule="rule")
            for convolution in graph.decision.convolutions if graph.decision else ():
                yield {**_flat(convolution), **own, "class": convolution.class_}


def _flat(record: msgspec.Struct, **own: object) -> Row:
    """Returns the fields of a record as one flat row; layouts and locations become several columns."""
    row: Row = {}
    for name in record.__struct_fields__:
        value = getattr(record, name)
        if isinstance(value, SourceLocation):
            row |= {"file": value.file, "line": value.line}
        elif isinstance(value, Layout):
            row |= {f"{name}_shape": _sizes(value.shape), f"{name}_strides": _sizes(value.stride)}
            row[f"{name}_format"] = value.format or " or ".join(value.memory_formats) or OTHER_STRIDES
        elif isinstance(value, tuple):
            row[name] = _sizes(value) if name in _SIZES else "; ".join(value)
        else:
            row[name] = value
    return {**row, **own}


def _fields(record: msgspec.Struct | None, *names: str, **columns: str) -> Row:
    """Returns the named fields of a record, and the fields in ``columns`` under the names of these columns."""
    wanted = {**dict(zip(names, names, strict=True)), **columns}
    return {column: None if record is None else getattr(record, field) for column, field in wanted.items()}


def _sizes(sizes: Sequence[Size] | None) -> str | None:
    return None if sizes is None else f"[{', '.join(str(size) for size in sizes)}]"


_TABLES: Mapping[str, tuple[str, Callable[[Diagnosis], Iterator[Row]]]] = {
    "trials": (
        "configuration backend layout_optimization model_format input_format status same_as failure "
        "is_baseline:bool is_recommended:bool is_static:bool median_seconds:float round_count:int "
        "compile_seconds:float peak_memory_bytes:int ratio_low:float ratio_median:float ratio_high:float verdict "
        "kernel_count:int kernel_seconds:float conversion_count:int conversion_seconds:float "
        "conversion_share:float redundant_pair_count:int graph_count:int recompile_count:int equivalence "
        "max_abs_error:float",
        _trial_rows,
    ),
    "rounds": (
        "configuration round:int seconds:float",
        _round_rows,
    ),
    "conversions": (
        "configuration evidence graph id owner direction tensor role is_fused:bool shape source_format "
        "source_strides target_shape target_format target_strides dtype target_dtype count:int seconds:float "
        "seconds_source exposed_seconds:float bytes_moved:int bandwidth_share:float start_seconds:float "
        "stream:int step confidence kernel node op cause module file line:int",
        _conversion_rows,
    ),
    "redundant_pairs": (
        "configuration kind evidence graph first second also between shape seconds:float seconds_source "
        "exposed_seconds:float bytes_moved:int confidence proof module file line:int",
        _pair_rows,
    ),
    "convolutions": (
        "configuration graph direction node class channels_last:bool rank:int weight_shape groups:int stride "
        "padding dilation is_transposed:bool is_backward:bool layout_optimization_applied:bool decision_rule "
        "module file line:int",
        _convolution_rows,
    ),
    "findings": (
        "code rule severity configuration message suggestion seconds:float bytes_moved:int evidence accepted "
        "module file line:int",
        lambda diagnosis: map(_flat, diagnosis.findings),
    ),
}
