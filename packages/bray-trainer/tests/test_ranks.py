"""Several ranks: two processes as torchrun starts them, compared with one that has all samples."""

from __future__ import annotations

import json
import math
import runpy
import signal
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
import torch.distributed as dist

from bray_core.errors import ClosedError, ConfigError
from bray_trainer import Trainer
from bray_trainer.distributed import ranks

SCRIPT = Path(__file__).with_name("rank_checks.py")
checks = SimpleNamespace(**runpy.run_path(str(SCRIPT), run_name="rank_checks"))


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory, two_ranks: Any) -> list[dict[str, Any]]:
    """What both ranks found, by check; `directory` of a checkpoint of one rank is there before."""
    directory = tmp_path_factory.mktemp("ranks")
    checks.make([checks.rows(0, 4)], checks.Noisy, directory / "one", seed=3).run(1)
    ended = two_ranks(SCRIPT, directory)
    codes = [code for code, _, _ in ended]
    assert codes == [0, -signal.SIGKILL], "\n".join(errors for _, _, errors in ended)
    return [{**json.loads(out), "directory": str(directory)} for _, out, _ in ended]


def of_one(replays: list[Any], *, lr: float = 0.05, seed: int = 0) -> list[float]:
    """Train in one process on `[N, 4]` rows of x and y, a step each; return the parameters."""
    module = checks.line(seed)
    optimizer = torch.optim.SGD(module.parameters(), lr=lr, momentum=0.9)
    for replay in replays:
        optimizer.zero_grad()
        x, y = replay[:, :3], replay[:, 3]
        (module(x)[:, 0] - y).square().mean().backward()
        optimizer.step()
    return list(checks.flat(module))


def joined(*parts: Any) -> torch.Tensor:
    """Rows of several replays (or slices of their rows) as one `[N, 4]`."""
    return torch.cat([torch.tensor(np.c_[p.tree["x"], p.tree["y"]]) for p in parts])


def test_gradients_are_those_of_all_samples_together(found: list[dict[str, Any]]) -> None:
    module = checks.Partly()
    x = torch.randn((8, 3), generator=torch.Generator().manual_seed(1))
    (torch.cat([module(x[:5], 0), module(x[5:], 1)]).mean()).backward()
    for rank in range(2):
        *both, mask, unweighted, message = found[rank]["average"]
        for total, grads in both:
            assert total == 8
            assert grads[2] is None, "nobody used it: no optimiser must move it"
            for (name, parameter), grad in zip(module.named_parameters(), grads, strict=True):
                if parameter.grad is not None:
                    tolerance = 2e-2 if name == "narrow" else 1e-6  # bfloat16 has 8 bits
                    assert grad == pytest.approx(parameter.grad.tolist(), rel=tolerance), name
        assert mask == [True, False, True], "what is not finite on one rank is so on all"
        assert unweighted == [0, [1, 1, 1]], "nobody had a batch: nothing changes"
        assert "got a sparse one of shape (4, 2), expected dense" in message
    assert found[0]["average"] == found[1]["average"], "to the bit"


def test_ranks_begin_anew_together_once_all_were_told(found: list[dict[str, Any]]) -> None:
    assert found[0]["anew"] == found[1]["anew"], "to the bit"
    wanted = of_one([joined(checks.rows(42, 4), checks.rows(43, 4))], seed=7)
    assert found[0]["anew"] == pytest.approx(wanted, abs=1e-6)


def test_values_are_agreed_gathered_and_normalised(found: list[dict[str, Any]]) -> None:
    first, second = (found[rank]["values"] for rank in range(2))
    assert first["agree"] == second["agree"] == 1
    assert first["any"] == second["any"] == [True, False]
    gathered = [
        {"rank": 0, "list": [1.5, "x", None]},
        {"rank": 1, "list": [1.5, "x", None, 1.5, "x", None]},
    ]
    assert first["gather"] == second["gather"] == gathered
    assert first["first"] == second["first"] == {"rank": 0}
    assert first["sum"] == second["sum"] == [2, 1]
    values = np.arange(10.0) ** 2
    valid = values[values != 4]
    normal = (values - values.mean()) / values.std(ddof=1)
    assert first["normalize"] + second["normalize"] == pytest.approx(list(normal), rel=1e-6)
    masked = np.where(values != 4, (values - valid.mean()) / valid.std(ddof=1), 0)
    assert first["masked"] + second["masked"] == pytest.approx(list(masked), rel=1e-6)
    assert first["nothing"] == pytest.approx([-math.sqrt(0.5), math.sqrt(0.5), 0], rel=1e-6)
    assert second["nothing"] == [0] * 7
    assert first["mean"] == second["mean"] == pytest.approx([values.mean(), valid.mean()])


