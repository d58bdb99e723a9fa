from __future__ import annotations

import pickle
import sys
import types
from typing import TYPE_CHECKING, Any

import pytest
import torch
from torch import nn

from layoutdoctor.errors import LayoutDoctorError, SubjectError, UsageError
from layoutdoctor.subjects import load
from layoutdoctor.subjects.load import load_target

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

HEAD = "import torch\nfrom torch import nn\n"
NET = """
class Net(nn.Module):
    def __init__(self, width=4):
        super().__init__()
        self.conv = nn.Conv2d(3, width, 3)
    def forward(self, x):
        return self.conv(x)
"""
INPUTS = "\ndef get_inputs():\n    return [torch.randn(2, 3, 8, 8)]\n"


@pytest.fixture
def write(tmp_path: Path) -> Callable[[str], str]:
    def write(text: str, name: str = "model.py") -> str:
        (tmp_path / name).write_text(HEAD + text)
        return str(tmp_path / name)

    return write


def message_of(target: str, **options: Any) -> str:
    with pytest.raises((SubjectError, UsageError)) as caught:
        load_target(target, **options)
    return str(caught.value)


def test_a_kernelbench_file_is_built_with_its_init_inputs_and_the_same_weights_every_time(
    write: Callable[..., str],
) -> None:
    path = write(NET.replace("Net", "Model") + INPUTS + "\ndef get_init_inputs():\n    return [5]\n")

    subject, again = load_target(path), load_target(f"{path}:")  # a colon without a name is the file itself

    assert (subject.name, subject.source) == ("model.py", path)
    assert subject.model.conv.weight.shape == (5, 3, 3, 3)
    assert [tuple(tensor.shape) for tensor in subject.args] == [(2, 3, 8, 8)]
    assert torch.equal(subject.model.conv.weight, again.model.conv.weight)
    assert torch.equal(subject.args[0], again.args[0])


@pytest.mark.parametrize(
    "text",
    [
        NET + "\ndef get_module():\n    return Net(), (torch.randn(2, 3, 8, 8),)\n",
        NET + "\ndef get_model():\n    return Net()\n" + INPUTS,
        NET + "\nmodel = Net()\nexample_input = torch.randn(2, 3, 8, 8)\n",
        NET + "\nmodel = Net()\nexample_inputs = (torch.randn(2, 3, 8, 8),)\n",
        NET + "\nmodel = torch.compile(Net())\nexample_input = {'x': torch.randn(2, 3, 8, 8)}\n",
    ],
)
def test_each_convention_is_understood(write: Callable[..., str], text: str) -> None:
    subject = load_target(write(text))

    assert subject.model(*subject.args, **subject.kwargs).shape == (2, 4, 6, 6)


@pytest.mark.parametrize("attribute", ["Net", "net", "build", "pair", "function", "holder.net"])
def test_an_attribute_may_be_a_class_a_module_a_factory_or_a_function(
    write: Callable[..., str], attribute: str
) -> None:
    text = f"""{NET}{INPUTS}
net = Net()
def build(): return Net()
def pair(): return Net(), get_inputs()
def function(x): return net(x)
class holder:
    net = Net()
"""
    subject = load_target(f"{write(text)}:{attribute}")

    assert subject.name == f"model.py:{attribute}"
    assert subject.model(*subject.args).shape == (2, 4, 6, 6)


def test_a_module_attribute_is_imported(write: Callable[..., str], tmp_path: Path, monkeypatch: Any) -> None:
    write(NET + INPUTS + "\nnet = Net()\n", "shared_models.py")
    monkeypatch.syspath_prepend(str(tmp_path))

    subject = load_target("shared_models:net", dtype="f64")

    assert subject.model.conv.weight.dtype == torch.float64
    del sys.modules["shared_models"]


def test_a_file_may_import_its_neighbours_its_classes_are_pickled_and_sys_path_is_put_back(
    write: Callable[..., str], capsys: Any
) -> None:
    write(NET, "neighbour_of_model.py")
    size = (
        "from dataclasses import dataclass\n@dataclass\nclass Size:\n    n: int\nmodel = Net()\nmodel.size = Size(3)\n"
    )
    before = list(sys.path), list(sys.argv)

    subject = load_target(write("from neighbour_of_model import Net\nprint('hello')\n" + size + INPUTS))

    assert subject.model(*subject.args).shape == (2, 4, 6, 6)
    assert pickle.loads(pickle.dumps(subject.model.size)) == subject.model.size
    assert (sys.path, sys.argv) == before
    captured = capsys.readouterr()
    assert (captured.out, captured.err) == ("", "hello\n")
    del sys.modules["neighbour_of_model"]


