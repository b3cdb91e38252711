"""Templates of named parts: everything that is wrong with one, at once, with its line."""

from __future__ import annotations

import pytest

from bray.goal import Goal
from bray.sources.multi_agent_config import MatchesSourceConfig, MultiAgentSourceConfig
from bray.sources.opponents_config import OpponentsConfig
from bray.templates import loading
from bray.templates.part_settings import MixtureConfig
from bray_core.errors import ConfigError, SettingsError

GYM = "sources: {gym: {environment: CartPole-v1, num_envs: 8}}\n"
PPO = "trainers: {a: {algorithm: ppo}}\n"


def problems(text: str) -> list[str]:
    """Return the problems as `line: words`."""
    with pytest.raises(SettingsError) as caught:
        loading.parse(text, "f")
    return [f"{one.place.split(':')[1]}: {one.text}" for one in caught.value.problems]


CASES = {
    "a dangling model": (
        PPO.replace("ppo", "ppo, model: walkr") + GYM + "models: {walker: {}}",
        "1: trainers.a.model: expected the name of a model, one of walker, got 'walkr', "
        "did you mean 'walker'?",
    ),
    "a dangling model of an agent": (
        PPO + GYM + "agents: {a: {model: b}}",
        "3: agents.a.model: expected the name of a model, one of a, got 'b'",
    ),
    "a dangling buffer": (
        PPO.replace("ppo", "ppo, buffer: x") + GYM,
        "1: trainers.a.buffer: expected the name of a buffer, none, since there is none, got 'x'",
    ),
    "a dangling agent": (
        PPO + "sources: {gym: {environment: CartPole-v1, agents: {'*': aa}}}",
        "2: sources.gym.agents.*: expected the name of an agent, one of a, got 'aa'",
    ),
    "players that are no mapping": (
        PPO + "sources: {gym: {environment: CartPole-v1, agents: 3}}",
        "2: sources.gym.agents: expected settings, such as {name: value}, got 3",
    ),
    "a dangling actor": (
        PPO + "sources: {gym: {environment: CartPole-v1, actor: x}}\nactors: {y: {}}",
        "2: sources.gym.actor: expected the name of an actor, one of y, got 'x'",
    ),
    "matches of different learners": (
        "trainers: {a: {algorithm: ppo}, b: {algorithm: ppo}}\ngoal: {agent: a}\nsources:\n"
        "  x: {kind: matches, environment: 'bray:tic-tac-toe', agents: {'*': a}}\n"
        "  y: {kind: matches, environment: 'bray:connect-four', agents: {'*': b}}",
        "5: sources.y: expected the learners of sources.x, a, got b: a trial keeps one league, in "
        "which they all play; train the others in a trial of their own",
    ),
    "an actor without a source": (
        PPO + GYM.replace("num_envs", "actor: x, num_envs") + "actors:\n  x: {}\n  y: {}",
        "5: actors.y: no source has it: name it there, or remove it",
    ),
    "a dangling render": (
        PPO + GYM + "renders: {r: {source: gmy}}",
        "3: renders.r.source: expected the name of a source, one of gym, got 'gmy', "
        "did you mean 'gym'?",
    ),
    "two trainers of one model": (
        "trainers:\n  a: {algorithm: ppo, model: m}\n  b: {algorithm: ppo, model: m}\n"
        "models: {m: {}}\n" + GYM,
        "3: trainers.b: trains the model 'm', which trainers.a trains already: give each a model "
        "of its own",
    ),
    "a model that nobody trains": (
        PPO + GYM + "models:\n  a: {}\n  b: {}",
        "5: models.b: nobody trains it, and it is not loaded: write trainers.b, or models.b.load, "
        "or remove it",
    ),
    "a model that answers untrained": (
        PPO + GYM + "models: {a: {}, b: {}}\nagents: {a: {}, b: {}}",
        "3: models.b: answers, but nobody trains it: write a trainer, or `load`",
    ),
    "a trained model that is loaded": (
        PPO.replace("ppo", "ppo, model: m") + GYM + "models: {m: {load: trials/x}}",
        "3: models.m.load: expected nothing for a model that trainers.a trains: what is loaded "
        "stays as it is",
    ),
    "several models": (
        PPO + GYM + "models: {b: {}, c: {}}",
        "1: trainers.a.model: missing: expected one of b, c",
    ),
    "a model behind another agent's name": (
        "trainers: {a: {algorithm: ppo}, b: {algorithm: ppo}}\n"
        "models: {a: {}, b: {}}\n" + GYM + "agents: {a: {model: b}}\ngoal: {agent: a}",
        "2: models.a: no agent is answered by it: write `model: a` into one, or remove it",
    ),
    "a learner who is only an opponent": (
        "trainers: {a: {algorithm: ppo}, b: {algorithm: ppo}}\n"
        "models: {a: {}, b: {}}\n"
        "sources: {m: {kind: matches, environment: x, agents: {'*': a}}}\n"
        "goal: {agent: a, win_rate: 0.5, against: b}",
        "2: models.b: nobody plays it: name it in the `agents` of a source, or remove it",
    ),
    "an agent without a model": (
        "trainers: {a: {algorithm: ppo}, b: {algorithm: ppo}}\n" + GYM + "agents: {x: {}}",
        "3: agents.x.model: missing: expected one of a, b, or `play: random`",
    ),
    "an agent where nobody has a model": (
        "models: {}\n" + GYM + "agents: {x: {}}",
        "3: agents.x.model: missing: expected a model, of which there is none, or `play: random`",
    ),
    "an agent whose script is none": (
        PPO + GYM + "agents: {a: {}, x: {play: wildly}}",
        "3: agents.x.play: expected random, search, module:function or file.py:function, got "
        "'wildly'",
    ),
    "a script with a typing error": (
        PPO + GYM + "agents: {a: {}, x: {play: randm}}",
        "3: agents.x.play: expected random, search, module:function or file.py:function, got "
        "'randm', did you mean 'random'?",
    ),
    "a script in matches": (
        PPO + "sources:\n  m: {kind: matches, environment: x, agents: {a: a, b: b}}\n"
        "agents: {a: {}, b: {play: scripts/ogre.py:strike}}",
        "3: sources.m.agents.b: expected an agent that learns: a rule draws the opponents of "
        "matches, got 'b': `kind: agents` seats it in each game",
    ),
    "a script with a trainer's name": (
        "trainers: {a: {algorithm: ppo}}\nagents: {b: {model: a}, a: {play: random}}\n"
        "sources: {m: {kind: agents, environment: x, agents: {x: a, y: b}}}",
        "2: agents.a: expected another name than that of trainers.a, which does not train it",
    ),
    "spaces of a script": (
        PPO + GYM + "agents: {a: {}, x: {play: random,\n  spaces: {observatoin: {}}}}",
        "4: agents.x.spaces: spaces: expected observation and action, got ['observatoin']",
    ),
    "spaces of a model": (
        PPO + GYM + "models: {a: {spaces: {observation: {shape: [2]}, action: {discrete: 0}}}}",
        "3: models.a.spaces: action: discrete: expected 1 or more, got 0",
    ),
    "spaces of an agent whose model has them": (
        PPO + GYM + "agents: {a: {spaces: {}}}",
        "3: agents.a.spaces: expected with `play` alone: write it as models.a.spaces",
    ),
    "a role of nobody": (
        "trainers: {a: {algorithm: ppo}, b: {algorithm: ppo}}\ngoal: {agent: a}\nsources:\n"
        "  m: {kind: matches, environment: x, opponents: {rule: league,\n"
        "    roles: {aa: main, b: main_exploiter}}}",
        "5: sources.m.opponents.roles.aa: expected the name of an agent that learns, one of a, b, "
        "got 'aa', did you mean 'a'?",
    ),
    "who plays by itself": (
        "trainers: {a: {algorithm: ppo},\n  b: {algorithm: es}}\ngoal: {agent: a}\n"
        "sources: {m: {kind: agents, environment: x, agents: {x: a, y: b}}}",
        "2: trainers.b.algorithm: 'es' does not learn side by side with others, nor in games of "
        "several agents: each of its episodes is played by other weights, all of one version; "
        "train it alone: `bray train es CartPole-v1`, or a template with `algorithm: es` and "
        "`source: {environment: CartPole-v1}`, or choose",
    ),
    "who plays by a search": (
        "algorithm: alphazero\nsource: {kind: matches, environment: x}",
        "1: trainers.policy.algorithm: 'alphazero' does not learn side by side with others, nor in "
        "games of several agents: it plays by a search through the game's rules, not by asking its "
        "policy; train it alone: `bray train alphazero connect-four`, or a template with",
    ),
    "an agent of two players": (
        PPO + GYM + "agents: {a: {}, x: {play: random, model: a}}",
        "3: agents.x.play: expected either `play` or `model`, got both: 'random' and 'a'",
    ),
    "an agent nobody plays": (
        PPO + GYM + "agents:\n  a: {}\n  x: {play: random}",
        "5: agents.x: nobody plays it: name it in the `agents` of a source, or remove it",
    ),
    "a learner who never plays": (
        "trainers: {a: {algorithm: ppo}, b: {algorithm: ppo}}\nmodels: {a: {}, b: {}}\n"
        "sources: {gym: {environment: CartPole-v1, agents: {'*': a}}}\ngoal: {agent: a}",
        "2: models.b: nobody plays it: name it in the `agents` of a source, or remove it",
    ),
    "a source of several agents": (
        "trainers: {a: {algorithm: ppo}, b: {algorithm: ppo}}\ngoal: {agent: a}\n" + GYM,
        "3: sources.gym.agents: missing: expected who plays whom, such as {'*': a}; known: a, b",
    ),
    "a buffer nobody reads": (
        PPO + GYM + "buffers: {x: {kind: dataset, path: y}}",
        "3: buffers.x: nobody reads it: name it in the `inputs` of a trainer, or remove it",
    ),
    "a buffer nobody fills": (
        "trainers: {a: {algorithm: rl_imitation, inputs: {demonstrations: x}}}\n"
        + GYM
        + "buffers: {x: {kind: queue, batch_size: 8}}",
        "3: buffers.x: nobody fills it: name it as the `buffer` of an agent, or give it a kind "
        "that brings its own (dataset, mixture)",
    ),
    "a data set that is filled": (
        PPO + GYM + "buffers: {x: {kind: dataset, path: y}}\nagents: {a: {buffer: x}}",
        "4: agents.a.buffer: expected a queue or a replay, got 'x', a dataset: nobody pushes "
        "into it",
    ),
    "a cycle": (
        PPO.replace("ppo", "ppo, buffer: x")
        + GYM
        + "buffers:\n  x: {kind: mixture, of: {y: 1}}\n  y: {kind: mixture, of: {x: 1}}",
        "4: buffers.x.of: a cycle of mixtures: x → y → x",
    ),
    "a mixture of nothing known": (
        PPO.replace("ppo", "ppo, buffer: x") + GYM + "buffers: {x: {kind: mixture, of: {z: 1}}}",
        "3: buffers.x.of.z: expected the name of a buffer, one of x, got 'z'",
    ),
    "an unknown input": (
        PPO.replace("ppo", "ppo, inputs: {demonstration: x}") + GYM,
        "1: trainers.a.inputs.demonstration: unknown input of PPO; known: experience",
    ),
    "two buffers of experience": (
        PPO.replace("ppo", "ppo, inputs: {experience: x}, buffer: y")
        + GYM
        + "buffers: {x: {}, y: {}}",
        "1: trainers.a.buffer: expected 'x', as inputs.experience says, got 'y': remove one",
    ),
    "a mixture with two that take": (
        PPO.replace("ppo", "sac, buffer: m")
        + GYM
        + "buffers: {x: {}, y: {}, m: {kind: mixture, of: {x: 1, y: 1}}}",
        "1: agents.a.buffer: missing: expected one of x, y",
    ),
    "both forms of a kind": (
        PPO + GYM + "model: {}\nmodels: {a: {}}",
        "3: model: expected either `model`, the only one, or `models`, by name, got both: write "
        "it below `models`",
    ),
    "an algorithm beside trainers": (
        "algorithm: ppo\n" + PPO + GYM,
        "1: algorithm: expected in each of `trainers`, got it beside them: write it below a "
        "trainer",
    ),
    "a name that is none": (
        "trainers: {Big-One: {algorithm: ppo}}\n" + GYM,
        "1: trainers.Big-One: expected a name of small letters, digits and _, which begins with a "
        "letter",
    ),
    "no names": (
        "trainers: [ppo]\n" + GYM,
        "1: trainers: expected settings by name, such as {policy: {}}, got \"['ppo']\"",
    ),
    "no trainer": (GYM, "1: trainers: missing: expected a trainer, {policy: "),
    "no source": (PPO, "1: sources: missing: expected what is played, {game: {...}}"),
    "no algorithm": (
        "trainers: {a: {epochs: 3}}\n" + GYM,
        "1: trainers.a.algorithm: missing: expected one of a2c, ",
    ),
    "an unknown algorithm": (
        PPO.replace("ppo", "ppoo") + GYM,
        "1: trainers.a.algorithm: expected one of a2c, ",
    ),
    "own code from a browser": (
        PPO.replace("ppo", "'m:C'") + GYM,
        "1: trainers.a.algorithm: 'm:C' names code of yours, which is not run here",
    ),
    "an unknown kind": (
        PPO + "sources: {gym: {kind: matchs, environment: x}}",
        "2: sources.gym.kind: expected one of agents, environments, gamecores, matches, got "
        "'matchs', did you mean 'matches'?",
    ),
    "an unknown kind of buffer": (
        PPO.replace("ppo", "ppo, buffer: x") + GYM + "buffers: {x: {kind: que}}",
        "3: buffers.x.kind: expected one of 'queue', 'replay', 'dataset', 'mixture', got 'que', "
        "did you mean 'queue'?",
    ),
    "a command of environments": (
        PPO + "sources: {gym: {kind: environments, command: ./x}}",
        "2: sources.gym.command: expected with kind gamecores, agents or matches, got kind "
        "environments",
    ),
    "gamecores for ES": (
        PPO.replace("ppo", "es") + "sources: {gym: {kind: gamecores, environment: CartPole-v1}}",
        "2: sources.gym.kind: ES (trainers.a) takes no gamecores",
    ),
    "trainers that play differently": (
        "trainers: {a: {algorithm: ppo}, b: {algorithm: alphazero}}\ngoal: {agent: a}\n"
        "sources: {gym: {environment: x, agents: {x: a, y: b}}}",
        "3: sources.gym: expected trainers that play in the same way, got trainers.a "
        "(FrameSourceConfig), trainers.b (BoardGameSourceConfig): give each a source",
    ),
    "whose goal": (
        "trainers: {a: {algorithm: ppo}, b: {algorithm: ppo}}\n"
        "sources: {gym: {kind: matches, environment: x}}\ngoal: {max_frames: 9}",
        "3: goal.agent: missing: 2 learn: expected one of a, b",
    ),
    "the goal of nobody": (
        PPO + GYM + "goal: {agent: b}",
        "3: goal.agent: expected the name of an agent that learns, one of a, got 'b'",
    ),
    "against nobody": (
        PPO + "sources: {m: {kind: matches, environment: x}}\n"
        "goal: {win_rate: 0.5, against: nobody}",
        "3: goal.against: expected the name of an agent, one of a, got 'nobody'",
    ),
    "against itself": (
        PPO + "sources: {m: {kind: matches, environment: x}}\n"
        "goal: {win_rate: 0.5, agent: a, against: a}",
        "3: goal.against: expected another agent than goal.agent=a",
    ),
    "nothing to win": (
        PPO + GYM + "goal: {win_rate: 0.5}",
        "3: goal.win_rate: expected with a source of kind matches or agents alone: nobody wins or "
        "loses an episode of environments",
    ),
    "shares that do not divide": (
        "trainers: {a: {algorithm: ppo,\n  steps_per_replay: 100}}\n"
        "sources: {gym: {kind: gamecores, environment: CartPole-v1, count: 2, lanes: 8}}",
        "2: trainers.a.steps_per_replay: expected a multiple of the 16 environments "
        "(source.num_processes × source.num_envs), got 100",
    ),
    "agents that record differently": (
        PPO
        + GYM.replace("num_envs", "agents: {x: a, y: b}, num_envs")
        + "agents:\n  a: {}\n  b: {model: a, segment_length: 8}\ngoal: {agent: a}",
        "5: agents.b: expected the settings of agents.a, whose model is the same",
    ),
    "a setting of the whole": (
        "models: {a: {seed: 3}}\n" + PPO + GYM,
        "1: models.a.seed: unknown key, did you mean 'seed'?; allowed:",
    ),
    "a setting of another part": (
        "models: {b: {}}\ntrainers: {b: {algorithm: ppo, memory_size: 8}}\n" + GYM,
        "2: trainers.b.memory_size: unknown key, did you mean 'models.b.memory_size'?; allowed:",
    ),
    "a setting of many other parts": (
        "models: {b: {}, c: {}, d: {}, e: {}}\ntrainers: {b: {algorithm: ppo, memory: gru}}\n"
        + GYM,
        "2: trainers.b.memory: unknown key, did you mean 'models.b.memory' or 'models.c.memory' or "
        "'models.d.memory'?; allowed:",
    ),
    "an unknown key": (
        PPO + GYM + "gaol: {}",
        "3: gaol: unknown key, did you mean 'goal'?; allowed: actors, agents, buffers, callbacks, "
        "enable, goal, keep, models, renders, seed, sinks, sources, trainers",
    ),
    "a negative seed": (PPO + GYM + "seed: -1", "3: seed: expected 0 to 9.0072e+15, got -1"),
}


