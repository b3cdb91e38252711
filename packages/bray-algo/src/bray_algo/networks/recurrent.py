"""LSTM and GRU over segments in which episodes begin: the state is zeroed at each beginning.

A segment is trained on as it was acted on: running `[T, B]` at once equals running each episode
alone, and equals step after step.
"""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor, nn
from torch.nn.functional import linear
from torch.nn.utils.rnn import PackedSequence

from bray_algo.validation.switch import is_validated
from bray_algo.validation.tensors import check_flags, check_shape


class Recurrent(nn.Module):
    """An LSTM or a GRU with resets inside the sequence.

    The state is one tensor `[B, S]`, S = `state_size`, so that it travels in a segment as one leaf.

    Args:
        kind: `lstm` (Hochreiter & Schmidhuber 1997; Gers et al. 2000) or `gru` (Cho et al. 2014),
            which has a state of half the size.
        input_size: Features D of a step.
        hidden_size: Features H of each output, usually 64 to 512.
        num_layers: Number L of layers, usually 1.

    Raises:
        ValueError: an unknown kind, or a number that is not positive.

    Examples:
        >>> network = Recurrent("lstm", 4, 8)
        >>> begins = torch.tensor([[True], [False], [True]])  # an episode of two steps, another
        >>> outputs, state = network(torch.zeros(3, 1, 4), network.initial(1), begins)
        >>> outputs.shape, state.shape
        (torch.Size([3, 1, 8]), torch.Size([1, 16]))
    """

    def __init__(
        self, kind: Literal["lstm", "gru"], input_size: int, hidden_size: int, num_layers: int = 1
    ) -> None:
        super().__init__()
        if kind not in ("lstm", "gru"):
            raise ValueError(f"kind: expected 'lstm' or 'gru', got {kind!r}")
        if min(input_size, hidden_size, num_layers) < 1:
            raise ValueError(
                "input_size, hidden_size, num_layers: expected positive numbers, "
                f"got {input_size}, {hidden_size}, {num_layers}"
            )
        self.core = (nn.LSTM if kind == "lstm" else nn.GRU)(input_size, hidden_size, num_layers)
        self.num_parts = 2 if kind == "lstm" else 1  # hidden and cell
        self.state_size = self.num_parts * num_layers * hidden_size
        _initialise_(self.core)

    def initial(self, num: int) -> Tensor:
        """Return the state at the beginning of an episode, zeros `[num, S]`."""
        return next(self.core.parameters()).new_zeros(num, self.state_size)

    def forward(
        self,
        x: Tensor,
        state: Tensor,
        begins: Tensor | None = None,
        length: Tensor | None = None,
    ) -> tuple[Tensor, Tensor]:
        """Return outputs `[T, B, H]` and the state after the last step `[B, S]`.

        Args:
            x: Inputs, `[T, B, D]`.
            state: State before the first step, `[B, S]`.
            begins: First steps of episodes, bool `[T, B]`; None: no episode begins inside.
            length: Valid steps of each column, `[B]`, 1 to T; None is T. Beyond, outputs are zero,
                and `x` may hold anything.

        Raises:
            ValueError: shapes do not agree, or a length is out of range.
        """
        begins = checked_begins(x, self.core.input_size, begins, length)
        check_shape("state", state, (x.shape[1], self.state_size))
        # Packing suits cuDNN; on a CPU it takes two to ten times as long as the steps. And it
        # depends on the data, which an exported graph may not.
        if x.is_cuda and len(x) > 1 and not torch.compiler.is_compiling():
            return self._packed(x, state, begins, length)
        return self._step_by_step(x, state, begins, length)

    def _packed(
        self, x: Tensor, state: Tensor, begins: Tensor, length: Tensor | None
    ) -> tuple[Tensor, Tensor]:
        """Run every episode as a sequence of its own, all of them at the same time."""
        num_steps, num_columns = begins.shape
        flat, sizes, heads, last = _pack(begins, length)  # flat: index of `[T, B]` as one axis
        first = (heads < num_columns) & ~begins.flatten()[heads]  # goes on from the state given
        before = state[heads % num_columns].masked_fill(~first[:, None], 0.0)
        packed = PackedSequence(x.flatten(0, 1)[flat], sizes)
        hidden = self._unflatten(before)
        result, after = self.core(packed, hidden if self.num_parts == 2 else hidden[0])
        outputs = result.data.new_zeros(num_steps * num_columns, self.core.hidden_size)
        outputs = outputs.index_copy(0, flat, result.data)
        after = self._flatten(after if self.num_parts == 2 else (after,))
        return outputs.reshape(num_steps, num_columns, -1), after[last]

    def _step_by_step(
        self, x: Tensor, state: Tensor, begins: Tensor, length: Tensor | None
    ) -> tuple[Tensor, Tensor]:
        outputs = []
        for t in range(len(x)):
            step, before = x[t], state.masked_fill(begins[t, :, None], 0.0)
            padding = None if length is None else (length <= t)[:, None]
            step = step if padding is None else step.masked_fill(padding, 0.0)
            output, after = self._step(step, before)
            if padding is not None:
                output, after = output.masked_fill(padding, 0.0), torch.where(padding, state, after)
            outputs.append(output)
            state = after
        return torch.stack(outputs), state

    def _step(self, x: Tensor, state: Tensor) -> tuple[Tensor, Tensor]:
        """Do one step in plain operations, which export anywhere."""
        parts, after = self._unflatten(state), []
        for layer in range(self.core.num_layers):
            weights = [getattr(self.core, f"{name}_l{layer}") for name in _WEIGHTS]
            cell = _lstm_cell if self.num_parts == 2 else _gru_cell
            new = cell(x, [part[layer] for part in parts], weights)
            after.append(new)
            x = new[0]
        return x, self._flatten(tuple(torch.stack(part) for part in zip(*after, strict=True)))

    def _unflatten(self, state: Tensor) -> tuple[Tensor, ...]:
        """Turn a state [B, S] into one or two of [L, B, H]."""
        shape = (-1, self.num_parts, self.core.num_layers, self.core.hidden_size)
        return state.reshape(shape).permute(1, 2, 0, 3).contiguous().unbind(0)

    def _flatten(self, parts: tuple[Tensor, ...]) -> Tensor:
        """Turn one or two of [L, B, H] into a state [B, S]."""
        return torch.stack(parts).permute(2, 0, 1, 3).flatten(1)


