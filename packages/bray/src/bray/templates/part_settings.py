"""What parts of the full form have beside their settings: their kind, and the wires to others."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Annotated, Any, Literal, TypeAlias

from bray_buffer import BufferConfig, ReplayConfig
from bray_core.errors import ConfigError
from bray_core.settings.ranges import PositiveInt, Range, check_fields

BufferKind: TypeAlias = Literal["queue", "replay", "dataset", "mixture"]


@dataclass(frozen=True, kw_only=True, slots=True)
class ModelWires:
    """What a model is beside its network."""

    load: str | None = None
    """Path of a trial, or of an export, whose policy it is; then nobody trains it."""
    spaces: Mapping[str, Any] | None = None
    """What its policy sees and may do: `{observation: {shape: [3]}, action: {discrete: 3}}`. None:
    the source tells."""


@dataclass(frozen=True, kw_only=True, slots=True)
class TrainerWires:
    """What a trainer trains, and on what."""

    algorithm: str
    """The algorithm: a name, `module:Class` or `file.py:Class`."""
    model: str | None = None
    """Name of the model that it trains. None: the model of its own name, else the only one."""
    buffer: str | None = None
    """Name of the buffer that holds its experience. None: the buffer of its own name, else one
    that the algorithm makes."""
    inputs: Mapping[str, Any] = field(default_factory=dict)
    """Names of buffers by input of the algorithm: `experience`, `demonstrations`. Those that are
    absent the algorithm makes for itself."""


@dataclass(frozen=True, kw_only=True, slots=True)
class AgentWires:
    """Who answers for an agent."""

    model: str | None = None
    """Name of the model that answers. None: the model of its own name, else the only one."""
    play: str | None = None
    """`random`, `search`, or `module:function` or `file.py:function` of a script: what plays in
    place of a model."""
    spaces: Mapping[str, Any] | None = None
    """What a script sees and may do in a simulator, `{observation: {shape: [3]}, action: {discrete:
    3}}`, where the source does not say it for all."""
    buffer: str | Mapping[str, float] | None = None
    """Name of the buffer where its experience goes, or replays of a mixture with their shares, such
    as `{near: 0.9, far: 0.1}`: each segment goes to one of them. None: that of the trainer of its
    model."""


@dataclass(frozen=True, kw_only=True, slots=True)
class SourceWires:
    """What kind a source is, and who plays in it."""

    kind: str | None = None
    """`environments`, `gamecores`, `agents`, `matches`, an installed kind, or `module:Class`. None:
    `gamecores` with a `command` or `external`, else `environments`."""
    agents: Mapping[str, Any] = field(default_factory=dict)
    """Names of agents by pattern of the agents' names in the environment, such as `{"hunter_*":
    hunter}`; the first that fits holds. By default the only agent plays all."""
    actor: str | None = None
    """Name of the actor whose workers play. None: the actor of its own name, else the only one."""


@dataclass(frozen=True, kw_only=True, slots=True)
class BufferWires:
    """What kind a buffer is."""

    kind: BufferKind | None = None
    """`queue`, `replay`, `dataset`: recorded experience, or `mixture` of other buffers. None: what
    the algorithm that reads it makes."""


@dataclass(frozen=True, kw_only=True, slots=True)
class RenderFunction:
    """What draws episodes."""

    function: str | None = None
    """`module:name` of what draws a tick, as an image or a figure; None draws what there is."""

    def __post_init__(self) -> None:
        if self.function is not None and not is_dotted_code(self.function):
            raise ConfigError(f"function: expected module:name, got {self.function!r}")


@dataclass(frozen=True, kw_only=True, slots=True)
class RenderPart(RenderFunction):
    """How episodes are shown."""

    first_episodes: Annotated[int, Range(minimum=0, maximum=100)] = 2
    """Episodes of the trained policy that are recorded at the end of the first launch, so that the
    viewer has some to show; 0 records none. Only environments of Gymnasium's own are played."""
    videos: Annotated[int, Range(minimum=0, maximum=100)] = 0
    """Episodes of the policy that are drawn as a video after each evaluation, into the trial's
    `videos/`: `.mp4` where ffmpeg is installed, else `.gif`. Training waits meanwhile. 0 draws
    none."""

    def __post_init__(self) -> None:
        RenderFunction.__post_init__(self)
        check_fields(self)


@dataclass(frozen=True, kw_only=True, slots=True)
class NamedRenderPart(RenderFunction):
    """How the episodes of a source are shown."""

    source: str | None = None
    """Name of the source. None: the only one."""


@dataclass(frozen=True, kw_only=True, slots=True)
class DatasetConfig:
    """Experience that was recorded before; nobody pushes into it."""

    origin: Literal["recordings", "minari", "parquet", "objects"] = field(
        default="recordings", metadata={"key": "from"}
    )
    """Where it comes from: `recordings` of bray, a data set of `minari`, `parquet` files, or Python
    `objects`: the episodes that a function of yours returns."""
    path: str
    """Folder of the recordings, name of the Minari data set, file or folder of tables, or
    `module:function` or `file.py:function`."""
    batch_size: PositiveInt | None = None
    """Steps of a batch, 32 to 4,096. None: as many as its trainer takes from what is played."""

    def __post_init__(self) -> None:
        check_fields(self)
        if self.origin == "objects" and not is_script_name(self.path):
            raise ConfigError(
                f"path: expected module:function or file.py:function, got {self.path!r}"
            )

    @property
    def where(self) -> str:
        """The data set, as `bray.sources.data_sets` names it."""
        scheme = {"minari": "minari:", "objects": "objects:"}.get(self.origin, "")
        return scheme + self.path.removeprefix(scheme)


@dataclass(frozen=True, kw_only=True, slots=True)
class MixtureConfig:
    """Batches that come from one of several buffers, drawn by their shares."""

    of: Mapping[str, Any]
    """Share of each buffer by its name, such as `{expert: 0.25, played: 0.75}`; shares need not add
    up to 1."""
    seed: int = 0
    """Seed of the draws."""

    def __post_init__(self) -> None:
        for name, share in self.of.items():
            is_number = isinstance(share, int | float) and not isinstance(share, bool)
            if not is_number or not 0 <= share < math.inf:
                raise ConfigError(f"of.{name}: expected a share of 0 or more, got {share!r}")
        if not any(self.of.values()):
            raise ConfigError(f"of: expected at least one share above 0, got {dict(self.of)}")


BUFFER_KINDS: Mapping[str, type[Any]] = {
    "queue": BufferConfig,
    "replay": ReplayConfig,
    "dataset": DatasetConfig,
    "mixture": MixtureConfig,
}
"""Class of a buffer's settings by its kind."""


def is_script_name(name: str) -> bool:
    """Return whether a name is `module:function` or `file.py:function`."""
    where, _, function = name.rpartition(":")
    return is_dotted_code(name) or (where.endswith(".py") and function.isidentifier())


def is_dotted_code(name: str) -> bool:
    """Return whether a name is `module:name`."""
    module, colon, attribute = name.partition(":")
    return (
        bool(colon) and attribute.isidentifier() and all(map(str.isidentifier, module.split(".")))
    )
