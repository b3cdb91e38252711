"""What an actor runs, exported: every encoder and network, and each distribution's mode."""

from __future__ import annotations

import io

import pytest
import torch
from torch import Tensor, nn

from bray_algo import NatureCNN, PolicyValueMLP, mlp
from bray_algo.distributions import (
    beta,
    categorical,
    discretised,
    gaussian,
    multi_categorical,
    squashed_gaussian,
)
from bray_algo.networks import entities
from bray_algo.networks.attention import EntityTransformer
from bray_algo.networks.convolutional import ImpalaResNet
from bray_algo.networks.encoders import Embeddings, binary, one_hot, sinusoidal
from bray_algo.networks.heads import DuellingHead, PointerHead
from bray_algo.networks.normalisation import RunningNorm
from bray_algo.networks.recurrent import Recurrent
from bray_algo.networks.transformer_xl import GatedTransformerXL, Memory


class Modes(nn.Module):
    """One layer, and the mode of each family."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = mlp([4, 8, 24])

    def forward(self, x: Tensor, legal: Tensor) -> dict[str, Tensor]:
        y = self.layer(x)
        one, several = y[:, :6], multi_categorical.split(y[:, :6], [2, 4])
        masks = list(torch.split(legal, [2, 4], -1))
        mean, log_std, grid = y[:, 6:8], y[:, 8:10], y[:, 14:24].unflatten(-1, (2, 5))
        return {
            "categorical_mode": categorical.mode(categorical.mask(one, legal)),
            "multi_categorical_mode": multi_categorical.mode(
                multi_categorical.mask(several, masks)
            ),
            "gaussian_mode": gaussian.mode(mean, log_std),
            "squashed_gaussian_mode": squashed_gaussian.mode(mean, log_std),
            "beta_mode": beta.mode(*beta.parameters(y[:, 10:14])),
            "discretised_mode": discretised.mode(discretised.ordinal(grid), -2.0, 3.0),
            "masked_far_down": categorical.log_probs(categorical.mask(one * 1e12 - 5e12, legal)),
            "log_prob": categorical.log_prob(one, legal.long().argmax(-1)),
        }


class Networks(nn.Module):
    """Encoders, sets, pixels, and the recurrent networks for one step."""

    def __init__(self) -> None:
        super().__init__()
        self.norm, self.embed = RunningNorm([3]), Embeddings([4, 6], 2)
        self.norm.update(torch.randn(50, 3) * 5 + 2)
        self.clock = RunningNorm([2])
        self.clock.update(torch.randint(0, 4, (50, 2)) + 1_700_000_000)
        self.encode = EntityTransformer(3, size=8, num_layers=1, num_heads=2)
        self.pool = entities.AttentionPool(8, num_heads=2)
        self.pixels = ImpalaResNet(8, 6, 5, depths=(4,), num_features=3)
        self.lstm, self.gru = Recurrent("lstm", 8, 5), Recurrent("gru", 8, 5)
        self.memory = GatedTransformerXL(8, size=8, num_layers=1, num_heads=2, memory_length=3)
        self.point, self.duel = PointerHead(8, 8), DuellingHead(3, 2)

    def forward(
        self,
        units: Tensor,
        index: Tensor,
        present: Tensor,
        states: Tensor,
        steps: Tensor,
        valid: Tensor,
        begins: Tensor,
    ) -> dict[str, Tensor]:
        encoded = self.encode(self.norm(units), present)
        clock = self.clock(index + 1_700_000_000)
        features = self.pool(encoded, present)
        step = features.unsqueeze(0)
        lstm, lstm_state = self.lstm(step, states[:, :10], begins[None])
        gru, gru_state = self.gru(step, states[:, 10:], begins[None])
        remembered, memory = self.memory(step, Memory(steps, valid), begins[None])
        pixels = self.pixels(features[..., None, None].expand(-1, -1, 6, 5))
        pooled = [f(encoded, present) for f in (entities.masked_mean, entities.masked_max)]
        return {
            "numbers": torch.cat([one_hot(index, 6), binary(index, 3), sinusoidal(index, 4)], -1),
            "embedded": self.embed(index),
            "pooled": torch.cat(pooled, -1),
            "q": self.duel(pixels),
            "clock": clock,
            "target": self.point(features, encoded, present),
            "lstm": torch.cat([lstm[0], lstm_state], -1),
            "gru": torch.cat([gru[0], gru_state], -1),
            "remembered": remembered[0],
            "next_steps": memory.steps,
            "next_valid": memory.valid,
        }


class Policies(nn.Module):
    """The networks that give logits and values."""

    def __init__(self) -> None:
        super().__init__()
        self.mlp, self.cnn = PolicyValueMLP(4, 2), NatureCNN(6)

    def forward(self, x: Tensor, frames: Tensor) -> dict[str, Tensor]:
        outputs = {"mlp": self.mlp(x), "cnn": self.cnn(frames)}
        return {f"{a}_{b}": tensor for a, each in outputs.items() for b, tensor in each.items()}


class Everything(nn.Module):
    """All of them: each export costs seconds before it begins."""

    def __init__(self) -> None:
        super().__init__()
        self.modes, self.networks, self.policies = Modes(), Networks(), Policies()

    def forward(
        self,
        x: Tensor,
        legal: Tensor,
        frames: Tensor,
        units: Tensor,
        index: Tensor,
        present: Tensor,
        states: Tensor,
        steps: Tensor,
        valid: Tensor,
        begins: Tensor,
    ) -> dict[str, Tensor]:
        outputs = self.networks(units, index, present, states, steps, valid, begins)
        return {**self.modes(x, legal), **self.policies(x, frames), **outputs}


def inputs(num: int) -> tuple[Tensor, ...]:
    legal = torch.rand(num, 6) < 0.5
    legal[:, [0, 3]] = True
    present = torch.rand(num, 7) < 0.6
    present[:, 0] = True
    index = torch.randint(0, 4, (num, 7, 2))
    frames = torch.randint(0, 256, (num, 4, 84, 84), dtype=torch.uint8)
    states, steps = torch.randn(num, 15), torch.randn(num, 1, 3, 8)
    valid, begins = torch.rand(num, 3) < 0.7, torch.rand(num) < 0.5
    x, units = torch.randn(num, 4) * 3, torch.randn(num, 7, 3)
    return x, legal, frames, units, index, present, states, steps, valid, begins


@pytest.mark.long
@pytest.mark.filterwarnings("ignore:# The axis name. batch")  # said of every input but one
def test_everything_exports_for_any_batch() -> None:
    pytest.importorskip("onnxscript")
    runtime = pytest.importorskip("onnxruntime")
    torch.manual_seed(0)
    network, example, others = Everything(), inputs(2), inputs(3)
    with torch.no_grad():
        want = network.eval()(*others)
    batch = torch.export.Dim("batch", min=1)
    program = torch.onnx.export(
        network,
        example,
        dynamo=True,
        dynamic_shapes=tuple({0: batch} for _ in example),
        output_names=list(want),
        optimize=False,  # as bray_model exports
        verbose=False,
    )
    assert program is not None
    file = io.BytesIO()
    program.save(file)
    session = runtime.InferenceSession(file.getvalue(), providers=["CPUExecutionProvider"])
    names = [entry.name for entry in session.get_inputs()]
    feeds = dict(zip(names, (tensor.numpy() for tensor in others), strict=True))
    for (name, tensor), got in zip(want.items(), session.run(None, feeds), strict=True):
        assert torch.allclose(torch.from_numpy(got), tensor, atol=1e-4), name