@pytest.mark.parametrize("name", CASES)
def test_what_is_wrong_is_said_with_its_line(name: str) -> None:
    text, words = CASES[name]
    found = problems(text)
    assert [one for one in found if one.startswith(words)], found


def test_what_is_no_mapping_is_told_once() -> None:
    found = problems("trainers: [{algorithm: ppo}]\nsources: CartPole-v1\n")
    assert len(found) == 2, found


def test_all_problems_are_told_at_once_by_line() -> None:
    text = """\
models: {hunter: {hiden: [3]}, runner: {}, ghost: {}}
trainers:
  hunter: {algorithm: ppo, learning_rate: -1}
  runner: {algorithm: impalla}
buffers: {spare: {kind: queue, batch_size: 9, capacity: 3}}
sources:
  game: {environment: CartPole-v1, agents: {"*": huntr}}
goal: {agent: hunter, win_rate: 2}
"""
    found = problems(text)
    lines = [int(one.partition(":")[0]) for one in found]
    assert lines == sorted(lines)
    for words in (
        "1: models.hunter.hiden: unknown key, did you mean 'hidden'?",
        "1: models.ghost: nobody trains it",
        "3: trainers.hunter.learning_rate: expected more than 0, got -1.0",
        "4: trainers.runner.algorithm: expected one of a2c,",
        "5: buffers.spare.batch_size: 9 exceeds capacity=3",
        "5: buffers.spare: nobody reads it",
        "7: sources.game.agents.*: expected the name of an agent",
        "8: goal.win_rate: expected more than 0 and at most 1, got 2.0",
    ):
        assert [one for one in found if one.startswith(words)], (words, found)


