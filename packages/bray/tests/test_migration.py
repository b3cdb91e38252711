"""`bray migrate`: models of Stable-Baselines3 act in bray as they did there."""

from __future__ import annotations

import json
import pickle
import zipfile
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch
import yaml

from bray.migration.migrate import migrate_sb3
from bray.trained.agent import TrainedAgent
from bray_core.cli import main
from bray_core.errors import AlreadyExistsError, ConfigError, NotFoundError
from bray_model import Model
from bray_trainer.checkpoints import checkpoint

sb3 = pytest.importorskip("stable_baselines3")

CASES = {
    "ppo": ("PPO", "CartPole-v1", {}),
    "a2c of other layers": (
        "A2C",
        "Pendulum-v1",
        {"net_arch": {"pi": [16], "vf": [8, 8]}, "activation_fn": torch.nn.ELU},
    ),
    "ppo of categories": ("PPO", "Taxi-v4", {"net_arch": [32]}),
    "sac": ("SAC", "Pendulum-v1", {"net_arch": [32, 16]}),
    "td3": ("TD3", "Pendulum-v1", {}),
    "ddpg": ("DDPG", "Pendulum-v1", {"net_arch": [24]}),
    "dqn": ("DQN", "CartPole-v1", {}),
}


def saved(
    folder: Path, name: str, env: str, policy: dict[str, Any], **more: Any
) -> tuple[Any, Path]:
    model = getattr(sb3, name)("MlpPolicy", env, policy_kwargs=policy, seed=3, **more)
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():  # a network that knows nothing acts the same everywhere
        for weight in model.policy.parameters():
            weight.add_(0.3 * torch.randn(weight.shape, generator=generator))
    path = folder / "model.zip"
    model.save(path)
    return model, path


@pytest.mark.parametrize("case", CASES)
def test_a_migrated_policy_acts_as_the_model_did(case: str, tmp_path: Path) -> None:
    name, env, policy = CASES[case]
    model, path = saved(tmp_path, name, env, policy)
    made = migrate_sb3(path, env, project=tmp_path, trial="taken")
    space = gym.make(env).observation_space
    space.seed(1)
    seen = [space.sample() for _ in range(40)]
    if isinstance(space, gym.spaces.Box):
        seen = [np.clip(observation, -1, 1) for observation in seen]
    expected = [model.predict(observation, deterministic=True)[0] for observation in seen]
    assert np.std(expected, axis=0).max() > 0  # always one action says nothing
    with TrainedAgent(made.trial) as agent:
        for observation, action in zip(seen, expected, strict=True):
            np.testing.assert_allclose(agent.act(observation), action, rtol=1e-4, atol=1e-4)
            agent.reset()


def test_values_and_critics_come_along_and_training_goes_on(tmp_path: Path) -> None:
    model, path = saved(tmp_path, "SAC", "Pendulum-v1", {"net_arch": [32, 32]})
    made = migrate_sb3(path, "Pendulum-v1", project=tmp_path, trial="taken")
    assert made.left_out == ()
    state = checkpoint.load_newest(made.trial / "checkpoints")
    assert state is not None
    module = state["module"]
    theirs = model.policy.state_dict()
    assert torch.equal(module["critics.members.1.4.bias"], theirs["critic.qf1.4.bias"])
    assert torch.allclose(module["temperature.log_alpha"], model.log_ent_coef)
    config = (made.trial / "config.yaml").read_text()
    assert "begin_from: ''" in config  # the folder that it began from is gone


def test_critics_of_other_layers_begin_anew_and_it_says_so(tmp_path: Path) -> None:
    _, path = saved(tmp_path, "DDPG", "Pendulum-v1", {"net_arch": [24]})
    made = migrate_sb3(path, "Pendulum-v1", project=tmp_path, trial="taken")
    assert "critics (1 with" in made.left_out[0]


