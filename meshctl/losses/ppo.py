"""Proximal policy optimization: the clipped loss of the policy (Schulman et al., 2017, arXiv:1707.06347,
equation 7).

    r = p(token) / p_old(token)
    loss = -min(r A, clamp(r, 1 - clip, 1 + clip_high) A)

The advantages are those of `advantages.gae`, from the values of a critic. `value` is the loss of the critic.
"""

from functools import partial

from meshctl.losses.clipped import RATIO_OF_TOKENS, clipped_loss

ppo = partial(clipped_loss, "ppo", RATIO_OF_TOKENS, aggregation="token")
