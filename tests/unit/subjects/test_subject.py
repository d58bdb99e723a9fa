from __future__ import annotations

import functools
from typing import Any

import pytest
import torch
from torch import nn

from layoutdoctor.diagnosis.configurations import choose_configurations
from layoutdoctor.diagnosis.subject import InputTensor, Subject
from layoutdoctor.errors import SubjectError, UsageError
from layoutdoctor.examination.advice.applying import ModelCall, how_to_apply
from layoutdoctor.subjects.copies import device_of_model
from layoutdoctor.subjects.subject import LoadedSubject, call_of, describe_subject, subject_from_python

IMAGE = torch.zeros(2, 3, 8, 8)


def scale(x: torch.Tensor, factor: float = 2.0) -> torch.Tensor:
    return x * factor


def test_an_example_input_is_a_tensor_positional_or_keyword_arguments() -> None:
    keywords = {"x": IMAGE, "mask": None}
    for example_input, args, names in (
        (IMAGE, 1, []),
        ((IMAGE, 3), 2, []),
        ([IMAGE], 1, []),
        (keywords, 0, [*keywords]),
    ):
        subject = subject_from_python(scale, example_input)

        assert (len(subject.args), list(subject.kwargs)) == (args, names)
    for wrong in (3, None, "f32[2]", {1: IMAGE}):
        with pytest.raises(UsageError, match="example input"):
            subject_from_python(scale, wrong)


def test_any_callable_is_a_subject_with_a_short_name_and_a_class_or_a_number_is_none() -> None:
    net = nn.Conv2d(3, 4, 3)
    for model, name in ((net, "Conv2d"), (scale, "scale"), (functools.partial(scale, factor=3.0), "scale")):
        assert subject_from_python(model, IMAGE).name == name
    assert subject_from_python(net.forward, IMAGE).name == "forward"
    for wrong, said in ((nn.ReLU, "the class ReLU"), (3, "a int")):
        with pytest.raises(UsageError, match=f"cannot diagnose {said}"):
            subject_from_python(wrong, IMAGE)  # type: ignore[arg-type]


def test_data_parallel_around_a_compiled_model_is_unwrapped_twice() -> None:
    model = nn.Conv2d(3, 4, 3)

    subject = subject_from_python(nn.DataParallel(torch.compile(model)), IMAGE)
    model.compile()

    assert subject.model is model
    assert subject.notes == (
        "the model was wrapped in DataParallel: the module inside was diagnosed, on one device",
        "the model was compiled already: its original was diagnosed, and compiled as each configuration says",
    )
    assert subject_from_python(model, IMAGE).notes == (
        "model.compile() had been called: the copies that are diagnosed are compiled again",
    )
    assert subject_from_python(torch.compile(scale), IMAGE).model is scale


def test_the_arguments_that_a_model_was_compiled_with_are_found() -> None:
    model = nn.Conv2d(3, 4, 3)

    def found(compiled: Any) -> Any:
        return subject_from_python(compiled, IMAGE).compile_arguments

    assert found(torch.compile(model)) == found(torch.compile(model, backend="eager")) == {}
    assert found(nn.DataParallel(torch.compile(model, mode="max-autotune", dynamic=True))) == {
        "mode": "max-autotune",
        "dynamic": True,
    }
    options = {"layout_optimization": False}
    assert found(torch.compile(scale, fullgraph=True, options=options)) == {"fullgraph": True, "options": options}
    model.compile(mode="reduce-overhead")
    assert found(model) == {"mode": "reduce-overhead"}


def test_the_record_tells_inputs_formats_and_counts() -> None:
    model = nn.Sequential(nn.Conv2d(3, 4, 3, bias=False), nn.ConvTranspose3d(1, 1, 2, bias=False), nn.Conv2d(4, 4, 1))
    model.to(memory_format=None)
    model[0].to(memory_format=torch.channels_last)
    batch = {"images": [IMAGE.to(memory_format=torch.channels_last)], "size": 8}

    record = describe_subject(
        subject_from_python(model, {"batch": batch, "mask": torch.ones(2, dtype=torch.bool)}), "training"
    )

    assert record == Subject(
        name="Sequential",
        mode="training",
        device="cpu",
        inputs=(
            InputTensor(
                shape=(2, 3, 8, 8),
                stride=(192, 1, 24, 3),
                dtype="float32",
                memory_formats=("channels_last",),
                name="batch['images'][0]",
            ),
            InputTensor(shape=(2,), stride=(1,), dtype="bool", memory_formats=("contiguous_format",), name="mask"),
        ),
        model="Sequential",
        parameter_count=108 + 8 + 20,
        convolution_module_count=3,
        # [4, 4, 1, 1] and [1, 1, 2, 2, 2] satisfy two formats each, and count once
        parameter_formats={"channels_last": 2, "contiguous_format": 1},
    )


