"""
Networks that people run, as their libraries define them, in usual sizes, with random weights.

Only layouts are looked at, so large weights are left as memory holds them, which saves minutes. Each function returns
a module and a tuple of its inputs, so ``benchmarks/atlas_networks.py:resnet18`` is a target of the command.

    pip install torchvision timm transformers diffusers segmentation-models-pytorch monai ultralytics spandrel
    pip install --no-deps dynamic-network-architectures
"""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Any, NamedTuple
from unittest import mock

import torch
from torch import nn

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

Made = tuple[nn.Module, tuple[Any, ...]]


class Network(NamedTuple):
    """A network and the modes in which it is looked at."""

    library: str
    make: Callable[[], Made]
    modes: tuple[str, ...]


class Plain(nn.Module):
    """A network as a function of tensors that returns tensors: its first output, or the outputs named."""

    def __init__(self, model: nn.Module, *named: str, **given: Any) -> None:
        super().__init__()
        self.model = model
        self.named = named
        self.given = given

    def forward(self, *inputs: torch.Tensor) -> Any:
        """The first output, or those named."""
        found = self.model(*inputs, **self.given)
        if self.named:
            return tuple(found[name] for name in self.named)
        return found[0] if isinstance(found, (tuple, list)) else found


NETWORKS: dict[str, Network] = {}


def _network(library: str, name: str, *modes: str) -> Callable[[Callable[[], Made]], None]:
    """Registers a function as a network, in inference unless modes are given."""

    def register(make: Callable[[], Made]) -> None:
        def made() -> Made:
            with _uninitialized():
                return make()

        NETWORKS[name] = Network(library, made, modes or ("inference",))
        globals()[name] = made

    return register


MOST_VALUES = 1_000_000


@contextlib.contextmanager
def _uninitialized() -> Iterator[None]:
    """A block in which the initializers of ``torch.nn.init`` leave large tensors as they are."""

    def unless_large(initialize: Callable[..., Any]) -> Callable[..., Any]:
        def initialized(tensor: torch.Tensor, *rest: Any, **options: Any) -> Any:
            return tensor if tensor.numel() > MOST_VALUES else initialize(tensor, *rest, **options)

        return initialized

    names = [name for name in dir(nn.init) if name.endswith("_") and not name.startswith("_")]
    with contextlib.ExitStack() as stack:
        for name in names:
            stack.enter_context(mock.patch.object(nn.init, name, unless_large(getattr(nn.init, name))))
        yield


def import_torchvision() -> Any:
    """
    Returns torchvision, which a wheel for CUDA does not let be imported beside a CPU build of torch.

    Its compiled operators, such as ``nms``, do not load then. No network here calls one.
    """
    register = torch.library.register_fake

    def unless_missing(name: Any, *rest: Any, **options: Any) -> Any:
        if isinstance(name, str) and name.startswith("torchvision::"):
            return lambda function: function
        return register(name, *rest, **options)

    with mock.patch.object(torch.library, "register_fake", unless_missing):
        import torchvision
    return torchvision


def _image(batch: int, size: int, channels: int = 3) -> torch.Tensor:
    return torch.rand(batch, channels, size, size)


BOTH = ("inference", "training")


# ------------------------------------------------------------------------------------------------------- torchvision
def _torchvision(name: str, *modes: str, size: int = 224, batch: int = 32, **options: Any) -> None:
    @_network("torchvision", name, *modes)
    def make() -> Made:
        model = import_torchvision().models.get_model(name, weights=None, **options)
        return model, (_image(batch, size),)


_torchvision("alexnet", *BOTH)
_torchvision("vgg16_bn", *BOTH)
_torchvision("resnet18", *BOTH)
_torchvision("resnet50")
_torchvision("resnext50_32x4d")
_torchvision("squeezenet1_1", *BOTH)
_torchvision("googlenet", init_weights=False, aux_logits=False)
_torchvision("shufflenet_v2_x1_0", *BOTH)
_torchvision("mobilenet_v2", *BOTH)
_torchvision("mobilenet_v3_large")
_torchvision("densenet121")
_torchvision("efficientnet_b0")
_torchvision("regnet_y_400mf")
_torchvision("convnext_tiny")
_torchvision("swin_t")
_torchvision("vit_b_16")


