"""InstanceNorm behind each convolution; the bias before a norm has no gradient, and that is no fault."""

from healthy_parts import classify_images, convolutions
from torch import nn

LEARNS = 0.9


def make():
    return classify_images(convolutions(lambda width: nn.InstanceNorm2d(width, affine=True)))
