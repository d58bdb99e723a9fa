from __future__ import annotations

from loops import for_each

from layoutdoctor.examination.graphs.buffers import Loop, is_relayout, reduction_run

SHAPE, PLAIN, LAST = (2, 8, 6, 5), (240, 30, 5, 1), (240, 1, 40, 8)


@for_each(
    ("what", "source", "target"),
    [
        ("the same dimensions", (SHAPE, PLAIN), (SHAPE, PLAIN)),
        ("written in another order", (SHAPE, LAST), (SHAPE, LAST)),
        ("a permuted view", (SHAPE, PLAIN), ((2, 6, 5, 8), (240, 5, 1, 30))),
        ("image seen as sequence", (SHAPE, PLAIN), ((2, 8, 30), (240, 30, 1))),
        ("channels-last image seen as rows", (SHAPE, LAST), ((60, 8), (8, 1))),
        ("rows seen as a channels-last image", ((60, 8), (8, 1)), (SHAPE, LAST)),
        ("rows seen as one image", ((30, 8), (8, 1)), ((1, 8, 6, 5), (0, 1, 40, 8))),
        ("size-1 dimensions added", ((8, 6), (6, 1)), ((1, 8, 1, 6), (0, 6, 0, 1))),
        ("one dimension seen as neighbouring ones", ((48, 5), (5, 1)), ((8, 6, 5), (30, 5, 1))),
        ("a padded source", ((8, 6), (10, 1)), ((8, 6), (10, 1))),
    ],
)
def test_the_same_elements_in_the_same_dimensions_are_the_tensor_itself(
    what: str, source: tuple[tuple[int, ...], tuple[int, ...]], target: tuple[tuple[int, ...], tuple[int, ...]]
) -> None:
    assert is_relayout(*source, *target), what


@for_each(
    ("what", "source", "target"),
    [
        ("a slice", (SHAPE, PLAIN), ((2, 4, 6, 5), PLAIN)),
        ("every second row", ((2, 8, 6, 5), PLAIN), ((2, 8, 3, 5), (240, 30, 10, 1))),
        ("a broadcast of as many", ((4, 3), (3, 1)), ((4, 3), (0, 1))),
        ("a flip", (SHAPE, PLAIN), (SHAPE, (240, 30, 5, -1))),
        ("a channel shuffle", (SHAPE, PLAIN), ((2, 4, 2, 6, 5), (240, 30, 120, 5, 1))),
        ("attention heads", ((2, 6, 8), (48, 8, 1)), ((2, 2, 6, 4), (48, 4, 8, 1))),
        ("attention heads of one sequence", ((1, 6, 8), (48, 8, 1)), ((1, 2, 6, 4), (0, 4, 8, 1))),
        ("attention heads without a batch", ((6, 8), (8, 1)), ((2, 6, 4), (4, 8, 1))),
        (
            "a pixel shuffle",
            ((2, 12, 4, 5), (240, 20, 5, 1)),
            ((2, 3, 4, 2, 5, 2), (240, 80, 5, 40, 1, 20)),
        ),
        (
            "a pixel shuffle of one image",
            ((1, 12, 4, 5), (240, 20, 5, 1)),
            ((1, 3, 4, 2, 5, 2), (0, 80, 5, 40, 1, 20)),
        ),
        ("windows", ((2, 6, 4, 8), (192, 32, 8, 1)), ((2, 3, 2, 2, 2, 8), (192, 64, 16, 32, 8, 1))),
        ("overlapping windows", ((8, 6), (6, 1)), ((8, 6), (5, 1))),
        ("a source that overlaps itself", ((4, 3), (1, 1)), ((4, 3), (1, 1))),
        ("other memory", ((4, 3), (3, 1)), ((4, 3), (6, 2))),
    ],
)
def test_a_load_that_rearranges_elements_is_not_the_tensor_itself(
    what: str, source: tuple[tuple[int, ...], tuple[int, ...]], target: tuple[tuple[int, ...], tuple[int, ...]]
) -> None:
    assert not is_relayout(*source, *target), what


@for_each(
    ("what", "loops", "run"),
    [
        ("nothing is reduced", [Loop(8, 1, 1)], None),
        ("a row of each", [Loop(8, 1, 6), Loop(6, 0, 1)], 6),
        ("rows that follow each other", [Loop(8, 1, 30), Loop(6, 0, 5), Loop(5, 0, 1)], 30),
        ("rows of a larger memory", [Loop(8, 1, 60), Loop(6, 0, 10), Loop(5, 0, 1)], 5),
        ("a stride between all", [Loop(8, 1, 1), Loop(30, 0, 8)], 1),
        ("a value that is read again", [Loop(8, 1, 1), Loop(30, 0, 0)], None),
    ],
)
def test_a_reduction_reads_as_many_neighbours_as_its_loops_walk_one_by_one(
    what: str, loops: list[Loop], run: int | None
) -> None:
    assert reduction_run(loops) == run, what