_WEIGHTS = ("weight_ih", "weight_hh", "bias_ih", "bias_hh")


def _lstm_cell(x: Tensor, state: list[Tensor], weights: list[Tensor]) -> list[Tensor]:
    hidden, cell = state
    gates = linear(x, weights[0], weights[2]) + linear(hidden, weights[1], weights[3])
    entry, forget, content, exit_ = gates.chunk(4, -1)
    cell = torch.sigmoid(forget) * cell + torch.sigmoid(entry) * torch.tanh(content)
    return [torch.sigmoid(exit_) * torch.tanh(cell), cell]


def _gru_cell(x: Tensor, state: list[Tensor], weights: list[Tensor]) -> list[Tensor]:
    (hidden,) = state
    reset_x, keep_x, content_x = linear(x, weights[0], weights[2]).chunk(3, -1)
    reset_h, keep_h, content_h = linear(hidden, weights[1], weights[3]).chunk(3, -1)
    keep = torch.sigmoid(keep_x + keep_h)
    content = torch.tanh(content_x + torch.sigmoid(reset_x + reset_h) * content_h)
    return [(1.0 - keep) * content + keep * hidden]


def _pack(begins: Tensor, length: Tensor | None) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Sort the valid steps as a packed sequence has them: by age in their episode, longest first.

    Returns:
        Each step's index in `[T, B]` as one axis; how many steps there are of each age, on the
        CPU; the index of each episode's first step, longest episode first; and which of these
        episodes is the last of each column.
    """
    num_steps, num_columns = begins.shape
    time = torch.arange(num_steps, device=begins.device)[:, None].expand_as(begins)
    begun = begins | (time == 0)
    start = torch.where(begun, time, 0).cummax(0).values  # of the episode that a step is in
    age = time - start
    valid = torch.ones_like(begins) if length is None else time < length
    column = torch.arange(num_columns, device=begins.device).expand_as(begins)
    head = start * num_columns + column
    duration = torch.zeros_like(head).flatten()
    duration.index_add_(0, head[valid], torch.ones_like(head[valid]))
    heads = (begun & valid).flatten().nonzero().squeeze(-1)
    heads = heads[duration[heads].argsort(descending=True, stable=True)]
    rank = torch.zeros_like(duration)
    rank[heads] = torch.arange(len(heads), device=begins.device)
    order = (age[valid] * len(heads) + rank[head[valid]]).argsort()
    flat = valid.flatten().nonzero().squeeze(-1)[order]
    end = torch.full_like(head[0], num_steps - 1) if length is None else length.long() - 1
    last = rank[head.gather(0, end[None]).squeeze(0)]
    return flat, torch.bincount(age[valid]).cpu(), heads, last


def _initialise_(core: nn.LSTM | nn.GRU) -> None:
    """Make each gate's matrix orthogonal and biases zero; an LSTM's forget gates begin open."""
    num_gates = 4 if isinstance(core, nn.LSTM) else 3
    for name, parameter in core.named_parameters():
        if "weight" in name:
            for gate in parameter.data.chunk(num_gates):
                nn.init.orthogonal_(gate)
        else:
            nn.init.zeros_(parameter)
        if isinstance(core, nn.LSTM) and name.startswith("bias_ih"):  # Jozefowicz et al. 2015
            parameter.data[core.hidden_size : 2 * core.hidden_size] = 1.0


def checked_begins(
    x: Tensor, input_size: int, begins: Tensor | None, length: Tensor | None
) -> Tensor:
    """Check a segment `[T, B, D]`, and return where its episodes begin, bool `[T, B]`.

    Raises:
        ValueError: shapes do not agree, or a length is out of range.
    """
    if x.ndim != 3 or x.shape[-1] != input_size or not len(x):
        raise ValueError(f"x: expected [T, B, {input_size}], got shape {tuple(x.shape)}")
    num_steps, num_columns, _ = x.shape
    if begins is None:
        begins = torch.zeros(num_steps, num_columns, dtype=torch.bool, device=x.device)
    check_flags("begins", begins, (num_steps, num_columns))
    if length is not None:
        check_shape("length", length, (num_columns,))
        if is_validated(length) and bool(((length < 1) | (length > num_steps)).any()):
            raise ValueError(
                f"length: expected 1 to T={num_steps} valid steps, got {length.tolist()}"
            )
    return begins
