"""Recommendations follow from what is known of the case, and name their reasons."""

import pytest
import torch
from torch import nn

from trimtab.errors import NormalizationError
from trimtab.norms._practice import PRACTICE, practice_of
from trimtab.norms._tasks import FAMILIES
from trimtab.norms.recommendation import Recommendation, recommend

LAYERS = {
    "BatchNorm", "SyncBatchNorm", "FrozenBatchNorm", "GroupNorm", "LayerNorm", "InstanceNorm", "RMSNorm", "spectral_norm",
}  # fmt: skip
OF_A_BATCH = {"BatchNorm", "SyncBatchNorm"}


@pytest.mark.parametrize("task", FAMILIES)
@pytest.mark.parametrize("batch_size", [None, 1, 8, 64])
@pytest.mark.parametrize("padded", [False, True])
@pytest.mark.parametrize("gradient_penalty", [False, True])
def test_every_task_has_a_complete_answer(task, batch_size, padded, gradient_penalty):
    answer = recommend(task, batch_size=batch_size, padded=padded, gradient_penalty=gradient_penalty, channels=48)
    assert isinstance(answer, Recommendation)
    assert answer.layer in LAYERS
    assert answer.task == task
    assert answer.reasons
    assert answer.placement
    assert answer.decay
    assert (answer.eps is None) is (answer.layer == "spectral_norm")
    assert (answer.groups is not None) is (answer.layer == "GroupNorm")
    if answer.groups is not None:
        nn.GroupNorm(answer.groups, 48, answer.eps)
        assert 48 // answer.groups >= 4
    if gradient_penalty or padded or batch_size is None or batch_size < 16:
        assert answer.layer not in OF_A_BATCH
    assert task in FAMILIES
    for reason in answer.reasons:
        assert reason in str(answer)


@pytest.mark.parametrize(
    ("task", "more", "layer"),
    [
        ("image-classification", {"batch_size": 64}, "BatchNorm"),
        ("image-classification", {"batch_size": 16}, "BatchNorm"),
        ("image-classification", {"batch_size": 15}, "GroupNorm"),
        ("image-classification", {"batch_size": 4, "ranks": 4}, "SyncBatchNorm"),
        ("image-classification", {"batch_size": 4, "ranks": 2}, "GroupNorm"),
        ("image-classification", {}, "GroupNorm"),
        ("detection", {"batch_size": 2, "pretrained": True}, "FrozenBatchNorm"),
        ("medical-segmentation", {"batch_size": 2}, "InstanceNorm"),
        ("style-transfer", {"batch_size": 1}, "InstanceNorm"),
        ("language-model", {}, "RMSNorm"),
        ("text-encoder", {"batch_size": 512}, "LayerNorm"),
        ("vision-transformer", {}, "LayerNorm"),
        ("recurrent", {"batch_size": 512}, "LayerNorm"),
        ("tabular", {"batch_size": 32}, "BatchNorm"),
        ("tabular", {"batch_size": 31}, "LayerNorm"),
        ("gan-critic", {"batch_size": 64}, "spectral_norm"),
        ("gan-critic", {"batch_size": 64, "gradient_penalty": True}, "GroupNorm"),
        ("diffusion", {"batch_size": 64}, "GroupNorm"),
        ("private-training", {"batch_size": 64}, "GroupNorm"),
        # the third note's five, all of which answer here
        ("image_classification_large_batch", {}, "BatchNorm"),
        ("image_classification_small_batch", {}, "GroupNorm"),
        ("transformer_language", {}, "RMSNorm"),
        ("style_transfer", {}, "InstanceNorm"),
        ("gan", {}, "spectral_norm"),
    ],
)
def test_the_layer_follows_from_the_case(task, more, layer):
    assert recommend(task, **more).layer == layer


def test_the_batch_size_that_is_given_wins_over_the_one_that_a_name_means():
    assert recommend("image_classification_large_batch", batch_size=2).layer == "GroupNorm"
    assert recommend("image-classification", torch.randn(64, 3, 8, 8)).layer == "BatchNorm"
    assert (
        recommend("image-classification", (torch.randn(64, 3, 8, 8), torch.zeros(64)), batch_size=3).layer
        == "GroupNorm"
    )