def test_ranks_begin_with_the_module_of_the_first(found: list[dict[str, Any]]) -> None:
    expected = [*checks.flat(checks.line(0)), 1, 1, 0, 0]
    for rank in range(2):
        weights, mean, turned, message = found[rank]["share"]
        assert weights == pytest.approx(expected)
        assert (mean, turned) == ([0, 0], [[0, 0]] * 3)
        assert "weight: rank 1 has torch.float32 (3,), rank 0 has torch.float32 (2,)" in message


def test_training_equals_that_of_one_with_the_large_batches(found: list[dict[str, Any]]) -> None:
    replays = [
        [checks.rows(10 * i + r, n) for r, n in enumerate(pair)]
        for i, pair in enumerate(((8, 3), (7, 1), (5, 6)))
    ]
    steps = []
    for pair in replays:
        rows = [joined(replay) for replay in pair]
        for start in range(0, max(map(len, rows)), 3):
            steps.append(torch.cat([part[start : start + 3] for part in rows]))
    expected = of_one(steps)
    for rank in range(2):
        error, weights, figures = found[rank]["training"]
        assert error == "none"
        assert weights == pytest.approx(expected, abs=1e-6)
        assert (figures["replays"], figures["steps"]) == (3, 8)
    assert found[0]["training"] == found[1]["training"], "figures too: of all ranks' samples"


def test_segments_count_by_their_valid_steps(found: list[dict[str, Any]]) -> None:
    pairs = ((9, 7), (8, 7))
    replays = [[checks.rows(10 * i + r, n) for r, n in enumerate(p)] for i, p in enumerate(pairs)]
    expected = of_one([joined(*pair) for pair in replays])
    for rank in range(2):
        error, weights, _ = found[rank]["segments"]
        assert error == "none"
        assert weights == pytest.approx(expected, abs=1e-6)
    assert found[0]["segments"] == found[1]["segments"], "figures too"


def test_a_step_is_skipped_by_all_or_none(found: list[dict[str, Any]]) -> None:
    assert found[0]["skip"] == found[1]["skip"]
    error, weights, steps = found[0]["skip"]
    assert (error, steps) == ("none", 2)
    assert np.isfinite(weights).all()
    assert found[0]["fp16"] == found[1]["fp16"]
    scales, weights, steps = found[0]["fp16"]
    assert (scales, steps) == ([16, 16, 16, 16, 8, 8], 5)
    both = joined(checks.rows(0, 4), checks.rows(1, 4))
    assert weights == pytest.approx(of_one([both] * 5), abs=1e-2)
    for rank in range(2):
        message = "BrayError: loss: not finite in replay 1: loss=nan, error=nan"
        assert found[rank]["not_finite"] == message, "rank 0 published nothing either"


def test_several_optimisers_step_together(found: list[dict[str, Any]]) -> None:
    module = checks.line()
    weight = torch.optim.SGD([module.weight], lr=0.1)
    bias = torch.optim.Adam([module.bias], lr=0.1)
    for step, size in enumerate((2, 0, 0)):  # rank 1 has one batch, rank 0 has three
        rows = [
            joined(checks.rows(0, 6))[2 * step : 2 * step + 2],
            joined(checks.rows(1, 2))[:size],
        ]
        x, y = torch.cat(rows).split([3, 1], dim=1)
        module.zero_grad()
        (module(x) - y).square().mean().backward()
        torch.nn.utils.clip_grad_norm_([module.weight], 0.5)
        weight.step()
        if step % 2 == 0:
            module.bias.grad *= 2
            torch.nn.utils.clip_grad_norm_([module.bias], 0.5)
            bias.step()
    for rank, mine in enumerate(("weight", "bias")):
        error, weights, steps, counts, message = found[rank]["several"]
        assert (error, steps, counts) == ("none", 3, [2])
        assert weights == pytest.approx(checks.flat(module), abs=1e-6)
        assert message.startswith(f"SpecError: loss: got those of {mine}, but of others on another")


def test_a_dry_rank_is_waited_for_and_the_first_end_ends_all(found: list[dict[str, Any]]) -> None:
    assert found[0]["dry"] == [True, 2, 1], "its third replay was not lost silently"
    assert found[1]["dry"] == [True, 2, None]
    assert found[1]["dry_for_too_long"].startswith("DeadlineError: trainer: no replay in 0.1 s")
    assert "rank 1 failed: DeadlineError: trainer: no repl" in found[0]["dry_for_too_long"]


