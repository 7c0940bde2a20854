"""Group sequence policy optimization, with one ratio for each answer (Zheng et al., 2025, arXiv:2507.18071,
equations 5 and 7).

    s = exp(mean over tokens of log p(token) - log p_old(token))
    loss = -min(s A, clamp(s, 1 - clip, 1 + clip_high) A)

The ratio of an answer is that of its whole likelihood, normalized by its length, so its range of clipping is
much smaller: the default values are those of section 5.1. The advantages are those of `advantages.grpo`.
"""

from functools import partial

from meshctl.losses.clipped import RATIO_OF_SEQUENCES, clipped_loss

gspo = partial(clipped_loss, "gspo", RATIO_OF_SEQUENCES, clip=3e-4, clip_high=4e-4, aggregation="sequence")