def test_inputs_from_the_command_line_replace_the_files(write: Callable[..., str]) -> None:
    subject = load_target(write(NET + "model = Net()\n"), inputs=["f32[1,3,5,5]:channels_last"], dtype="bf16")

    assert subject.args[0].shape == (1, 3, 5, 5)
    assert subject.args[0].dtype == subject.model.conv.weight.dtype == torch.bfloat16
    assert subject.args[0].is_contiguous(memory_format=torch.channels_last)


def test_the_modules_that_a_function_uses_get_the_dtype_as_well(write: Callable[..., str]) -> None:
    path = write(NET + INPUTS + "net = Net()\ndef run(x):\n    return net(x)\n")

    subject = load_target(f"{path}:run", dtype="f64")

    assert subject.model(*subject.args).dtype == torch.float64


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("x = 1 +\n", "cannot load model.py: SyntaxError: invalid syntax (model.py, line 3); fix this error first"),
        ("\nraise ValueError('no weights')\n", "cannot load model.py: ValueError: no weights (model.py:4); fix"),
        (
            "class Odd(BaseException): pass\nraise Odd('no')",
            "cannot load model.py: Odd: no (model.py:4); fix this error",
        ),
        (
            NET + "model = Net().to(memory_format=torch.channels_last_3d)\n",
            "RuntimeError: required rank 5 tensor to use channels_last_3d format (model.py:10); leave that line out: "
            "each configuration converts each tensor by its rank",
        ),
        ("import not_there_at_all\n", "'not_there_at_all', which is not installed (model.py:3); install the package"),
        (
            "import sys\nsys.exit(3)\n",
            "cannot load model.py: it called sys.exit(3) (model.py:4); move the script's statements",
        ),
        (
            NET,
            "cannot find a model in model.py: looked for Model, get_module, get_model, model, found Net; "
            "name it, as in model.py:Net",
        ),
        (NET + "class Whole(Net): pass\nclass _Own(Net): pass\n", "found Net, Whole; name it, as in model.py:Whole"),
        (NET + "model = Net()\n", "looked for get_inputs, example_input, example_inputs; define get_inputs(), or give"),
        (NET + "model = Net()\ndef get_inputs(): return [3]\n", "got no tensor in list, expected at least one"),
        (NET + "model = Net()\ndef get_inputs(): return 3\n", "cannot use a int as example input"),
        (NET + "def get_model(): return 3\n" + INPUTS, "what model.py:get_model() returned: got int, expected an nn"),
        (NET.replace("Net", "Model").replace("=4", "") + INPUTS, "missing a required argument: 'width'; define get"),
        (NET + "model = torch.jit.script(nn.ReLU())\n" + INPUTS, "it is TorchScript, expected a plain nn.Module"),
    ],
)
@pytest.mark.filterwarnings("ignore:.*torch.jit.*:DeprecationWarning")
def test_a_file_that_cannot_be_loaded_says_why_in_one_line(write: Callable[..., str], text: str, message: str) -> None:
    found = message_of(write(text))

    assert message in found
    assert "\n" not in found


def test_what_is_not_there_is_told_with_what_is(write: Callable[..., str], tmp_path: Path) -> None:
    path = write(NET + "resnet_model = Net()\n", "other.py")
    missing = str(tmp_path / "model.py")
    (tmp_path / "saved.json").write_text("{}")

    assert message_of(path + ":resnet_modle") == (
        "cannot find 'resnet_modle' in other.py: there is no 'resnet_modle'; did you mean 'resnet_model'?"
    )
    assert message_of(missing) == (
        f"cannot load {missing!r}: there is no such file; Python files in that folder: other.py"
    )
    assert message_of(str(tmp_path)).startswith(f"cannot load {str(tmp_path)!r}: it is a folder, expected model.py")
    assert "saved.json': its name does not end in .py, expected model.py" in message_of(str(tmp_path / "saved.json"))
    assert message_of(write("from .beside import K")).endswith(
        f"(model.py:3); name it as part of its package, from the folder above: {tmp_path.name}.model:NAME"
    )


@pytest.mark.parametrize(
    ("target", "options", "message"),
    [
        ("resnet", {}, "cannot load 'resnet': expected model.py, model.py:attr, package.module:attr"),
        ("no_such_package_here.models:net", {}, "there is no module 'no_such_package_here'"),
        ("model.py", {"dtype": "i64"}, "cannot use --dtype i64: expected a floating-point dtype"),
        ("model.py", {"dtype": "f33"}, "cannot read --dtype: got dtype 'f33'"),
        ("model.py", {"device": "gpu"}, "cannot use --device 'gpu': expected cpu, cuda or cuda:0"),
        ("model.py", {"device": "cuda:99"}, "cannot use --device 'cuda:99'"),
        ("model.py", {"device": "meta"}, "cannot use --device 'meta': it holds no data"),
    ],
)
def test_wrong_usage_is_found_before_anything_is_loaded(target: str, options: dict[str, str], message: str) -> None:
    with pytest.raises(UsageError) as caught:
        load_target(target, **options)
    assert message in str(caught.value)


