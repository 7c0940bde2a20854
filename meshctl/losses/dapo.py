"""DAPO, with decoupled clipping and a loss of tokens (Yu et al., 2025, arXiv:2503.14476, equation 8).

    r = p(token) / p_old(token)
    loss = -min(r A, clamp(r, 1 - clip, 1 + clip_high) A)

All tokens of the batch have the same weight, as in the authors' code. The equation has this mean for each
group: `aggregation: group`. The advantages are those of `advantages.grpo`.
"""

from functools import partial

from meshctl.losses.clipped import RATIO_OF_TOKENS, clipped_loss

dapo = partial(clipped_loss, "dapo", RATIO_OF_TOKENS, clip_high=0.28, aggregation="token")
