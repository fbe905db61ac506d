"""A causal language model, norms at the start of each branch, AdamW under a warm-up, dropout."""

from healthy_parts import Causal, next_symbol

LEARNS = 0.5


def make():
    return next_symbol(lambda: Causal(norm_first=True), 3e-3, warm_up=40)
