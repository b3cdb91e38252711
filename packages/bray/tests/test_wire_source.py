"""What a source over the wire does while its processes start."""

from types import SimpleNamespace

from bray.sources.wire import wire_source
from bray.sources.wire.wire_source import TurnWireSource


class Turn:
    """A turn that is played at once."""

    def __init__(self, told):
        self.told = told

    def grant(self, steps):
        self.told.append(f"grant {steps}")

    def wait_played(self, timeout_s):
        self.told.append("wait")
        return True


def test_what_the_end_needs_is_imported_while_the_gamecores_start(monkeypatch):
    told = []
    monkeypatch.setattr(wire_source, "import_ahead", lambda names: told.append("import"))
    source = object.__new__(TurnWireSource)
    source._play, source._has_played = SimpleNamespace(num_lanes=2), False
    for _ in range(2):
        source._play_turn(Turn(told), 8)
    assert told == ["grant 16", "import", "wait", "grant 16", "wait"]
