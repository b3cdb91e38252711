"""A run that was interrupted goes on as if it had not been: the same losses, to the bit."""

import importlib.util
import json
import subprocess
import sys
from pathlib import Path

import pytest

from bray_core.errors import BrayError, ConfigError

FILE = Path(__file__).parent / "resuming.py"
_spec = importlib.util.spec_from_file_location("resuming", FILE)
assert _spec is not None
assert _spec.loader is not None
resuming = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(resuming)

REPLAYS = 7


def filled():
    buffer = resuming.Replay()
    buffer.push(resuming.Source().pop().block)
    return buffer


@pytest.mark.parametrize(
    ("new_buffer", "config"),
    [
        (resuming.Source, {"prefetch": 0}),
        (resuming.Source, {"prefetch": 2}),
        (resuming.Source, {"prefetch": 2, "accumulate": 2, "checkpoint_every": 3}),
        # Pushed to by the loop itself: popped ahead, which of the two is first would be chance.
        (filled, {"prefetch": 0, "checkpoint_buffers": True}),
    ],
)
def test_cut_off_at_any_replay(new_buffer, config, tmp_path):
    whole = resuming.finish(resuming.make(new_buffer(), None, **config), REPLAYS)
    assert len(whole) == 2 * REPLAYS
    for cut in range(REPLAYS):
        directory = tmp_path / str(cut)
        first = resuming.make(new_buffer(), directory, **config)
        first.dies_at = cut
        with pytest.raises(KeyboardInterrupt):
            first.run(REPLAYS)
        again = (
            new_buffer() if cut < 2 or not config.get("checkpoint_buffers") else resuming.Replay()
        )
        if cut < config.get("checkpoint_every", 2):
            again = new_buffer()
        assert resuming.finish(resuming.make(again, directory, **config), REPLAYS) == whole


@pytest.mark.parametrize("is_new", [False, True])
def test_a_paused_run_goes_on_in_this_process_or_another(tmp_path, is_new):
    whole = resuming.finish(resuming.make(resuming.Source(), None), REPLAYS)
    trainer = resuming.make(resuming.Source(), tmp_path)
    resuming.finish(trainer, 3)
    if is_new:
        trainer = resuming.make(resuming.Source(), tmp_path)
    assert resuming.finish(trainer, REPLAYS) == whole


def kill_many_times(directory, kills, replays):
    command = [sys.executable, str(FILE), str(directory), str(kills), str(replays)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=100)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


@pytest.mark.long
def test_killed_at_random_moments_it_reaches_the_same_losses(tmp_path):
    found = kill_many_times(tmp_path, kills=20, replays=50)
    assert found["written"] >= 5, "it went on in spite of the kills"
    assert len(found["whole"]) == 2 * (found["written"] + 50)
    assert found["cut"] == found["whole"]


class TestContent:
    """The buffers' content beside a checkpoint."""

    def folders(self, directory):
        return sorted(path.name for path in directory.iterdir() if path.is_dir())

    def test_it_comes_and_goes_with_its_checkpoint(self, tmp_path):
        trainer = resuming.make(
            filled(), tmp_path, checkpoint_buffers=True, keep_checkpoints=2, checkpoint_every=1
        )
        (tmp_path / "replay-000000001-abcd").mkdir()  # what a crash left
        trainer.run(3)
        trainer.run(0)  # the same number of replays again
        names = [name.rpartition("-")[0] for name in self.folders(tmp_path)]
        assert names == ["replay-000000002", "replay-000000003"]
        assert len(list(tmp_path.glob("*.pt"))) == 2

    def test_where_it_is_broken_the_checkpoint_before_is_taken(self, tmp_path, caplog):
        config = {"checkpoint_buffers": True, "prefetch": 0, "checkpoint_every": 1}
        resuming.make(filled(), tmp_path, **config).run(3)
        (file,) = (tmp_path / self.folders(tmp_path)[-1]).iterdir()
        file.write_bytes(file.read_bytes()[:100])
        again = resuming.make(resuming.Replay(), tmp_path, **config)
        again.run(0)
        assert again.replays == 2
        assert "cannot be read, trying the one before" in caplog.text
        for folder in self.folders(tmp_path):
            for file in (tmp_path / folder).iterdir():
                file.unlink()
        with pytest.raises(BrayError, match=r"none of the 3 in .* can be read"):
            resuming.make(resuming.Replay(), tmp_path, **config).run(0)

    def test_what_was_read_in_part_is_not_trained_on(self, tmp_path):
        class Partial(resuming.Replay):
            def load(self, path):
                super().load(path)
                raise OSError("the last chunk is damaged")

        config = {"checkpoint_buffers": True, "prefetch": 0}
        resuming.make(filled(), tmp_path, **config).run(2)
        trainer = resuming.make(Partial(), tmp_path, **config)
        message = r"the last chunk is damaged: delete the checkpoint of 2 replays to resume from"
        with pytest.raises(BrayError, match=message):
            trainer.run(0)

    def test_a_buffer_that_cannot_be_saved_is_refused_at_once(self):
        message = "checkpoint_buffers: expected buffers with `save`, got a Source"
        with pytest.raises(ConfigError, match=message):
            resuming.make(resuming.Source(), None, checkpoint_buffers=True)

    def test_a_buffer_that_outlived_the_trainer_is_not_filled_twice(self, tmp_path):
        config = {"checkpoint_buffers": True, "prefetch": 0}
        buffer = filled()
        resuming.make(buffer, tmp_path, **config).run(2)
        number = len(buffer.blocks)
        resuming.make(buffer, tmp_path, **config).run(0)
        assert len(buffer.blocks) == number
