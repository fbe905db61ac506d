"""What leading projects use: layer, eps, affine and groups, read in their sources."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Practice:
    """What one project does.

    Attributes:
        project: The project, with the version that was read where it is known.
        choice: Layer, eps, affine part and groups.
        source: The file in the project's repository.
        families: The families of tasks for which it is an example.
    """

    project: str
    choice: str
    source: str
    families: tuple[str, ...]


PRACTICE = (
    Practice(
        "timm",
        "LayerNorm and RmsNorm with eps 1e-6 (1e-5 for CLIP-style vision transformers); GroupNorm with 32 groups, eps 1e-5",
        "timm/layers/norm.py, timm/models/vision_transformer.py",
        ("convolutional", "vision-transformer"),
    ),
    Practice(
        "detectron2",
        "by name: BN, SyncBN, FrozenBN (eps 1e-5), GN (32 groups), LN (eps 1e-6)",
        "detectron2/layers/batch_norm.py",
        ("convolutional", "detection"),
    ),
    Practice(
        "Opacus 1.6.0",
        "BatchNorm replaced by GroupNorm(gcd(32, channels)), default eps, new affine part",
        "opacus/validators/batch_norm.py",
        ("private",),
    ),
    Practice(
        "nnU-Net v2.8.1",
        "InstanceNorm, eps 1e-5, affine, with biases in the convolutions",
        "nnunetv2/experiment_planning/experiment_planners/default_experiment_planner.py",
        ("medical",),
    ),
    Practice("torchtitan", "RMSNorm, eps 1e-5, affine", "torchtitan/models/common/rmsnorm.py", ("language-model",)),
    Practice(
        "nanoGPT",
        "LayerNorm, eps 1e-5, bias optional; no weight decay on parameters of fewer than two axes",
        "model.py",
        ("language-model", "transformer"),
    ),
    Practice(
        "Transformers 5.24",
        "RMSNorm: llama, qwen3, gemma3, t5 eps 1e-6, olmo2 1e-5",
        "src/transformers/models/*/configuration_*.py",
        ("language-model",),
    ),
    Practice(
        "Transformers 5.24",
        "LayerNorm: gpt2, gpt_neox eps 1e-5; bert, vit 1e-12, which half precision cannot hold",
        "src/transformers/models/*/configuration_*.py",
        ("transformer", "vision-transformer"),
    ),
    Practice(
        "StyleGAN2-ADA",
        "no normalization of activations: weights are demodulated, eps 1e-8; fp16 divides by the largest value first",
        "training/networks.py",
        ("generator", "critic"),
    ),
    Practice(
        "diffusers",
        "GroupNorm with 32 groups, eps 1e-5 (UNet2DCondition) or 1e-6 (ResnetBlock2D, VAE), affine",
        "src/diffusers/models/unets/unet_2d_condition.py, src/diffusers/models/resnet.py",
        ("diffusion",),
    ),
    Practice(
        "guided-diffusion",
        "GroupNorm with 32 groups computed in float32, default eps",
        "guided_diffusion/nn.py",
        ("diffusion",),
    ),
    Practice(
        "Keras",
        "BatchNormalization, LayerNormalization and GroupNormalization with eps 1e-3, RMSNormalization 1e-6: a port must "
        "carry eps over",
        "keras/src/layers/normalization",
        ("convolutional", "dense", "recurrent"),
    ),
)


def practice_of(families: tuple[str, ...]) -> tuple[Practice, ...]:
    """The examples for families of tasks.

    Args:
        families: One or more.

    Returns:
        The examples in the order of the table.
    """
    return tuple(practice for practice in PRACTICE if set(practice.families) & set(families))
