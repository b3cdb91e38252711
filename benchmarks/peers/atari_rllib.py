"""RLlib's IMPALA (EnvRunner, Learner, RLModule) on an ALE game. One JSON line.

RLlib's own Atari wrappers at 84x84, its connectors for stacking frames, and the algorithm's own
settings: fragments of 50 steps, batches of 500, each trained once, an asynchronous learner.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import ale_py
import gymnasium
import ray
from atari_run import Run
from ray.rllib.algorithms.impala import IMPALAConfig
from ray.rllib.connectors.env_to_module.frame_stacking import FrameStackingEnvToModule
from ray.rllib.connectors.learner.frame_stacking import FrameStackingLearner
from ray.rllib.core.rl_module.default_model_config import DefaultModelConfig
from ray.rllib.env.wrappers.atari_wrappers import wrap_atari_for_new_api_stack
from ray.tune import register_env

NUM_RUNNERS = 2
NUM_ENVS = 8
NUM_LEARNERS = 1
BATCH = 500


def make(game: str, _: dict[str, Any]) -> gymnasium.Env:
    """Return one game; the innermost wrapper keeps its true score."""
    gymnasium.register_envs(ale_py)
    env = gymnasium.make(f"{game}NoFrameskip-v4")
    env = gymnasium.wrappers.RecordEpisodeStatistics(env)
    return gymnasium.wrappers.TransformReward(
        wrap_atari_for_new_api_stack(env, dim=84, framestack=None),
        lambda reward: float((reward > 0) - (reward < 0)),
    )


def log_score(episode: Any, metrics_logger: Any, **_: Any) -> None:
    """Log the score of a whole game: a lost life that ends an episode has none."""
    statistics = episode.get_infos(-1).get("episode")
    if statistics:
        metrics_logger.log_value("scores", float(statistics["r"]), reduce="item_series")


def config(run: Run) -> IMPALAConfig:
    """Return RLlib's IMPALA for two cores."""
    return (
        IMPALAConfig()
        .environment("game")
        .env_runners(
            num_env_runners=NUM_RUNNERS,
            num_envs_per_env_runner=NUM_ENVS,
            env_to_module_connector=lambda *_, **__: FrameStackingEnvToModule(num_frames=4),
        )
        .learners(
            num_learners=NUM_LEARNERS,
            num_gpus_per_learner=0,
            learner_connector=lambda *_, **__: FrameStackingLearner(num_frames=4),
        )
        .training(train_batch_size_per_learner=BATCH)
        .rl_module(
            model_config=DefaultModelConfig(
                conv_filters=[[32, 8, 4], [64, 4, 2], [64, 3, 1]],
                conv_activation="relu",
                head_fcnet_hiddens=[512],
                head_fcnet_activation="relu",
                vf_share_layers=True,
            )
        )
        .callbacks(on_episode_end=log_score)
        .reporting(min_time_s_per_iteration=2)
        .debugging(seed=run.seed, log_level="ERROR")
    )


run = Run("rllib", ray.__version__, "IMPALA", epochs=1, can_repeat=False)
ray.init(  # more logical than real cores: the parts take turns
    address="local",
    num_cpus=4,
    include_dashboard=False,
    object_store_memory=1 << 30,
    log_to_driver=False,
)
register_env("game", partial(make, run.game_class))
algorithm = config(run).build_algo()
over = False
while not over:
    result = algorithm.train()
    played = result["env_runners"]
    scores = played.get("scores", ())  # a number, NaN, while there are none
    run.episodes([] if isinstance(scores, float) else scores)
    learner = result.get("learners", {}).get("__all_modules__", {})
    trained = learner.get("num_env_steps_trained_lifetime", 0)
    if trained:
        over = run.updated(int(played["num_env_steps_sampled_lifetime"]), int(trained))
run.finish(
    num_runners=NUM_RUNNERS,
    num_envs=NUM_RUNNERS * NUM_ENVS,
    num_steps=50,
    batch=BATCH,
    num_learners=NUM_LEARNERS,
    games=f"wrap_atari_for_new_api_stack, Gymnasium {gymnasium.__version__}",
)
algorithm.stop()
ray.shutdown()