def test_pause_and_stop_reach_all_at_the_same_replay(found: list[dict[str, Any]]) -> None:
    for rank in range(2):
        paused, at, stopped, _, replays = found[rank]["pause_and_stop"]
        assert (paused, at, stopped) == (True, 4, True)
        assert replays[0] == replays[1]


def test_checkpoints_hold_what_each_rank_has_of_its_own(found: list[dict[str, Any]]) -> None:
    for rank in range(2):
        *errors, whole, parts, weights, weights_of_parts = found[rank]["resume"]
        assert errors == ["none"] * 3
        assert whole == parts
        assert weights == weights_of_parts
    assert found[0]["resume"][3] != found[1]["resume"][3], "each draws numbers of its own"


def test_the_clock_of_any_rank_has_all_write_a_checkpoint(found: list[dict[str, Any]]) -> None:
    for rank in range(2):
        assert found[rank]["late"] == ["replay-000000001.pt", "replay-000000002.pt"]


def test_the_number_of_ranks_may_change(
    found: list[dict[str, Any]], caplog: pytest.LogCaptureFixture
) -> None:
    for rank in range(2):
        error, replays, seen, _ = found[rank]["resume_of_one"]
        assert (error, replays, len(seen)) == ("none", 2, 2)
    draws = [found[rank]["resume_of_one"][2][1] for rank in range(2)]
    assert draws[0] != draws[1]
    trainer = checks.make(
        [checks.rows(0, 4)], checks.Noisy, Path(found[0]["directory"]) / "two", seed=3
    )
    trainer.run(1)
    assert trainer.replays == 5
    assert trainer.seen[:-1] == tuple(found[0]["resume"][4])
    assert "the checkpoint is of 2 ranks, now there are 1" in caplog.text


def test_who_failed_or_is_missing_is_named(found: list[dict[str, Any]]) -> None:
    fault, again, is_lost, is_connected = found[1]["fault"]
    assert "WorkerLostError: ranks: rank 0 failed: TypeError: my fault" in fault
    assert "the group has ended: start the trainers again" in again
    assert (is_lost, is_connected) == (True, False)
    assert found[0]["fault"][0].startswith("TypeError"), "its own error, as it was"
    assert found[0]["absent"] == "WorkerLostError: ranks: rank 1 does not answer"
    assert found[0]["killed"] == "WorkerLostError: ranks: rank 1 does not answer"


def test_alone_nothing_is_distributed(monkeypatch: pytest.MonkeyPatch) -> None:
    alone = ranks.Ranks()
    values = torch.randn(7, generator=torch.Generator().manual_seed(0))
    expected = (values - values.mean()) / (values.std() + 1e-8)
    assert torch.equal(alone.normalize(values), expected), "to the bit"
    assert alone.normalize(torch.ones(1)).tolist() == [0]
    assert alone.normalize(values, values > 9).tolist() == [0] * 7
    assert (alone.agree(2), alone.any(True), alone.any(False)) == (2, True, False)
    assert (alone.gather("x"), alone.first("x"), alone.average([], 3)) == (["x"], "x", 3)
    trainer: Trainer = checks.make([checks.rows(0, 2)])
    trainer.run(1)
    assert trainer.ranks.size == 1
    assert not dist.is_initialized()
    with pytest.raises(ConfigError, match="rank: expected 0 to 1, got 2"):
        ranks.Ranks(2, 2)
    with pytest.raises(ClosedError, match="rank 0 of 2 is not connected: start it by RemoteTr"):
        ranks.Ranks(0, 2).agree(1)
    monkeypatch.delenv("RANK", raising=False)
    with pytest.raises(ConfigError, match=r"RANK: expected in the environment.*torchrun"):
        ranks.Ranks.from_environment()


@pytest.mark.gpu
def test_one_rank_on_a_gpu() -> None:
    """A group of one over nccl: what one GPU can show."""
    port = checks.free_port()
    group = checks.process_group.ProcessGroup(
        checks.TCPStore("127.0.0.1", port, None, True),
        0,
        1,
        backend="nccl",
        timeout_s=30,
    )
    try:
        parameter = torch.nn.Parameter(torch.zeros(3, device="cuda"))
        parameter.grad = torch.arange(3.0, device="cuda")
        assert checks.GradientBuckets([parameter]).average(group, 4) == 4
        assert parameter.grad.tolist() == [0, 1, 2]
        assert group.all_reduce(torch.ones(1)).item() == 1
    finally:
        group.close()
