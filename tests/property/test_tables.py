"""
Tables made from numbers that are known: each is read as these numbers, or refused for the right reason.

A table is made from its number alone, so a failure names all that is needed to see it again. A second reader takes the
cells by the width of their columns and their digits alone, and checks the percentages.
"""

from __future__ import annotations

import random
import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from layoutdoctor.errors import TraceError
from layoutdoctor.recording.files import TraceFile
from layoutdoctor.recording.recording import KernelTotals
from layoutdoctor.recording.table import read_kernel_tables

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

TEXTS = Path(__file__).parent.parent / "texts"
COUNT = 200
LOCALES = ((".", ""), (".", ","), (",", "."), (",", " "), (".", " "), (".", "'"), (",", "\u202f"), (".", "\u2019"))
NAMES = (
    "void cudnn::ops::nchwToNhwcKernel<__half, __half, float, false, true>(x)",
    "void cudnn::ops::nhwcToNchwKernel<float, float, float, true, false>(float const*, float*)",
    "sm80_xmma_fprop_implicit_gemm_f16f16_f16f32_f32_nhwckrsc_nhwc_tilesize128x128x32",
    "ampere_sgemm_128x64_nn",
    "void at::native::vectorized_elementwise_kernel<4, at::native::AUnaryFunctor<float>>(int, float)",
    "void at::native::batch_norm_collect_statistics_kernel<float, 4>(int)",
    "triton_poi_fused_relu_0",
    "void at::native::(anonymous namespace)::max_pool_forward_nhwc<float, float>(float const*)",
)
Rows = list[tuple[str, int, int]]


@dataclass
class Made:
    """A text, the rows of each table that must be read from it, and the reason if it must be refused."""

    text: str
    tables: list[Rows] = field(default_factory=list)
    wholes: list[int | None] = field(default_factory=list)
    refusal: str | None = None
    exactness: float = 0.0  # torch prints three decimals


def printed(value: float, decimals: int, locale: tuple[str, str]) -> str:
    whole, _, rest = f"{value:.{decimals}f}".partition(".")
    groups = [whole[max(0, end - 3) : end] for end in range(len(whole), 0, -3)][::-1]
    return locale[1].join(groups) + (locale[0] + rest if rest else "")


def aligned(titles: Sequence[str], rows: Sequence[Sequence[str]], left: int) -> list[str]:
    """Columns with rules under the titles; one of them is aligned at its left."""
    width = [max(map(len, column)) for column in zip(titles, *rows, strict=True)]

    def line(cells: Sequence[str]) -> str:
        return "  ".join(cell.ljust(width[n]) if n == left else cell.rjust(width[n]) for n, cell in enumerate(cells))

    return [line(titles), "  ".join("-" * w for w in width), *map(line, rows)]


def some_rows(chance: random.Random) -> Rows:
    names = chance.sample(NAMES, chance.randint(2, len(NAMES)))
    return sorted(
        ((name, chance.randint(1, 9_000), chance.randint(20_000, 2_000_000_000)) for name in names),
        key=lambda row: -row[2],
    )


def nsys(chance: random.Random, rows: Rows, listed: int, locale: tuple[str, str]) -> tuple[list[str], list[list[str]]]:
    whole = sum(time for *_, time in rows)
    titles = ["Time (%)", "Total Time (ns)", "Instances", "Avg (ns)", "Min (ns)", "Name"]
    cells = [
        [
            printed(100 * time / whole, 1, locale),
            printed(time, 0, locale),
            printed(count, 0, locale),
            printed(time / count, 1, locale),
            printed(int(time / count * 0.9), 0, locale),
            name,
        ]
        for name, count, time in rows[:listed]
    ]
    return titles, cells


def in_torch_units(nanoseconds: float) -> str:
    for unit, factor in (("s", 1e9), ("ms", 1e6)):
        if nanoseconds >= factor:
            return f"{nanoseconds / factor:.3f}{unit}"
    return f"{nanoseconds / 1e3:.3f}us"


