"""Builds models of timm, torchvision, transformers and diffusers, with random weights and an example input."""

from __future__ import annotations

import ast
import difflib
import importlib
import inspect
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any

from torch import nn

from layoutdoctor.errors import SubjectError, UsageError
from layoutdoctor.subjects.inputs import make_inputs, parse_input

_BATCH_SIZE = 8
# Arguments of the class, and inputs as for --input, for small versions of diffusers models; the originals need a large
# GPU. Group norms need multiples of 32 channels, and the temporal compression allows only certain numbers of frames.
_SMALL: Mapping[str, tuple[Mapping[str, Any], tuple[str, ...]]] = MappingProxyType(
    {
        "AutoencoderKL": (
            {
                "block_out_channels": (64, 128, 128),
                "down_block_types": ("DownEncoderBlock2D",) * 3,
                "up_block_types": ("UpDecoderBlock2D",) * 3,
                "layers_per_block": 2,
            },
            ("sample=f32[1,3,128,128]",),
        ),
        "AutoencoderTiny": ({}, ("sample=f32[1,3,128,128]",)),
        "AutoencoderKLWan": ({"base_dim": 32}, ("sample=f32[1,3,5,64,64]",)),
        "AutoencoderKLLTXVideo": (
            dict.fromkeys(("block_out_channels", "decoder_block_out_channels"), (32, 64, 128, 128)),
            ("sample=f32[1,3,9,64,64]",),
        ),
        "AutoencoderKLCogVideoX": (
            {"block_out_channels": (32, 64, 64, 128), "layers_per_block": 1},
            ("sample=f32[1,3,9,64,64]",),
        ),
        "AutoencoderKLHunyuanVideo": (
            {"block_out_channels": (32, 64, 128, 128), "layers_per_block": 1},
            ("sample=f32[1,3,5,64,64]",),
        ),
        "UNet2DModel": (
            {"block_out_channels": (64, 128, 128, 256)},
            ("sample=f32[1,3,64,64]", "timestep=i64[1]"),
        ),
        "UNet2DConditionModel": (
            {"block_out_channels": (64, 128, 256, 256), "cross_attention_dim": 256},
            ("sample=f32[1,4,32,32]", "timestep=i64[1]", "encoder_hidden_states=f32[1,77,256]"),
        ),
    }
)


def load_from_zoo(zoo: str, name: str, *, needs_input: bool, config: Sequence[str]) -> tuple[Any, Any, tuple[str, ...]]:
    """
    Builds a model of a zoo with random weights; returns the model, an example input and notes.

    Args:
        zoo: Name of the package, such as ``timm``.
        name: The zoo's name of the model. For transformers, a model class, a config class or a local folder; for
            diffusers, a model class.
        needs_input: Whether to make an example input; otherwise the returned input is None.
        config: Options to build the model with, each in the form ``key=value``.

    Raises:
        UsageError: The zoo has no such model, or an option has another form.
        SubjectError: The zoo is not installed, no example input is known, or it is a torchvision model for detection.
    """
    options = dict(map(_parsed, config))
    try:
        library = importlib.import_module(zoo)
    except ImportError as error:
        raise SubjectError(f"cannot load {zoo}:{name}: {zoo} is not installed; pip install {zoo}") from error
    small, inputs = _SMALL.get(name, ({}, ())) if zoo == "diffusers" else ({}, ())
    options = {**small, **options}
    model, own_inputs = _BUILDERS[zoo](library, name, options)
    notes = ["random weights: nothing was downloaded"]
    if options:
        notes.append(f"built with {', '.join(f'{key}={value!r}' for key, value in options.items())}")
    if not needs_input:
        return model, None, tuple(notes)
    specs = [parse_input(text) for text in own_inputs or inputs]
    if not specs:
        takes = ", ".join(inspect.signature(model.forward).parameters)
        raise SubjectError(
            f"cannot make inputs for {zoo}:{name}: its forward takes {takes}; give the required ones, such as "
            "--input 'sample=f32[1,4,32,32]'"
        )
    args, kwargs = make_inputs(specs)
    shapes = ", ".join(f"{spec.dtype}[{','.join(map(str, spec.shape))}]" for spec in specs)
    return model, kwargs or args, (*notes, f"no --input was given: {shapes} was used")


