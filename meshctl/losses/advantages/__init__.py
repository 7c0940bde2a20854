"""Advantages: how much better a sampled answer, or a token of it, is than what was expected. One file for
each.

    estimate = find("grpo", eps=1e-6)       a name of `ADVANTAGES`, or the dotted path of a user's function
    estimate({"rewards": ..., "group_index": ..., ...})

`hf.Model.update` calls the function with its whole share of the batch, before it cuts micro-batches. Groups
are whole there. The positional parameters of the function name its inputs; one with a default is optional.
The keyword-only parameters are its options.

    input                                          shape                  content
    rewards                                        [samples]              reward of an answer; or
                                                   [samples, tokens]      reward of each of its tokens
    group_index                                    int64 [samples]        number of each sample's group
    mask                                           [samples, tokens]      1 for a label, 0 elsewhere
    values                                         [samples, tokens]      value of the text before the label
    old_logprobs, sampled_logprobs, ref_logprobs   [samples, tokens]      log-probability of the label
    over_ranks                                     a function             adds a tensor over all data ranks

The function returns advantages, `[samples]` or `[samples, tokens]`, or `Estimates` with the returns. A user's
function has the same form:

    def centered(rewards, over_ranks):
        total, count = over_ranks(torch.stack([rewards.sum(), torch.ones_like(rewards).sum()]))
        return rewards - total / count

All ranks call the function, also with an empty batch, and call `over_ranks` equally often.
"""

from meshctl.losses.advantages.advantage import ADVANTAGES as ADVANTAGES
from meshctl.losses.advantages.advantage import DEFAULTS as DEFAULTS
from meshctl.losses.advantages.advantage import Advantage as Advantage
from meshctl.losses.advantages.advantage import Estimates as Estimates
from meshctl.losses.advantages.advantage import find as find

__all__ = ["ADVANTAGES", "DEFAULTS", "Advantage", "Estimates", "find"]