def test_the_lines_to_paste_call_the_model_as_it_is_called() -> None:
    def model(image: Any, scale: float, *more: Any, batch: Any = None, pair: Any = None) -> Any:
        return image

    one = subject_from_python(nn.Conv2d(3, 4, 3), IMAGE)
    arguments = (IMAGE, 0.5, torch.ones(3))
    several = LoadedSubject("m", model, arguments, {"batch": {"video": torch.ones(1, 3, 2, 4, 4)}, "pair": (IMAGE,)})
    lines = how_to_apply(choose_configurations("inductor-channels-last-freezing")[0], frozenset({4}), call_of(several))

    assert call_of(one) == ModelCall("model(x)", {"x": 4})
    assert [tensor.name for tensor in describe_subject(one, "inference").inputs] == ["x"]
    latent = subject_from_python(lambda z: z, torch.ones(4, 64))
    assert call_of(latent) == ModelCall("model(z)", {"z": 2})
    assert [tensor.name for tensor in describe_subject(latent, "inference").inputs] == ["z"]
    named = [tensor.name for tensor in describe_subject(several, "inference").inputs]
    assert named == ["image", "x3", "batch['video']", "pair[0]"]
    assert lines.splitlines()[-5:] == [
        "image = image.to(memory_format=torch.channels_last)",
        "batch['video'] = batch['video'].to(memory_format=torch.channels_last_3d)",
        "# and every 4-D and 5-D tensor in pair",
        "with torch.no_grad(), torch._inductor.config.patch(freezing=True):  # where it compiles",
        "    y = model(image, 0.5, x3, batch=batch, pair=pair)",
    ]
    two = subject_from_python(lambda x, y: x + y, (IMAGE, IMAGE))
    assert how_to_apply(choose_configurations("eager")[0], frozenset(), call_of(two)).endswith("\nresult = model(x, y)")


def test_a_function_without_modules_has_no_counts_and_what_holds_no_data_is_refused() -> None:
    record = describe_subject(subject_from_python(scale, IMAGE), "inference")

    assert (record.parameter_count, record.convolution_module_count, record.parameter_formats) == (None, None, {})
    with pytest.raises(SubjectError, match="its tensor 'weight' has no shape yet"):
        describe_subject(subject_from_python(nn.LazyConv2d(4, 3), IMAGE), "inference")
    with pytest.raises(SubjectError, match="its tensor 'weight' is on the meta device, which holds no data"):
        describe_subject(subject_from_python(nn.Conv2d(3, 4, 3, device="meta"), IMAGE), "inference")
    with pytest.raises(SubjectError, match=r"its inputs have no element \(0x3x8x8\), so nothing is computed"):
        describe_subject(subject_from_python(nn.Conv2d(3, 4, 3), torch.ones(0, 3, 8, 8)), "inference")
    with pytest.raises(SubjectError, match="an example input is on the meta device, which holds no data"):
        describe_subject(subject_from_python(torch.relu, IMAGE.to("meta")), "inference")


class OnGpu(torch.Tensor):
    """A tensor that says it is on a GPU."""

    number = 0

    @property
    def device(self) -> Any:
        return torch.device("cuda", self.number)


class OnGpu1(OnGpu):
    number = 1


def a_model_with(**buffers: torch.Tensor) -> nn.Module:
    model = nn.Module()
    for name, tensor in buffers.items():
        model.register_buffer(name, tensor)
    return model


def test_the_number_of_the_gpu_is_kept_and_numbers_on_the_cpu_do_not_count() -> None:
    x = IMAGE.as_subclass(OnGpu1)
    model = a_model_with(count=torch.zeros(()), mean=x)

    assert device_of_model(model, (x,), {}) == "cuda:1"
    assert describe_subject(LoadedSubject("net", model, (x,), {}), "inference").device == "cuda"
    assert device_of_model(nn.Module(), (IMAGE,), {}) == "cpu"
    assert device_of_model(nn.Module(), (3,), {}) == "cpu"


def test_a_model_on_several_gpus_is_refused() -> None:
    model = a_model_with(mean=IMAGE.as_subclass(OnGpu), deviation=IMAGE.as_subclass(OnGpu1))

    with pytest.raises(SubjectError) as caught:
        describe_subject(LoadedSubject("net", model, (IMAGE.as_subclass(OnGpu),), {}), "inference")

    assert str(caught.value) == (
        "cannot diagnose net: its tensors are on 2 GPUs ('mean' on cuda:0, 'deviation' on cuda:1), expected one; "
        "move model and inputs to one (--device cuda:0), or diagnose a part of it (--module PATH)"
    )
