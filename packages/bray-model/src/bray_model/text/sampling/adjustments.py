"""What a request does to its logits: a bias of tokens, penalties of repeats, forbidden tokens."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import torch

from bray_model.text.requests import Sampling, TokenConstraint
from bray_model.text.row_table import RowTable


def adjust(
    logits: torch.Tensor,
    sampling: Sampling,
    ids: npt.NDArray[np.int64],
    constraint: TokenConstraint | None = None,
) -> None:
    """Add a request's bias to logits `[V]` in place, take off its penalties, forbid tokens.

    logit_j += bias_j − frequency_penalty · n_j − presence_penalty · (n_j > 0), n_j the times that
    token j was sampled before, as OpenAI's API has it. The prompt does not count.

    Args:
        logits: Logits of the next token, float32.
        sampling: The request's settings.
        ids: What the request has sampled so far, `[T]`.
        constraint: What the request's tokens are held to.
    """
    if len(ids) and (sampling.frequency_penalty or sampling.presence_penalty):
        known, counts = np.unique(ids, return_counts=True)
        penalty = sampling.frequency_penalty * counts + sampling.presence_penalty
        logits[torch.from_numpy(known).to(logits.device)] -= torch.from_numpy(penalty).to(logits)
    if sampling.logit_bias:
        tokens, biases = zip(*sampling.logit_bias, strict=True)
        logits[torch.tensor(tokens, device=logits.device)] += torch.tensor(biases).to(logits)
    if constraint is not None:
        forbidden = torch.from_numpy(~constraint.allowed(ids)).to(logits.device)
        logits.masked_fill_(forbidden, -torch.inf)


def adjusted(
    table: RowTable, rows: npt.NDArray[np.int64], logits: torch.Tensor
) -> torch.Tensor | None:
    """Return the logits of rows with what their requests add to them; None where none does.

    Args:
        table: the rows that are decoded.
        rows: rows of the logits, `[N]`.
        logits: `[N, V]`, left as they are.
    """
    few = np.flatnonzero(table.adjusted[rows])
    if not len(few):
        return None
    found = logits.float().clone()
    for index in few.tolist():
        row = int(rows[index])
        request = table.jobs[row].request
        adjust(found[index], request.sampling, table.sampled_ids(row), request.constraint)
    return found
