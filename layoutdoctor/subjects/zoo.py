"""
Models by name from timm, torchvision and transformers, with random weights: nothing is downloaded.

Each zoo is imported only when it is asked for.
"""

from __future__ import annotations

import difflib
import importlib
import inspect
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from layoutdoctor.errors import SubjectError, UsageError
from layoutdoctor.subjects.inputs import InputSpec, make_inputs

if TYPE_CHECKING:
    from collections.abc import Iterable

ZOOS = ("timm", "torchvision", "transformers")
_BATCH_SIZE = 8
_VIDEO_BATCH_SIZE = 2
_TOKEN_COUNT = 128
_VIDEO_FRAMES = 16


def load_from_zoo(zoo: str, name: str, *, needs_input: bool) -> tuple[Any, Any, tuple[str, ...]]:
    """
    A model from a zoo, with random weights.

    Args:
        name: The zoo's own name of the model; for transformers a model class, a config class or a local folder.

    Returns:
        The model, an example input (None where none is needed), and notes.

    Raises:
        UsageError: The zoo knows no such model.
        SubjectError: The zoo is not installed, or no example input is known.
    """
    try:
        library = importlib.import_module(zoo)
    except ImportError as error:
        raise SubjectError(f"cannot load {zoo}:{name}: {zoo} is not installed; pip install {zoo}") from error
    builders = {"timm": _from_timm, "torchvision": _from_torchvision, "transformers": _from_transformers}
    model, spec = builders[zoo](library, name)
    notes = ("random weights: nothing was downloaded",)
    if not needs_input:
        return model, None, notes
    args, kwargs = make_inputs([spec])
    shape = ",".join(map(str, spec.shape))
    return model, kwargs or args, (*notes, f"no --input was given: {spec.dtype}[{shape}] was used")


def _from_timm(timm: Any, name: str) -> tuple[Any, InputSpec]:
    if not timm.is_model(name):
        raise _unknown("timm", name, timm.list_models())
    model = timm.create_model(name, pretrained=False)
    shape = tuple(getattr(model, "default_cfg", {}).get("input_size", (3, 224, 224)))
    return model, InputSpec("float32", (_BATCH_SIZE, *shape))


def _from_torchvision(torchvision: Any, name: str) -> tuple[Any, InputSpec]:
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
    model = builder(**options)
    if ".video" in builder.__module__:
        return model, InputSpec("float32", (_VIDEO_BATCH_SIZE, 3, _VIDEO_FRAMES, 112, 112))
    size = 299 if "inception" in name else 224
    return model, InputSpec("float32", (_BATCH_SIZE, 3, size, size))


def _from_transformers(transformers: Any, name: str) -> tuple[Any, InputSpec]:
    if Path(name).is_dir():
        config = transformers.AutoConfig.from_pretrained(name, local_files_only=True)
        model = transformers.AutoModel.from_config(config)
    else:
        named = getattr(transformers, name, None)
        if not isinstance(named, type):
            known = [known for known in dir(transformers) if known.endswith(("Config", "Model"))]
            raise _unknown("transformers", name, known)
        if issubclass(named, torch.nn.Module):
            model_class: Any = named
            model = model_class(model_class.config_class())
        else:
            model = transformers.AutoModel.from_config(named())
        config = model.config
    return model, _transformers_input(config)


def _transformers_input(config: Any) -> InputSpec:
    channels = getattr(config, "num_channels", None)
    if channels is None:
        return InputSpec("int64", (1, _TOKEN_COUNT), name="input_ids")
    size = getattr(config, "image_size", 224)
    sizes = tuple(size) if isinstance(size, (tuple, list)) else (size, size)
    return InputSpec("float32", (_BATCH_SIZE, channels, *sizes), name="pixel_values")


def _unknown(zoo: str, name: str, known: Iterable[str]) -> UsageError:
    close = difflib.get_close_matches(name, list(known), n=3)
    hint = f"did you mean {' or '.join(map(repr, close))}?" if close else f"see the names that {zoo} lists"
    return UsageError(f"cannot load {zoo}:{name}: {zoo} has no model of that name; {hint}")