def _segmentation(name: str) -> None:
    @_network("torchvision", name)
    def make() -> Made:
        model = import_torchvision().models.get_model(name, weights=None, weights_backbone=None, num_classes=21)
        return Plain(model, "out"), (_image(4, 520),)


_segmentation("fcn_resnet50")
_segmentation("deeplabv3_mobilenet_v3_large")
_segmentation("lraspp_mobilenet_v3_large")


def _video(name: str, *modes: str) -> None:
    @_network("torchvision", name, *modes)
    def make() -> Made:
        model = import_torchvision().models.get_model(name, weights=None)
        return model, (torch.rand(4, 3, 16, 112, 112),)


_video("r3d_18", *BOTH)
_video("r2plus1d_18")


# -------------------------------------------------------------------------------------------------------------- timm
def _timm(name: str, *modes: str, size: int = 224, batch: int = 32) -> None:
    @_network("timm", name, *modes)
    def make() -> Made:
        import_torchvision()
        import timm

        return timm.create_model(name, pretrained=False), (_image(batch, size),)


_timm("ghostnet_100")
_timm("repvgg_a0", *BOTH)
_timm("dla34")
_timm("mobilevit_s", size=256)
_timm("poolformer_s12")
_timm("convmixer_768_32")
_timm("nf_resnet50")
_timm("resnetv2_50x1_bit")
_timm("res2net50_26w_4s")
_timm("cspresnet50")
_timm("fastvit_t8", size=256)
_timm("levit_128s")
_timm("pvt_v2_b0", *BOTH)
_timm("convnextv2_atto", *BOTH)
_timm("edgenext_small", size=256)


# ------------------------------------------------------------------------------------------------------ transformers
def _transformers(name: str, kind: str, inputs: Callable[[], tuple[Any, ...]], *modes: str, **config: Any) -> None:
    @_network("transformers", name, *modes)
    def make() -> Made:
        import_torchvision()
        import transformers

        stem = kind.removesuffix("Model").partition("For")[0]
        model = getattr(transformers, kind)(getattr(transformers, f"{stem}Config")(**config))
        return Plain(model, return_dict=False), inputs()


_transformers("segformer_b0", "SegformerForSemanticSegmentation", lambda: (_image(4, 512),), *BOTH)
_transformers("wav2vec2_base", "Wav2Vec2Model", lambda: (torch.rand(2, 80000),), apply_spec_augment=False)
_transformers("hifigan", "SpeechT5HifiGan", lambda: (torch.rand(4, 200, 80),))
_transformers("encodec_24khz", "EncodecModel", lambda: (torch.rand(1, 1, 24000),))
_transformers("dpt_base", "DPTForDepthEstimation", lambda: (_image(1, 384),))
_transformers("superpoint", "SuperPointForKeypointDetection", lambda: (_image(1, 480),))


@_network("transformers", "whisper_tiny_encoder")
def _whisper() -> Made:
    import_torchvision()
    import transformers

    encoder = transformers.WhisperModel(transformers.WhisperConfig()).get_encoder()
    return Plain(encoder, return_dict=False), (torch.rand(1, 80, 3000),)


@_network("transformers", "clip_vision_base")
def _clip() -> Made:
    import_torchvision()
    import transformers

    model = transformers.CLIPVisionModel(transformers.CLIPVisionConfig())
    return Plain(model, return_dict=False), (_image(16, 224),)


# --------------------------------------------------------------------------------------------------------- diffusers
def _diffusers(name: str, kind: str, inputs: Callable[[], tuple[Any, ...]], *modes: str, **config: Any) -> None:
    """A model of diffusers, in half precision in inference, as pipelines run it."""

    @_network("diffusers", name, *modes)
    def make() -> Made:
        import_torchvision()
        import diffusers

        def cast(one: torch.Tensor) -> torch.Tensor:
            return one.half() if "training" not in modes and one.is_floating_point() else one

        model = getattr(diffusers, kind)(**config)
        model = Plain(model if "training" in modes else model.half(), return_dict=False)
        return model, tuple(cast(one) for one in inputs())