def key_averages(rows: Rows, listed: int) -> tuple[list[str], list[list[str]]]:
    whole = sum(time for *_, time in rows)
    titles = ["Name", "Self CPU %", "Self CPU", "Self CUDA", "Self CUDA %", "CUDA total", "CUDA time avg", "# of Calls"]
    cells = [
        [
            name,
            "0.00%",
            "0.000us",
            in_torch_units(time),
            f"{100 * time / whole:.2f}%",
            in_torch_units(time),
            in_torch_units(time / count),
            str(count),
        ]
        for name, count, time in rows[:listed]
    ]
    return titles, cells


def made(number: int) -> Made:
    chance = random.Random(number)
    is_nsys = chance.random() < 0.6
    texts, found = [], Made("", exactness=0.0 if is_nsys else 1e-3)
    locale = chance.choice(LOCALES)
    shapes = ["aligned", "markdown", *(["squeezed", "semicolons", "commas"] if is_nsys else [])]
    shape = chance.choice(shapes)
    for place in range(chance.choice((1, 1, 1, 2, 3))):
        rows = some_rows(chance)
        listed = len(rows) if chance.random() < 0.6 else chance.randint(1, len(rows))
        titles, cells = nsys(chance, rows, listed, locale) if is_nsys else key_averages(rows, listed)
        if shape == "aligned":
            lines = aligned(titles, cells, len(titles) - 1 if is_nsys else 0)
        elif shape == "markdown":
            lines = ["| " + " | ".join(row) + " |" for row in [titles, ["---"] * len(titles), *cells]]
        elif shape == "squeezed":
            lines = [" ".join(row) for row in [titles, *cells]]
        else:
            mark = ";" if shape == "semicolons" else ","
            lines = [mark.join(f'"{cell}"' if mark in cell else cell for cell in row) for row in [titles, *cells]]
        if not is_nsys and chance.random() < 0.5:
            lines += ["", f"Self CUDA time total: {in_torch_units(sum(time for *_, time in rows))}"]
        texts.append("\n".join([f"Run {place}:", "", *lines]))
        found.tables.append([tuple(row) for row in rows[:listed]])
        found.wholes.append(None if listed == len(rows) else sum(time for *_, time in rows))
        if shape == "squeezed" and locale[1] and locale[1] not in ",.'\u2019":
            found.refusal = "columns that do not run together"
    end = "\r\n" if chance.random() < 0.3 else "\n"
    found.text = ("\n\n" + "\n".join(["", "then the next one", ""])).join(texts).replace("\n", end) + end
    if chance.random() < 0.3 and not found.refusal:
        found.text = "".join(f"> {line}\n" for line in found.text.splitlines())
    return found


def read(path: Path, text: str) -> list[KernelTotals]:
    path.write_bytes(text.encode())
    return [table for table in read_kernel_tables(TraceFile(path)) if isinstance(table, KernelTotals)]


def test_two_hundred_tables_are_read_as_they_were_made_or_refused_for_their_fault(tmp_path: Path) -> None:
    wrong = []
    refused = 0
    for number in range(COUNT):
        given = made(number)
        try:
            tables = read(tmp_path / "t.txt", given.text)
        except TraceError as error:
            refused += 1
            if given.refusal is None or given.refusal not in str(error):
                wrong.append((number, str(error)))
            continue
        if given.refusal is not None or [len(table.rows) for table in tables] != [len(rows) for rows in given.tables]:
            wrong.append((number, f"expected {given.refusal or given.tables}, read {tables}"))
            continue
        for table, rows, whole in zip(tables, given.tables, given.wholes, strict=True):
            for row, (name, count, time) in zip(table.rows, rows, strict=True):
                is_same = (row.name, row.count) == (name, count) and row.nanoseconds == pytest.approx(
                    time, rel=given.exactness
                )
                if not is_same:
                    wrong.append((number, f"{(name, count, time)} was read as {row}"))
            if table.problems:
                wrong.append((number, str(table.problems)))
            known = table.nanoseconds
            listed = sum(time for *_, time in rows)
            if whole is not None and whole > 1.03 * listed and known != pytest.approx(whole, rel=0.03):
                wrong.append((number, f"the whole is {whole}, read as {known}"))

    assert wrong == []
    assert 0 < refused < COUNT / 4