def test_the_command_says_what_to_do_next(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    saved(tmp_path, "PPO", "CartPole-v1", {})
    monkeypatch.chdir(tmp_path)
    assert main(["migrate", "model.zip", "CartPole-v1", "--episodes", "1"]) == 0
    said = capsys.readouterr().out
    assert "plays: mean return" in said
    assert f"bray train {Path('trials/ppo-CartPole-v1-1')}" in said
    assert main(["migrate", "model.zip", "CartPole-v1"]) == 2  # it exists
    said = capsys.readouterr().err
    assert "expected a new folder for the trial, it exists: name another with --trial" in said


class Parts(gym.Env[Any, Any]):
    """Observes parts; given by name, gymnasium leaves them in the order in which they stand."""

    def __init__(self, is_reals: bool = False, **parts: int) -> None:
        boxes: dict[str, Any] = {
            name: gym.spaces.Box(-1, 1, (size,)) for name, size in parts.items()
        }
        whole = {"n": gym.spaces.Box(-2, 9, (2,), np.int64), "k": gym.spaces.Discrete(3)}
        self.observation_space = gym.spaces.Dict(**boxes, **whole)
        self.action_space = gym.spaces.Box(-1, 1, (2,)) if is_reals else gym.spaces.Discrete(4)


@pytest.mark.parametrize("algorithm", ["PPO", "SAC", "DQN"])
@pytest.mark.parametrize("parts", ["a: 2, z: 3", "z: 3, a: 2"])
def test_parts_of_an_observation_are_read_in_their_order(
    algorithm: str, parts: str, tmp_path: Path
) -> None:
    given = f"is_reals: {str(algorithm == 'SAC').lower()}, {parts}"
    env = Parts(**yaml.safe_load(f"{{{given}}}"))
    model = getattr(sb3, algorithm)("MultiInputPolicy", env, seed=3)
    with torch.no_grad():
        for weight in model.policy.parameters():
            weight.add_(0.2 * torch.randn(weight.shape, generator=torch.Generator().manual_seed(1)))
    model.save(tmp_path / "model.zip")
    settings = [f"source.kwargs={{{given}}}"]
    made = migrate_sb3(
        tmp_path / "model.zip", f"{__file__}:Parts", project=tmp_path, trial="t", settings=settings
    )
    env.observation_space.seed(1)
    seen = [env.observation_space.sample() for _ in range(40)]
    with TrainedAgent(made.trial) as agent:
        acts = [agent.act(one) for one in seen]
    expected = [model.predict(one, deterministic=True)[0] for one in seen]
    np.testing.assert_allclose(acts, expected, rtol=1e-4, atol=1e-4)
    assert np.std(acts, axis=0).max() > 0.1
    if algorithm == "SAC":
        state = checkpoint.load_newest(made.trial / "checkpoints")
        assert state is not None
        _critic_agrees(model, state["module"], env, seen)


def _critic_agrees(model: Any, weights: Any, env: Parts, seen: Any) -> None:
    """Compare the first layer of a critic, whose inputs are the observation and an action."""
    first = model.critic.qf0[0]
    action = torch.rand(1, 2)
    for observation in seen[:5]:
        tensors, _ = model.policy.obs_to_tensor(observation)
        features = model.critic.extract_features(tensors, model.critic.features_extractor)
        theirs = first(torch.cat([features, action], 1))
        parts = [np.eye(3)[observation["k"]], *(observation[k] for k in "an"), observation["z"]]
        order = [parts[1], parts[0], (parts[2] + 2) / 11, parts[3]]  # a, k, n, z
        ours = torch.tensor(np.concatenate([*order, action[0]]), dtype=torch.float32)
        name = "critics.members.0.0"
        found = weights[f"{name}.weight"] @ ours + weights[f"{name}.bias"]
        torch.testing.assert_close(found, theirs[0], rtol=1e-4, atol=1e-4)


def test_a_model_behind_vec_normalize_is_told(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    plain = sb3.common.vec_env.DummyVecEnv([lambda: gym.make("CartPole-v1")])
    for env, is_told in ((sb3.common.vec_env.VecNormalize(plain), True), (plain, False)):
        sb3.PPO("MlpPolicy", env, n_steps=8, batch_size=8).learn(8).save("model.zip")
        assert main(["migrate", "model.zip", "CartPole-v1", "--trial", f"told-{is_told}"]) == 0
        assert ("trained behind VecNormalize" in capsys.readouterr().out) == is_told


@pytest.mark.isa
def test_a_frame_policy_acts_as_the_model_did(tmp_path: Path) -> None:
    class Frames(gym.Env[Any, Any]):
        observation_space = gym.spaces.Box(0, 255, (4, 84, 84), np.uint8)
        action_space = gym.spaces.Discrete(3)

        def reset(self, **_: Any) -> Any:
            return self.observation_space.sample(), {}

        def step(self, action: Any) -> Any:
            return self.observation_space.sample(), 0.0, False, False, {}

    gym.register("Frames-v0", Frames)
    model = sb3.PPO("CnnPolicy", Frames(), seed=1)
    path = tmp_path / "model.zip"
    model.save(path)
    made = migrate_sb3(path, "Frames-v0", project=tmp_path, trial="taken")
    rng = np.random.default_rng(1)
    frames = rng.integers(0, 256, (4, 84, 84), dtype=np.uint8)
    with Model(made.export.path, name="probe") as exported:
        ours: Any = exported(frames[None], batch=True)
    theirs = model.policy.get_distribution(torch.as_tensor(frames[None])).distribution.logits
    logits = torch.log_softmax(torch.as_tensor(np.array(ours["logits"])), -1)
    torch.testing.assert_close(logits, theirs.detach(), rtol=1e-3, atol=1e-4)


def _broken(path: Path, **members: bytes) -> Path:
    with zipfile.ZipFile(path, "w") as archive:
        for name, content in members.items():
            archive.writestr(name.replace("__", "."), content)
    return path


class Bomb:
    def __reduce__(self) -> Any:
        return exec, ("raise SystemExit('ran')",)


def test_what_cannot_be_taken_over_is_refused_in_words(tmp_path: Path) -> None:
    with pytest.raises(NotFoundError, match=r"expected a file that model\.save"):
        migrate_sb3(tmp_path / "absent.zip", "CartPole-v1")
    text = tmp_path / "text.zip"
    text.write_text("no zip")
    with pytest.raises(ConfigError, match=r"expected a zip that model\.save"):
        migrate_sb3(text, "CartPole-v1")
    other = _broken(tmp_path / "other.zip", something=b"x")
    with pytest.raises(ConfigError, match=rf"^{other}: expected a zip of Stable.* with 'data', "):
        migrate_sb3(other, "CartPole-v1")
    data = json.dumps({"use_sde": False}).encode()
    armed = _broken(tmp_path / "armed.zip", data=data, policy__pth=pickle.dumps(Bomb(), 2))
    with pytest.raises(ConfigError):  # neither run nor unpickled
        migrate_sb3(armed, "CartPole-v1")
    _, path = saved(tmp_path, "PPO", "CartPole-v1", {})
    with pytest.raises(ConfigError, match=r"name the environment that the model was trained in"):
        migrate_sb3(path, "Acrobot-v1", project=tmp_path, trial="x")
    (tmp_path / "there").mkdir()
    with pytest.raises(AlreadyExistsError):
        migrate_sb3(path, "CartPole-v1", project=tmp_path, trial="there")


def test_layers_that_bray_has_none_of_are_refused(tmp_path: Path) -> None:
    _, path = saved(
        tmp_path, "SAC", "Pendulum-v1", {"activation_fn": torch.nn.Tanh, "net_arch": [8]}
    )
    with pytest.raises(ConfigError, match="expected hidden layers with ReLU of sac"):
        migrate_sb3(path, "Pendulum-v1", project=tmp_path, trial="a")
    _, path = saved(tmp_path, "PPO", "Pendulum-v1", {}, use_sde=True)
    with pytest.raises(ConfigError, match="use_sde=False"):
        migrate_sb3(path, "Pendulum-v1", project=tmp_path, trial="b")