def _blocks(channels: tuple[int, ...], down: str, up: str) -> dict[str, Any]:
    return {
        "block_out_channels": channels,
        "down_block_types": (down,) * len(channels),
        "up_block_types": (up,) * len(channels),
    }


_diffusers(
    "ddpm_unet",
    "UNet2DModel",
    lambda: (torch.rand(16, 3, 64, 64), torch.tensor(10)),
    *BOTH,
    **_blocks((64, 128, 256), "DownBlock2D", "UpBlock2D"),
)
_diffusers(
    "sd_unet",
    "UNet2DConditionModel",
    lambda: (torch.rand(2, 4, 64, 64), torch.tensor(10), torch.rand(2, 77, 768)),
    cross_attention_dim=768,
)


class Decode(nn.Module):
    """The decoder of an autoencoder of diffusers."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, latents: torch.Tensor) -> torch.Tensor:
        """The image or the video."""
        first: torch.Tensor = self.model.decode(latents, return_dict=False)[0]
        return first


def _decoder(name: str, kind: str, latents: tuple[int, ...], **config: Any) -> None:
    @_network("diffusers", name)
    def make() -> Made:
        import_torchvision()
        import diffusers

        return Decode(getattr(diffusers, kind)(**config).half()), (torch.rand(latents).half(),)


_decoder(
    "sd_vae_decoder",
    "AutoencoderKL",
    (1, 4, 64, 64),
    latent_channels=4,
    layers_per_block=2,
    **_blocks((128, 256, 512, 512), "DownEncoderBlock2D", "UpDecoderBlock2D"),
)
_decoder("tiny_vae_decoder", "AutoencoderTiny", (1, 4, 64, 64))
_decoder("wan_vae_decoder", "AutoencoderKLWan", (1, 16, 2, 32, 32))
_decoder("ltx_vae_decoder", "AutoencoderKLLTXVideo", (1, 128, 2, 16, 16))
_decoder("oobleck_decoder", "AutoencoderOobleck", (1, 64, 256))


# ----------------------------------------------------------------------------------------- segmentation_models_pytorch
def _smp(name: str, kind: str, encoder: str, *modes: str) -> None:
    @_network("segmentation-models-pytorch", name, *modes)
    def make() -> Made:
        import_torchvision()
        import segmentation_models_pytorch

        model = getattr(segmentation_models_pytorch, kind)(encoder_name=encoder, encoder_weights=None, classes=8)
        return model, (_image(8, 512),)


_smp("smp_unet_resnet34", "Unet", "resnet34", *BOTH)
_smp("smp_fpn_resnet18", "FPN", "resnet18", *BOTH)
_smp("smp_deeplabv3plus_mobilenet", "DeepLabV3Plus", "mobilenet_v2")
_smp("smp_pspnet_resnet18", "PSPNet", "resnet18")
_smp("smp_unet_mit_b0", "Unet", "mit_b0")
_smp("smp_unetplusplus_resnet18", "UnetPlusPlus", "resnet18")


# ------------------------------------------------------------------------------------------------------------- MONAI
def _monai(name: str, kind: str, *modes: str, size: int = 96, channels: int = 1, **config: Any) -> None:
    @_network("MONAI", name, *modes)
    def make() -> Made:
        import_torchvision()
        from monai.networks import nets

        return Plain(getattr(nets, kind)(**config)), (
            torch.rand(2, channels, *(size,) * config.get("spatial_dims", 3)),
        )


_OF_ONE = {"spatial_dims": 3, "in_channels": 1, "out_channels": 3}
_monai("monai_basic_unet_3d", "BasicUNet", *BOTH, **_OF_ONE)
_monai("monai_segresnet_3d", "SegResNet", *BOTH, **_OF_ONE, init_filters=16)
_monai("monai_vnet_3d", "VNet", **_OF_ONE)
_monai("monai_highresnet_3d", "HighResNet", **_OF_ONE)
_monai("monai_densenet121_3d", "DenseNet121", **_OF_ONE)
_monai("monai_swin_unetr_3d", "SwinUNETR", **_OF_ONE, feature_size=24)
_monai("monai_unetr_3d", "UNETR", **_OF_ONE, img_size=(96, 96, 96))


def _monai_unet(name: str, kind: str, *modes: str, **further: Any) -> None:
    @_network("MONAI", name, *modes)
    def make() -> Made:
        import_torchvision()
        from monai.networks import nets

        model = getattr(nets, kind)(**_OF_ONE, channels=(16, 32, 64, 128, 256), strides=(2, 2, 2, 2), **further)
        return model, (torch.rand(2, 1, 96, 96, 96),)


_monai_unet("monai_unet_3d", "UNet", *BOTH, num_res_units=2)
_monai_unet("monai_attention_unet_3d", "AttentionUnet")


@_network("MONAI", "monai_dynunet_3d", *BOTH)
def _dynunet() -> Made:
    import_torchvision()
    from monai.networks import nets

    kernels, strides = [3] * 5, [1, 2, 2, 2, 2]
    model = nets.DynUNet(3, 1, 3, kernels, strides, strides[1:], filters=[32, 64, 128, 256, 320])
    return model, (torch.rand(2, 1, 96, 96, 96),)


# ------------------------------------------------------------------------------------------------------------ nnU-Net
@_network("dynamic-network-architectures", "nnunet_resenc_2d", *BOTH)
def _resenc() -> Made:
    from dynamic_network_architectures.architectures.unet import ResidualEncoderUNet

    model = ResidualEncoderUNet(
        1, 6, (32, 64, 128, 256, 512, 512), nn.Conv2d, 3, (1, 2, 2, 2, 2, 2), (1, 3, 4, 6, 6, 6), 3, (1,) * 5,
        conv_bias=True, norm_op=nn.InstanceNorm2d, norm_op_kwargs={"affine": True}, nonlin=nn.LeakyReLU,
        nonlin_kwargs={"inplace": True},
    )  # fmt: skip
    return model, (_image(12, 256, channels=1),)


# --------------------------------------------------------------------------------------------------------- ultralytics
def _yolo(name: str, *modes: str, size: int = 640) -> None:
    @_network("ultralytics", name.replace("-", "_"), *modes)
    def make() -> Made:
        import_torchvision()
        from ultralytics import YOLO

        return Plain(YOLO(f"{name}.yaml").model), (_image(8, size),)


_yolo("yolov8n")
_yolo("yolo11n")
_yolo("yolov8n-cls", size=224)


# ------------------------------------------------------------------------------------------------------------ spandrel
@_network("spandrel", "esrgan_rrdb")
def _rrdb() -> Made:
    import_torchvision()
    from spandrel.architectures.ESRGAN.__arch.RRDB import RRDBNet

    return RRDBNet(num_blocks=6), (_image(1, 128),)


@_network("spandrel", "realesr_compact", *BOTH)
def _compact() -> Made:
    import_torchvision()
    from spandrel.architectures.Compact.__arch.SRVGG import SRVGGNetCompact

    return SRVGGNetCompact(num_in_ch=3, num_out_ch=3, num_feat=64, num_conv=16, upscale=4), (_image(4, 128),)


@_network("spandrel", "swinir_lightweight")
def _swinir() -> Made:
    import_torchvision()
    from spandrel.architectures.SwinIR import SwinIR

    model = SwinIR(
        img_size=64, embed_dim=60, depths=[6] * 4, num_heads=[6] * 4, mlp_ratio=2, upscale=2, window_size=8,
        upsampler="pixelshuffledirect", resi_connection="1conv",
    )  # fmt: skip
    return model, (_image(1, 64),)