# The short form, and configs alone.


@pytest.mark.parametrize("setting", ["agent: policy", "win_rate: 0.5"])
def test_the_short_form_refuses_the_goals_of_named_parts(setting: str) -> None:
    text = f"algorithm: ppo\nsource: {{environment: CartPole-v1}}\ngoal: {{{setting}}}"
    name = setting.partition(":")[0]
    assert problems(text)[0].startswith(
        f"3: goal.{name}: expected in a template with named agents or matches alone, got "
    )


def test_a_goal_of_games_won_is_refused_where_one_trains_alone() -> None:
    text = "algorithm: alphazero\nsource: {environment: connect-four}\ngoal: {win_rate: 0.6}"
    assert problems(text)[0].endswith(
        "remove it: AlphaZero trains alone, and decides by episode_return"
    )


def test_a_composition_is_no_run_of_one_algorithm() -> None:
    made = loading.parse(PPO + GYM, "f")
    with pytest.raises(ConfigError, match=r"got one of named parts \(a\): this command takes no"):
        made.make()


def test_a_goal_is_a_return_or_a_win_rate() -> None:
    with pytest.raises(ConfigError, match=r"win_rate: expected either episode_return or win_rate"):
        Goal(episode_return=3, win_rate=0.5)
    with pytest.raises(ConfigError, match="against: expected with win_rate alone, got 'x' without"):
        Goal(against="x")
    with pytest.raises(ConfigError, match="win_rate: expected more than 0 and at most 1, got 0"):
        Goal(win_rate=0)
    goal = Goal(win_rate=0.75).completed(reward_threshold=475, max_frames=9)
    assert (goal.episode_return, goal.wanted, goal.evaluate_at) == (None, 0.75, None)
    assert goal.is_reached(0.8)
    assert not goal.is_reached(0.7)
    assert not goal.is_promising(1.0)


