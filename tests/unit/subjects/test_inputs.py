from __future__ import annotations

import pytest
import torch

from layoutdoctor.errors import UsageError
from layoutdoctor.subjects.inputs import EXPECTED_FORM, InputSpec, make_inputs, parse_dtype, parse_input


def test_an_input_is_read_as_written() -> None:
    expected = {
        "f32[8,3,224,224]": InputSpec("float32", (8, 3, 224, 224)),
        "f16[2,3,4,5]:channels_last": InputSpec("float16", (2, 3, 4, 5), "channels_last"),
        "bfloat16[2, 3, 4, 5, 6] : channels_last": InputSpec("bfloat16", (2, 3, 4, 5, 6), "channels_last"),
        "f64[7]:contiguous": InputSpec("float64", (7,), "contiguous"),
        "mask=bool[1,8]": InputSpec("bool", (1, 8), None, "mask"),
        "i64[1,128]": InputSpec("int64", (1, 128)),
        "u8[0,3]": InputSpec("uint8", (0, 3)),
        "f32[]": InputSpec("float32", ()),
    }
    assert {text: parse_input(text) for text in expected} == expected


WHOLE = "expected whole numbers separated by commas, such as 'f32[8,3,224,224]'"
TOO_MANY = "got more elements than torch can count; give smaller sizes"
KNOWN = "expected one of f16, bf16, f32, f64, i8, u8, i32, i64, bool; did you mean 'f32'?"


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("8,3,224,224", f"cannot read input '8,3,224,224': expected {EXPECTED_FORM}"),
        ("f32[8,3", f"cannot read input 'f32[8,3': expected {EXPECTED_FORM}"),
        ("f33[8]", f"cannot read input 'f33[8]': got dtype 'f33', {KNOWN}"),
        ("f32[8,x]", f"cannot read input 'f32[8,x]': got size 'x', {WHOLE}"),
        ("f32[8,-1]", f"cannot read input 'f32[8,-1]': got size '-1', {WHOLE}"),
        (
            "f32[8]:nhwc",
            "cannot read input 'f32[8]:nhwc': got memory format 'nhwc', expected channels_last or contiguous",
        ),
        (
            "f32[8,3,4]:channels_last",
            "cannot make input 'f32[8,3,4]:channels_last' channels_last: got 3 dimensions, expected 4 or 5",
        ),
        *(
            (text, f"cannot read input {text!r}: {TOO_MANY}")
            for text in ("f32[99999999999999999999,2]", "f32[4294967296,4294967296]", "u8[0,99999999999999999999]")
        ),
    ],
)
def test_an_input_that_cannot_be_read_says_what_was_expected(text: str, said: str) -> None:
    with pytest.raises(UsageError) as caught:
        parse_input(text)
    assert str(caught.value) == said


def test_inputs_have_the_dtype_shape_and_format_asked_for() -> None:
    specs = [parse_input(text) for text in ("f32[2,3,4,5]:channels_last", "i32[6]", "mask=bool[2,2]", "f16[]")]

    args, kwargs = make_inputs(specs)

    assert [(tuple(tensor.shape), tensor.dtype) for tensor in args] == [
        ((2, 3, 4, 5), torch.float32),
        ((6,), torch.int32),
        ((), torch.float16),
    ]
    assert args[0].is_contiguous(memory_format=torch.channels_last)
    assert not args[0].is_contiguous()
    assert kwargs["mask"].dtype == torch.bool


def test_inputs_are_the_same_every_time_and_leave_the_global_generator_alone() -> None:
    specs = [parse_input("f32[2,3,4,5,6]:channels_last"), parse_input("i64[2]")]
    before = torch.get_rng_state()

    (first, numbers), _ = make_inputs(specs)
    (second, _), _ = make_inputs(specs)

    assert first.is_contiguous(memory_format=torch.channels_last_3d)
    assert (first.dtype, numbers.dtype) == (torch.float32, torch.int64)
    assert torch.equal(first, second)
    assert torch.equal(torch.get_rng_state(), before)


def test_one_keyword_cannot_be_given_twice() -> None:
    with pytest.raises(UsageError, match="cannot give the input 'x' twice"):
        make_inputs([parse_input("x=f32[2]"), parse_input("x=f32[3]")])


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        *((name, torch.float16) for name in ("half", "float16", "fp16", "F16", "torch.float16")),
        *((name, torch.float32) for name in ("float", "float32", "fp32")),
        *((name, torch.float64) for name in ("double", "fp64")),
        *((name, torch.bfloat16) for name in ("bf16", "bfloat16")),
    ],
)
def test_a_dtype_has_all_its_usual_names(name: str, expected: torch.dtype) -> None:
    assert parse_dtype(name) == expected
