"""Group relative policy optimization (Shao et al., 2024, arXiv:2402.03300, equations 3 and 4).

    r = p(token) / p_old(token)
    loss = -min(r A, clamp(r, 1 - clip, 1 + clip_high) A) + kl KL(p || ref)

The mean over the tokens of an answer comes first, then the mean over answers. The advantages are those of
`advantages.grpo`. The divergence is estimated with k3, as in the paper. Its weight `kl` is 0 by default.
"""

from functools import partial

from meshctl.losses.clipped import RATIO_OF_TOKENS, clipped_loss

grpo = partial(clipped_loss, "grpo", RATIO_OF_TOKENS, aggregation="sequence")
