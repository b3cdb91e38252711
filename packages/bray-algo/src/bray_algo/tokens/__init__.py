"""Training on tokens: the losses, advantages and measures of language models, as functions.

Letters: B rows, T tokens of a row, N samples (one answer or session each), S sequences, V words of
the vocabulary. A column of tokens is `[B, T]`, and position t belongs to token t itself:
`log_prob[b, t]` is log π(token_t | tokens before it).

Two tensors say what a token is:

- `mask` (bool `[B, T]`) is true for the tokens that the policy itself sampled. Prompts, answers of
  tools, later turns of the user and padding are false: they may hold anything, and get no gradient.
- `sequence` (integers `[B, T]`) numbers the sequences where several share a row (packing), over the
  whole batch, from 0; each lies in one piece within one row. None is one sequence a row.

Every mean is a sum over tokens divided by `num_tokens`, the number of tokens of the whole step. A
step that is cut into parts gives each part the same `num_tokens`: their losses and gradients then
add up to those of the whole step. Ranks whose gradients are averaged pass the number of all ranks
divided by the number of ranks. Terms for logging are plain means over the own tokens of a call.

    advantages   rewards of groups → advantages: GRPO, Dr. GRPO, RLOO, REINFORCE++
    values       learnt values: generalised advantages, and their loss
    groups       which groups teach anything: DAPO's dynamic sampling
    rewards      rewards at the last token, penalties for KL and for length
    sequences    sums over sequences, packed or not
    reductions   means over tokens and over sequences
    grpo, gspo, cispo, dpo, sft   losses, one file each
    divergence   KL to a reference: k1, k2, k3
    sampler      the gap between sampler and trainer, and weights against it
    prediction   logits of a language model → log probabilities of its tokens
"""