def test_opponents_have_roles_in_a_league_alone() -> None:
    with pytest.raises(ConfigError, match=r"roles: expected those of all learners for rule=league"):
        OpponentsConfig(rule="league")
    with pytest.raises(ConfigError, match=r"got rule=pfsp and roles"):
        OpponentsConfig(roles={"a": "main"})
    with pytest.raises(ConfigError, match=r"roles\.a: expected one of main, main_exploiter"):
        OpponentsConfig(rule="league", roles={"a": "mian"})
    with pytest.raises(ConfigError, match="roles: expected one `main` or more"):
        OpponentsConfig(rule="league", roles={"a": "main_exploiter"})


def test_games_of_several_agents_are_an_environment_or_a_simulator() -> None:
    with pytest.raises(ConfigError, match=r"environment: missing: expected a module of PettingZoo"):
        MultiAgentSourceConfig()
    with pytest.raises(ConfigError, match=r"lanes: expected with `command` .*: write `num_envs`"):
        MultiAgentSourceConfig(environment="tag", lanes=2)
    with pytest.raises(ConfigError, match="expected one of environment, command and external"):
        MatchesSourceConfig(environment="tag", external=True)
    with pytest.raises(ConfigError, match=r"wrappers: expected module:function or"):
        MultiAgentSourceConfig(environment="tag", wrappers=("loud",))
    with pytest.raises(ConfigError, match=r"sides: expected 2 or more, got \['red'\]"):
        MatchesSourceConfig(environment="tag", sides={"red": "red_*"})
    located = MultiAgentSourceConfig(environment="game.py:make").located()
    assert located.environment.startswith("/")


def test_a_mixture_has_shares() -> None:
    with pytest.raises(ConfigError, match=r"of\.a: expected a share of 0 or more, got 'x'"):
        MixtureConfig(of={"a": "x"})
    with pytest.raises(ConfigError, match="of: expected at least one share above 0, got"):
        MixtureConfig(of={"a": 0})
