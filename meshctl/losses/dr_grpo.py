"""Dr. GRPO, without a bias to long answers (Liu et al., 2025, arXiv:2503.20783, section 3.1 and listing 1).

    r = p(token) / p_old(token)
    loss = -min(r A, clamp(r, 1 - clip, 1 + clip_high) A) / max_tokens

The sum over the tokens of an answer comes first, then the mean over answers. The equations of the paper have
the constant `max_tokens` 1, and its listing the largest number of new tokens of an answer. The advantages are
those of `advantages.group_mean`.
"""

from functools import partial

from meshctl.losses.clipped import RATIO_OF_TOKENS, clipped_loss

dr_grpo = partial(clipped_loss, "dr_grpo", RATIO_OF_TOKENS, aggregation="constant")