def test_groups_of_48_channels_are_not_32():
    with pytest.raises(ValueError, match="must be divisible"):
        nn.GroupNorm(32, 48)
    answer = recommend("diffusion", channels=48)
    assert answer.groups == 12
    assert "GroupNorm(32, 48) raises" in " ".join(answer.reasons)
    assert recommend("diffusion", channels=48, positions=64).groups == 24
    assert recommend("diffusion", channels=320).groups == 32
    assert recommend("diffusion").groups is None


def test_eps_of_half_precision_is_given_and_does_not_vanish():
    for dtype in (torch.float16, torch.bfloat16):
        for task in FAMILIES:
            answer = recommend(task, batch_size=64, dtype=dtype)
            assert any("half precision" in reason for reason in answer.reasons)
            assert answer.eps is None or torch.tensor(answer.eps, dtype=dtype) > 0
    assert not any("half" in reason for reason in recommend("language-model").reasons)


def test_depth_decides_between_pre_norm_and_deep_norm():
    assert recommend("language-model", depth=12).placement.startswith("pre")
    assert recommend("language-model", depth=200).placement.startswith("deep")


def test_decay_is_kept_off_norm_parameters():
    assert recommend("language-model").decay.startswith("no weight decay on weight and bias")
    assert "scale-free" in recommend("image-classification", batch_size=64).decay
    assert "scale-free" not in recommend("language-model").decay  # a norm of the residual stream follows no weight


# -------------------------------------------------------------------------------------------------------- from a model


class Attention(nn.Module):
    def __init__(self, embed):
        super().__init__()
        self.embed, self.attention = embed, nn.MultiheadAttention(8, 2)


@pytest.mark.parametrize(
    ("model", "task"),
    [
        (nn.Sequential(nn.Conv2d(3, 48, 3), nn.ReLU(), nn.Conv2d(48, 96, 3)), "convolutional"),
        (nn.Sequential(nn.Linear(4, 8), nn.ReLU()), "tabular"),
        (Attention(nn.Embedding(10, 8)), "transformer"),
        (Attention(nn.Conv2d(3, 8, 4, 4)), "vision-transformer"),
        (nn.LSTM(4, 8), "recurrent"),
    ],
)
def test_the_task_is_read_off_a_model_and_that_is_said(model, task):
    answer = recommend(model, torch.randn(4, 3))
    assert answer.task == task
    assert "read off the model" in answer.reasons[0]


def test_size_width_and_dtype_come_from_model_and_batch():
    model = nn.Sequential(nn.Conv2d(3, 48, 3), nn.ReLU(), nn.Conv2d(48, 64, 3)).bfloat16()
    answer = recommend(model, (torch.randn(4, 3, 8, 8), torch.zeros(4)))
    assert answer.layer == "GroupNorm"
    assert 48 % answer.groups == 64 % answer.groups == 0
    assert any("4 images" in reason for reason in answer.reasons)
    assert any("half precision" in reason for reason in answer.reasons)
    assert recommend(model, {"x": torch.randn(32, 3, 8, 8)}).layer == "BatchNorm"


# ------------------------------------------------------------------------------------------------------------ practice


def test_practice_is_about_families_that_exist_and_names_its_source():
    known = set(FAMILIES.values())
    for practice in PRACTICE:
        assert set(practice.families) <= known
        assert practice.source
        assert practice.choice
    assert {p.project for p in recommend("diffusion").practice} == {"diffusers", "guided-diffusion"}
    assert practice_of(("private",))[0].choice.startswith("BatchNorm replaced by GroupNorm")


# -------------------------------------------------------------------------------------------------------------- errors


def test_unknown_tasks_are_an_error_that_names_the_known_ones():
    with pytest.raises(NormalizationError, match=r"task is 'foo'; known are image-classification, .*private-training"):
        recommend("foo")
    with pytest.raises(ValueError, match="ReLU has neither convolutions"):
        recommend(nn.ReLU())


@pytest.mark.parametrize("name", ["batch_size", "channels", "positions", "ranks", "depth"])
def test_numbers_below_one_are_refused(name):
    with pytest.raises(NormalizationError, match=rf"{name} is 0; a whole number of at least 1 is needed"):
        recommend("diffusion", **{name: 0})
