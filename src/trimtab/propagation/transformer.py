"""What is proved of transformers at initialization: Xiong et al. 2020 on placement of the norm, Wang et al. 2022 on DeepNorm."""

import math
from typing import Literal

from trimtab.propagation._checks import PropagationError, require_not_negative, require_positive, require_whole

POST_NORM_SECOND_MOMENT = 1.5
"""Second moment before the norm behind a post-norm block's second sum, per feature: E norm(x)^2 = 3 d/2 (Xiong et al. 2020,
arXiv:2002.04745, Lemma 2), in every layer."""


def pre_norm_second_moment(layer: int) -> tuple[float, float]:
    """(1 + l/2, 1 + 3 l/2): bounds on a pre-norm stream's second moment per feature (Xiong et al. 2020, Lemma 2).

    For Xavier weights and their simplified block: uniform attention, ReLU, one block of attention and feed-forward a
    layer.

    Args:
        layer: l, layers the stream has passed.

    Returns:
        Lower and upper bound of E norm(x_l)^2/d.

    Raises:
        PropagationError: If the layer is negative.
    """
    require_whole("layer", layer, least=0)
    return 1.0 + 0.5 * layer, 1.0 + 1.5 * layer


def final_norm_gain(depth: int) -> tuple[float, float]:
    """Bounds on the amplitude gain of the final norm of a pre-norm stack, 1/sqrt of `pre_norm_second_moment`.

    It is what divides every gradient below it, and why they fall as 1/sqrt(depth) (Xiong et al. 2020, sec. 3.3).

    Args:
        depth: Layers.

    Returns:
        Lower and upper bound.
    """
    low, high = pre_norm_second_moment(depth)
    return high**-0.5, low**-0.5


def last_gradient_order(placement: Literal["pre", "post"], width: int, depth: int) -> float:
    """D sqrt(ln d) for post-norm, d sqrt(ln d/L) for pre-norm: order of the LAST feed-forward matrix's gradient norm.

    Xiong et al. 2020, Theorem 1: an upper bound up to a constant, so compare two depths by their ratio. It says nothing of
    the layers below; there, pre-norm gradients grow towards the input by about sqrt(L), measured.

    Args:
        placement: Where the norm stands.
        width: d.
        depth: L.

    Returns:
        The order of the norm.

    Raises:
        PropagationError: If the placement is neither, the width below 2 or the depth below 1.
    """
    if not (isinstance(placement, str) and placement in {"pre", "post"}):
        raise PropagationError(f"placement is {placement!r}; 'pre' or 'post' is needed")
    require_whole("width", width, least=2)
    require_whole("depth", depth)
    return width * math.sqrt(math.log(width) / (depth if placement == "pre" else 1.0))


def deepnorm_update_bound(layers: int, alpha: float, beta: float) -> float:
    """4 N beta^2/alpha^2: order of an encoder's change in output per step, over that of its parameters' (Wang et al. 2022).

    arXiv:2203.00555, Theorem 4.2 with both weights of a block scaled by beta: sum over 2 N blocks of (v^2 + w^2)/alpha^2.
    DeepNorm's constants, `trimtab.norms.residual.deepnorm_scales`, make it 1 at every depth; post-norm (1, 1) has 4 N.

    Args:
        layers: N, each of attention and feed-forward.
        alpha: Factor of the skip.
        beta: Gain of the initial weights of feed-forward, value and output projections; not of queries and keys.

    Returns:
        The order of the update.
    """
    require_positive("layers", layers)
    require_positive("alpha", alpha)
    require_not_negative("beta", beta)
    return 4.0 * layers * beta**2 / alpha**2
