"""Losses as pure functions of tensors, one file for each.

    loss = find("dpo", beta=0.2)            a name of `LOSSES`, or the dotted path of a user's function
    result = loss({"chosen_logprobs": ..., "rejected_logprobs": ..., ...})
    result.total, result.count              sums over the local units; their quotient is the mean

The positional parameters of a loss name its inputs; one with a default is optional. The keyword-only
parameters are its options. A model provides the inputs of this table that it computes; every other name is a
column of the batch.

    input                                          shape       content
    logprobs                                       [tokens]    log-probability of each label
    mask                                           [tokens]    weight of each label; 0 where labels are -100
    entropy                                        [tokens]    entropy of each prediction
    sequence_logprobs, ref_sequence_logprobs       [samples]   sum of the log-probabilities of its labels
    sequence_tokens                                [samples]   number of labels of a sample
    scores                                         [samples]   output of a reward model
    chosen_logprobs, rejected_logprobs             [pairs]     `sequence_logprobs` of each side
    ref_chosen_logprobs, ref_rejected_logprobs     [pairs]     the same of the frozen reference model
    chosen_tokens, rejected_tokens                 [pairs]     `sequence_tokens` of each side
    chosen_scores, rejected_scores                 [pairs]     `scores` of each side

A loss returns a sum and a count and never a local mean. A trainer adds both over micro-batches and ranks, and
divides once. The result is therefore exact for any number of ranks, micro-batches and tokens.

A user's function has the same form, and may return the pair `(total, count)`:

    def focal(logprobs, mask, *, gamma=2.0):
        return (-logprobs * (1 - logprobs.exp()) ** gamma * mask).sum(), mask.sum()
"""

from meshctl.losses.loss import LOSSES as LOSSES
from meshctl.losses.loss import Loss as Loss
from meshctl.losses.loss import LossError as LossError
from meshctl.losses.loss import LossSum as LossSum
from meshctl.losses.loss import find as find

__all__ = ["LOSSES", "Loss", "LossError", "LossSum", "find"]
