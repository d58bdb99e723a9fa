"""
The tables of a diagnosis as pandas DataFrames: flat columns, units in their names, one dtype each whatever they hold.

What a record does not know is missing in the table too (``NA``, in a float column ``NaN``), never zero.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from layoutdoctor.errors import RecordError, UsageError
from layoutdoctor.reports.frame_rows import (
    conversion_rows,
    convolution_rows,
    finding_rows,
    pair_rows,
    round_rows,
    trial_rows,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    import pandas

    from layoutdoctor.records import Diagnosis
    from layoutdoctor.reports.frame_rows import Row

TEXT, INTEGER, REAL, TRUTH = "string", "Int64", "float64", "boolean"
"""pandas' own names of the dtypes; all four can hold a missing value."""

_TRIALS = {
    "configuration": TEXT,
    "backend": TEXT,
    "layout_optimization": TEXT,
    "model_format": TEXT,
    "input_format": TEXT,
    "status": TEXT,
    "same_as": TEXT,
    "failure": TEXT,
    "is_baseline": TRUTH,
    "is_recommended": TRUTH,
    "is_static": TRUTH,
    "median_seconds": REAL,
    "round_count": INTEGER,
    "compile_seconds": REAL,
    "peak_memory_bytes": INTEGER,
    "ratio_low": REAL,
    "ratio_median": REAL,
    "ratio_high": REAL,
    "verdict": TEXT,
    "kernel_count": INTEGER,
    "kernel_seconds": REAL,
    "conversion_count": INTEGER,
    "conversion_seconds": REAL,
    "conversion_share": REAL,
    "redundant_pair_count": INTEGER,
    "graph_count": INTEGER,
    "recompile_count": INTEGER,
    "equivalence": TEXT,
    "max_abs_error": REAL,
}
_ROUNDS = {"configuration": TEXT, "round": INTEGER, "seconds": REAL}
_PLACE = {"module": TEXT, "file": TEXT, "line": INTEGER}
_CONVERSIONS = {
    "configuration": TEXT,
    "evidence": TEXT,
    "graph": TEXT,
    "id": TEXT,
    "owner": TEXT,
    "direction": TEXT,
    "tensor": TEXT,
    "role": TEXT,
    "is_fused": TRUTH,
    "shape": TEXT,
    "source_format": TEXT,
    "source_strides": TEXT,
    "target_shape": TEXT,
    "target_format": TEXT,
    "target_strides": TEXT,
    "dtype": TEXT,
    "target_dtype": TEXT,
    "count": INTEGER,
    "seconds": REAL,
    "seconds_source": TEXT,
    "exposed_seconds": REAL,
    "bytes_moved": INTEGER,
    "bandwidth_share": REAL,
    "start_seconds": REAL,
    "stream": INTEGER,
    "step": TEXT,
    "confidence": TEXT,
    "kernel": TEXT,
    "node": TEXT,
    "op": TEXT,
    "cause": TEXT,
    **_PLACE,
}
_PAIRS = {
    "configuration": TEXT,
    "kind": TEXT,
    "evidence": TEXT,
    "graph": TEXT,
    "first": TEXT,
    "second": TEXT,
    "also": TEXT,
    "between": TEXT,
    "shape": TEXT,
    "seconds": REAL,
    "seconds_source": TEXT,
    "exposed_seconds": REAL,
    "bytes_moved": INTEGER,
    "confidence": TEXT,
    "proof": TEXT,
    **_PLACE,
}
_CONVOLUTIONS = {
    "configuration": TEXT,
    "graph": TEXT,
    "direction": TEXT,
    "node": TEXT,
    "class": TEXT,
    "channels_last": TRUTH,
    "rank": INTEGER,
    "weight_shape": TEXT,
    "groups": INTEGER,
    "stride": TEXT,
    "padding": TEXT,
    "dilation": TEXT,
    "is_transposed": TRUTH,
    "is_backward": TRUTH,
    "layout_optimization_applied": TRUTH,
    "decision_rule": TEXT,
    **_PLACE,
}
_FINDINGS = {
    "code": TEXT,
    "rule": TEXT,
    "severity": TEXT,
    "configuration": TEXT,
    "message": TEXT,
    "suggestion": TEXT,
    "seconds": REAL,
    "bytes_moved": INTEGER,
    "evidence": TEXT,
    "accepted": TEXT,
    **_PLACE,
}


def to_pandas(diagnosis: Diagnosis, table: str = "trials") -> pandas.DataFrame:
    """
    One table of the diagnosis as a DataFrame.

    A trial that is the same as another one has a row among the trials; its conversions, pairs and convolutions stand
    under that other one's name, once. A conversion that both the graph and the kernel list show has a row from each:
    ``evidence`` says which.

    Args:
        table: ``trials``, ``rounds``, ``conversions``, ``redundant_pairs``, ``convolutions`` or ``findings``.

    Returns:
        The same columns with the same dtypes for every diagnosis, also where there are no rows.

    Raises:
        UsageError: There is no such table, or pandas is not installed.
        RecordError: The diagnosis holds a number that no column can.
    """
    if table not in _TABLES:
        raise UsageError(f"cannot make table {table!r}: expected one of {', '.join(sorted(_TABLES))}")
    try:
        import pandas
    except ModuleNotFoundError as error:
        if error.name != "pandas":
            raise
        raise UsageError(f"cannot make table {table!r}: pandas is not installed; pip install pandas") from error
    dtypes, rows_of = _TABLES[table]
    rows = list(rows_of(diagnosis))
    columns = {}
    for name, dtype in dtypes.items():
        try:
            columns[name] = pandas.Series([row[name] for row in rows], dtype=dtype)
        except OverflowError as error:
            raise RecordError(
                f"cannot make column {name!r} of table {table!r}: the diagnosis holds a number outside of 64 bits; "
                "expected a record as layoutdoctor saves it"
            ) from error
    frame: pandas.DataFrame = pandas.DataFrame(columns)
    return frame


_TABLES: Mapping[str, tuple[dict[str, str], Callable[[Diagnosis], Iterator[Row]]]] = {
    "trials": (_TRIALS, trial_rows),
    "rounds": (_ROUNDS, round_rows),
    "conversions": (_CONVERSIONS, conversion_rows),
    "redundant_pairs": (_PAIRS, pair_rows),
    "convolutions": (_CONVOLUTIONS, convolution_rows),
    "findings": (_FINDINGS, finding_rows),
}