@pytest.fixture
def small_timm(monkeypatch: Any) -> None:
    """A stand-in with the three functions of timm that are used; timm itself is large."""

    def create_model(name: str, *, pretrained: bool) -> nn.Module:
        assert not pretrained
        model = nn.Conv2d(3, 4, 3)
        model.default_cfg = {"input_size": (3, 16, 16)}  # type: ignore[assignment]
        return model

    zoo: Any = types.ModuleType("timm")
    zoo.create_model = create_model
    zoo.is_model = lambda name: name == "resnet18"
    zoo.list_models = lambda: ["resnet18", "vgg11"]
    monkeypatch.setitem(sys.modules, "timm", zoo)


@pytest.mark.usefixtures("small_timm")
def test_a_zoo_model_gets_the_input_it_was_made_for(monkeypatch: Any) -> None:
    subject = load_target("timm:resnet18")

    assert subject.args[0].shape == (8, 3, 16, 16)
    assert subject.notes == (
        "random weights: nothing was downloaded",
        "no --input was given: float32[8,3,16,16] was used",
    )
    assert message_of("timm:resnet81") == (
        "cannot load timm:resnet81: timm has no model of that name; did you mean 'resnet18'?"
    )
    monkeypatch.setitem(sys.modules, "timm", None)
    assert message_of("timm:resnet18") == "cannot load timm:resnet18: timm is not installed; pip install timm"


@pytest.fixture
def small_diffusers(monkeypatch: Any) -> None:
    """A stand-in with two classes: one that layoutdoctor knows a small size of, and one that it does not."""

    class UNet2DModel(nn.Module):
        def __init__(self, block_out_channels: tuple[int, ...], act_fn: str = "silu") -> None:
            super().__init__()
            self.conv, self.act_fn = nn.Conv2d(3, block_out_channels[0], 3), act_fn

        def forward(self, sample: torch.Tensor, timestep: torch.Tensor) -> torch.Tensor:
            return self.conv(sample) * timestep

    class OtherModel(nn.Conv2d):
        def __init__(self) -> None:
            super().__init__(3, 4, 3)

    zoo: Any = types.ModuleType("diffusers")
    zoo.UNet2DModel, zoo.OtherModel, zoo.a_function = UNet2DModel, OtherModel, print
    monkeypatch.setitem(sys.modules, "diffusers", zoo)


@pytest.mark.usefixtures("small_diffusers")
def test_a_model_made_for_a_large_gpu_is_built_small_unless_told_otherwise() -> None:
    subject = load_target("diffusers:UNet2DModel", config=["act_fn=relu"])
    assert subject.kwargs["sample"].shape == (1, 3, 64, 64)
    assert subject.model(**subject.kwargs).shape == (1, 64, 62, 62)
    assert subject.notes[1] == "built with block_out_channels=(64, 128, 128, 256), act_fn='relu'"
    large = load_target("diffusers:UNet2DModel", config=["block_out_channels=(7,)"], inputs=["sample=f32[2,3,8,8]"])
    assert large.model.conv.out_channels == 7
    assert large.kwargs["sample"].shape == (2, 3, 8, 8)


@pytest.mark.usefixtures("small_diffusers")
@pytest.mark.parametrize(
    ("target", "config", "sentence"),
    [
        ("diffusers:UNet2DMode", [], "diffusers has no model of that name; did you mean 'UNet2DModel'"),
        ("diffusers:a_function", [], "diffusers has no model of that name"),
        ("diffusers:OtherModel", [], "its forward takes input; give the required ones, such as --input 'sample="),
        ("diffusers:OtherModel", ["a=1"], "TypeError: "),
        ("diffusers:OtherModel", ["a"], "cannot read --config 'a': expected key=value, such as block_out_channels"),
        ("model.py", ["a=1"], "cannot use --config 'a=1' with 'model.py': only models of timm, torchvision,"),
    ],
)
def test_a_model_that_cannot_be_built_is_told_of(target: str, config: list[str], sentence: str) -> None:
    with pytest.raises(LayoutDoctorError) as caught:
        load_target(target, config=config)
    assert sentence in str(caught.value)


def test_a_gpu_that_is_too_small_for_the_model_says_how_much_was_asked_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "model.py").write_text("import torch\nmodel = torch.nn.ReLU()\nexample_input = torch.ones(2)\n")

    def full(*_: object, **__: object) -> None:
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 12.00 GiB. GPU 0 has 2 GiB free")

    monkeypatch.setattr(load, "why_no_gpu", lambda device: None)
    monkeypatch.setattr(torch.nn.Module, "to", full)

    with pytest.raises(SubjectError) as caught:
        load_target(str(tmp_path / "model.py"), device="cuda:0")

    assert str(caught.value) == (
        "cannot move model.py to cuda:0: out of memory: 12.0 GiB were asked for; end other programs there, or use a "
        "smaller dtype (--dtype bf16)"
    )