def _parsed(text: str) -> tuple[str, Any]:
    """Splits ``key=value``, and reads the value as a Python literal; a value that is no literal stays text."""
    key, equals, value = text.partition("=")
    if not equals or not key.isidentifier():
        raise UsageError(f"cannot read --config {text!r}: expected key=value, such as block_out_channels=(64,128)")
    try:
        return key, ast.literal_eval(value)
    except (ValueError, SyntaxError):
        return key, value


_Built = tuple[Any, tuple[str, ...]]


def _from_timm(timm: Any, name: str, config: Mapping[str, Any]) -> _Built:
    if not timm.is_model(name):
        raise _unknown("timm", name, timm.list_models())
    model = timm.create_model(name, pretrained=False, **config)
    shape = getattr(model, "default_cfg", {}).get("input_size", (3, 224, 224))
    return model, (_images(*shape),)


def _from_torchvision(torchvision: Any, name: str, config: Mapping[str, Any]) -> _Built:
    models = torchvision.models
    if name.lower() not in models.list_models():
        raise _unknown("torchvision", name, models.list_models())
    builder = models.get_model_builder(name)
    options: dict[str, Any] = {"weights": None}
    if "weights_backbone" in inspect.signature(builder).parameters:
        options["weights_backbone"] = None
    if ".detection" in builder.__module__:
        raise SubjectError(
            f"cannot make inputs for torchvision:{name}: a detection model takes a list of images; "
            "write a model.py with get_model() and get_inputs()"
        )
    model = builder(**options, **config)
    if ".video" in builder.__module__:
        return model, ("f32[2,3,16,112,112]",)
    size = 299 if "inception" in name else 224
    return model, (_images(3, size, size),)


def _from_transformers(transformers: Any, name: str, options: Mapping[str, Any]) -> _Built:
    if Path(name).is_dir():
        config = transformers.AutoConfig.from_pretrained(name, local_files_only=True, **options)
        model = transformers.AutoModel.from_config(config)
    else:
        named = getattr(transformers, name, None)
        if not isinstance(named, type):
            known = [known for known in dir(transformers) if known.endswith(("Config", "Model"))]
            raise _unknown("transformers", name, known)
        if issubclass(named, nn.Module):
            model_class: Any = named
            model = model_class(model_class.config_class(**options))
        else:
            model = transformers.AutoModel.from_config(named(**options))
        config = model.config
    channels, size = getattr(config, "num_channels", None), getattr(config, "image_size", 224)
    if channels is None:
        return model, ("input_ids=i64[1,128]",)
    return model, (f"pixel_values={_images(channels, *(size if isinstance(size, (tuple, list)) else (size, size)))}",)


def _images(*shape: int) -> str:
    return f"f32[{','.join(map(str, (_BATCH_SIZE, *shape)))}]"


def _from_diffusers(diffusers: Any, name: str, config: Mapping[str, Any]) -> _Built:
    made = getattr(diffusers, name, None)
    if not isinstance(made, type) or not issubclass(made, nn.Module):
        raise _unknown("diffusers", name, [*_SMALL, *(known for known in dir(diffusers) if known.endswith("Model"))])
    return made(**config), ()


_BUILDERS = {
    "timm": _from_timm,
    "torchvision": _from_torchvision,
    "transformers": _from_transformers,
    "diffusers": _from_diffusers,
}
ZOOS = tuple(_BUILDERS)


def _unknown(zoo: str, name: str, known: Iterable[str]) -> UsageError:
    close = difflib.get_close_matches(name, list(known), n=3)
    hint = f"did you mean {' or '.join(map(repr, close))}?" if close else f"see the names that {zoo} lists"
    return UsageError(f"cannot load {zoo}:{name}: {zoo} has no model of that name; {hint}")
