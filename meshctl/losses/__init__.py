"""Losses as pure functions of tensors.

    loss = find("dpo", beta=0.2)            a name of `LOSSES`, or the dotted path of a user's function
    result = loss({"chosen_logprobs": ..., "rejected_logprobs": ..., ...})
    result.total, result.count              sums over the local units; their quotient is the mean

The positional parameters of a loss name its inputs; one with a default is optional. The keyword-only
parameters are its options. The optional input `ref_logprobs` is used only if the option `kl` is not 0. A
model provides the inputs of this table that it computes; every other name is a column of the batch.

    input                                          shape        content
    logprobs                                       [tokens]     log-probability of each label
    mask                                           [tokens]     weight of each label; 0 where labels are -100
    entropy                                        [tokens]     entropy of each prediction
    predicted_values                               [tokens]     a critic's value of the text before the label
    sample_index                                   [tokens]     row of the label's sample, int64
    top_logprobs                                   [tokens, k]  of the tokens `teacher_top_ids`
    sequence_logprobs, ref_sequence_logprobs       [samples]    sum of the log-probabilities of its labels
    sequence_tokens                                [samples]    number of labels of a sample
    scores                                         [samples]    output of a reward model
    chosen_logprobs, rejected_logprobs             [pairs]      `sequence_logprobs` of each side
    ref_chosen_logprobs, ref_rejected_logprobs     [pairs]      the same of the frozen reference model
    chosen_tokens, rejected_tokens                 [pairs]      `sequence_tokens` of each side
    chosen_scores, rejected_scores                 [pairs]      `scores` of each side

A column of floats with one value for each token of the texts is also `[tokens]`, aligned with `logprobs`.
`PROVIDERS` names the stages that give these columns. `update` of `hf.Model` adds the columns `advantages`,
`returns`, and the sizes of groups and of episodes.

    input                                          shape        content
    advantages                                     [tokens]     of the label (`meshctl.losses.advantages`)
    old_logprobs, sampled_logprobs                 [tokens]     by the model before its update; by the sampler
    ref_logprobs, teacher_logprobs                 [tokens]     by a reference model; by a teacher
    teacher_top_logprobs                           [tokens, k]  of the teacher's k likeliest tokens
    values, returns                                [tokens]     of a critic before its update; their targets
    group_tokens, group_samples                    [samples]    labels and samples of the sample's group
    episode_tokens, episode_rows                   [samples]    labels and rows of an agent's episode

A loss returns a sum and a count and never a local mean. A trainer adds both over micro-batches and ranks, and
divides once. The result is therefore exact for any number of ranks, micro-batches and tokens.

A user's function has the same form, and may return the pair `(total, count)`:

    def focal(logprobs, mask, *, gamma=2.0):
        return (-logprobs * (1 - logprobs.exp()) ** gamma * mask).sum(), mask.sum()
"""

from meshctl.losses.loss import LOSSES as LOSSES
from meshctl.losses.loss import PROVIDERS as PROVIDERS
from meshctl.losses.loss import Loss as Loss
from meshctl.losses.loss import LossError as LossError
from meshctl.losses.loss import LossSum as LossSum
from meshctl.losses.loss import find as find

__all__ = ["LOSSES", "PROVIDERS", "Loss", "LossError", "LossSum", "find"]