def digits_by_width(text: str) -> Iterator[tuple[str, list[str]]]:
    """The cells of each row by the strokes under the titles: the name, and the others."""
    spans: list[tuple[int, int]] = []
    for line in text.splitlines():
        if re.fullmatch(r"[\s-]+-[\s-]+", line):
            spans = [match.span() for match in re.finditer("-+", line)]
        elif spans and line.strip() and not line.startswith(("Self", "CUDA", "```")):
            cells = [line[0 if n == 0 else spans[n - 1][1] : end].strip() for n, (_, end) in enumerate(spans)]
            cells[-1] = line[spans[-2][1] :].strip()
            numbers = [cell for cell in cells if re.fullmatch(r"-?[\d.]+ ?(?:%|\w{1,2}|)", cell)]
            yield next(cell for cell in cells if cell not in numbers and re.search(r"[A-Za-z]{3}", cell)), numbers


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("Total Time (us);Instances;Name\n1.500;3;f\n2.250;4;g\n", "may separate thousands or decimals"),
        ("Total Time (ns);Instances;Name\n1,5 ns apart;3;f\n", "the numbers could not be read in any row"),
    ],
)
def test_numbers_with_two_meanings_are_refused(tmp_path: Path, text: str, reason: str) -> None:
    with pytest.raises(TraceError, match=reason):
        read(tmp_path / "t.txt", text)


@pytest.mark.parametrize(
    ("text", "nanoseconds"),
    [
        ("Total Time (ns);Instances;Name\n1.500;3;f\n", [1500]),  # no time has half a nanosecond
        ("Total Time (us);Instances;Avg (us);Name\n1.500;3;0.500;f\n2.250;4;0.563;g\n", [1500, 2250]),
        ("Total Time (us);Instances;Avg (us);Name\n1.500;3;500;f\n", [1_500_000]),
        ("Time (%);Total Time (us);Instances;Name\n40,0;1.500;3;f\n60,0;2.250;4;g\n", [1_500_000, 2_250_000]),
        ("Total Time (us);Instances;Name\n1.500;1.200;f\n2.250;4;g\n", [1_500_000, 2_250_000]),
    ],
)
def test_a_mark_is_known_by_what_the_columns_say_together(tmp_path: Path, text: str, nanoseconds: list[int]) -> None:
    (table,) = read(tmp_path / "t.txt", text)

    assert [row.nanoseconds for row in table.rows] == nanoseconds


def test_a_row_whose_percentage_denies_its_time_is_counted(tmp_path: Path) -> None:
    text = (TEXTS / "key_averages_cut_without_total.txt").read_text(encoding="utf-8").replace("11.45%", "14.45%")

    (table,) = read(tmp_path / "t.txt", text)

    assert [(problem.what, problem.count) for problem in table.problems] == [
        ("rows of the table whose time and percentage contradict each other", 1)
    ]
    assert table.nanoseconds == pytest.approx(246.88e6 - 25.539e6, rel=1e-3)  # by the others


@pytest.mark.parametrize(
    "name", ["key_averages_cut_to_six_rows.txt", "key_averages_cut_without_total.txt", "nsys_2021.txt"]
)
def test_a_reader_by_width_and_digits_agrees(name: str) -> None:
    text = (TEXTS / name).read_text(encoding="utf-8")
    rows = dict(digits_by_width(text))
    (table,) = (one for one in read_kernel_tables(TraceFile(TEXTS / name)) if isinstance(one, KernelTotals))

    assert len(table.rows) > 1
    for row in table.rows:
        cells = rows[row.name]
        if name.startswith("nsys"):
            percent, time, count = float(cells[0]), int(cells[1]), int(cells[2])
        else:
            percent = float(cells[6].rstrip("%"))
            time, count = round(float(cells[5].removesuffix("ms")) * 1e6), int(cells[-1])
        assert (row.nanoseconds, row.count) == (time, count)
        if table.nanoseconds is not None:
            copies = 25_539_000 if name.startswith("key") else 0
            close = 0.51 if copies == 0 else 0.01
            assert 100 * time / (table.nanoseconds + copies) == pytest.approx(percent, abs=close)
