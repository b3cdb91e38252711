import json
import logging
import re
import subprocess
import sys
import textwrap
from pathlib import Path

import numpy as np
import onnxruntime
import pytest
import torch

from bray_core import nested
from bray_core.errors import AlreadyExistsError, ConfigError, ExportError
from bray_model import Manifest, Model
from bray_model.export.export_folder import check_target, copy_export, find_export, read_report
from bray_model.export.export_report import ExportReport, OutputError, output_error
from bray_model.export.validate import validate


def test_the_report_has_every_output_within_tolerance(exported):
    folder, report, _ = exported
    assert [output.name for output in report.outputs] == [
        "outputs/best[0]",
        "outputs/heads[0]",
        "outputs/heads[1]",
        "outputs/logits",
    ]
    assert report.batch_sizes == (1, 2, 7, 64)
    assert 0 <= report.max_rel_error <= report.rtol == 1e-3
    assert 0 < report.max_abs_error < 1e-4
    assert report.table().startswith("output            max abs error  max rel error\n")
    errors, latencies = report.table().split("\n\n")
    assert len(errors.splitlines()) == 5
    assert len(latencies.splitlines()) == 5
    assert read_report(folder) == report
    assert "path" not in json.loads((folder / "report.json").read_text())


@pytest.mark.parametrize("rows", [1, 2, 3, 17, 64, 200])
def test_torch_and_onnx_agree_on_nested_outputs(exported, observations, rows):
    folder, _, model = exported
    inputs = observations(rows, seed=rows)
    with Model(folder) as opened:
        assert opened.signature == model.signature
        got, want = opened(*inputs, batch=True), model(*inputs, batch=True)
    assert nested.spec(got) == nested.spec(want)
    nested.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-3, atol=1e-4), got, want)


def test_plain_onnxruntime_runs_an_export(exported, observations):
    folder, _, model = exported
    (inputs, (extra,)) = observations(5)
    session = onnxruntime.InferenceSession(folder / "model.onnx")
    logits = session.run(
        ["outputs/logits"],
        {
            "inputs[0]/units": inputs["units"],
            "inputs[0]/alive": inputs["alive"],
            "inputs[1][0]": extra,
        },
    )[0]
    np.testing.assert_allclose(
        logits, model(inputs, (extra,), batch=True)["logits"], rtol=1e-3, atol=1e-4
    )


@pytest.mark.isa
def test_a_row_keeps_its_result_in_its_place(exported, observations):
    """To the last bit, whatever the rows beside it hold."""
    with Model(exported[0]) as model:
        for rows in (1, 2, 3, 7, 8, 33):
            inputs = observations(rows)
            expected = model(*inputs, batch=True)["logits"]
            np.testing.assert_array_equal(model(*inputs, batch=True)["logits"], expected)
            kept = rows // 2
            others = nested.map(
                lambda leaf, kept=kept: np.concatenate(
                    [leaf[: kept + 1], np.zeros_like(leaf[kept + 1 :])]
                ),
                inputs,
            )
            got = model(*others, batch=True)["logits"]
            np.testing.assert_array_equal(got[: kept + 1], expected[: kept + 1])


def test_export_is_quiet_and_replaces_an_older_one(tmp_path, capfd, caplog):
    target = tmp_path / "deep" / "export"
    with Model(torch.nn.Linear(4, 2), np.zeros((1, 4), np.float32)) as model:
        model.export(target)
        weights = {name: np.ones_like(array) for name, array in model.weights()[1].items()}
        model.publish(weights)
        report = model.export(target, actor={"name": "policy", "config": {"x": 1}})
    assert report.version == 1
    with Model(target) as opened:
        assert opened.version == 1
        assert opened(np.ones(4, np.float32)).tolist() == [5.0, 5.0]
    assert [entry.name for entry in target.parent.iterdir()] == ["export"]
    (tmp_path / "other").touch()
    modes = {path.stat().st_mode for path in target.iterdir()}
    assert modes == {(tmp_path / "other").stat().st_mode}, "an image's user reads what root copied"
    assert capfd.readouterr() == ("", "")
    assert [r for r in caplog.records if r.levelno >= logging.WARNING and r.name != "asyncio"] == []


def test_an_export_has_the_name_that_it_is_given(tmp_path):
    with (
        Model(torch.nn.Linear(4, 2), np.zeros((1, 4), np.float32), name="hunter") as model,
        model.clone() as clone,
    ):
        clone.export(tmp_path / "own")
        clone.export(tmp_path / "told", name="hunter")
    for folder, name in (("own", "hunter-v0"), ("told", "hunter")):
        assert json.loads((tmp_path / folder / "manifest.json").read_text())["name"] == name


class Noisy(torch.nn.Module):
    def forward(self, x):
        return {"sure": x, "drawn": x + torch.rand_like(x)}


class Sampling(torch.nn.Module):
    """Draws an action from its logits inside the graph."""

    def __init__(self) -> None:
        super().__init__()
        self.head = torch.nn.Linear(4, 3)

    def forward(self, x):
        logits = self.head(x)
        noise = -torch.log(-torch.log(torch.rand_like(logits).clamp(1e-6, 1 - 1e-6)))
        action = (logits + noise).argmax(-1)
        log_prob = logits.log_softmax(-1).gather(-1, action[:, None])[:, 0]
        return {"logits": logits, "action": action, "log_prob": log_prob}


RANDOM = ("outputs/action", "outputs/log_prob")


def test_an_output_drawn_inside_the_graph_may_be_left_out_of_the_comparison(tmp_path):
    torch.manual_seed(0)
    rows = np.tile(np.float32([1, 0, -1, 2]), (20_000, 1))
    with Model(Sampling(), np.zeros((1, 4), np.float32)) as model:
        report = model.export(tmp_path / "export", random_outputs=RANDOM)
        weights = {name: array * 3 for name, array in model.weights()[1].items()}
    assert [output.name for output in report.outputs] == ["outputs/logits"]
    assert report.table().count("drawn at random") == 2
    assert read_report(tmp_path / "export").random_outputs == RANDOM
    with Model(tmp_path / "export") as opened:
        for _ in range(2):  # as exported, and with other weights
            first, second = opened(rows, batch=True), opened(rows, batch=True)
            assert (first["action"] != second["action"]).any(), "drawn anew each time"
            logits = first["logits"][0].astype(np.float64)
            wanted = np.exp(logits) / np.exp(logits).sum()
            got = np.bincount(first["action"], minlength=3) / len(rows)
            np.testing.assert_allclose(got, wanted, atol=0.02)  # six standard deviations
            np.testing.assert_allclose(
                first["log_prob"], np.log(wanted)[first["action"]], rtol=1e-3, atol=1e-4
            )
            opened.publish(weights)
    assert list(validate(tmp_path / "export", Manifest.read(tmp_path / "export")))


def test_noise_as_an_input_is_compared_in_full(tmp_path):
    class Gumbel(torch.nn.Module):
        def forward(self, logits, noise):
            return (logits + noise).argmax(-1)

    example = (np.zeros((1, 3), np.float32), np.random.gumbel(size=(1, 3)).astype(np.float32))
    with Model(Gumbel(), example) as model:
        assert model.export(tmp_path / "export").max_abs_error == 0


@pytest.mark.parametrize(
    ("names", "message"),
    [
        (("outputs/acton",), r"random_outputs: expected some of \['outputs/action', .*'outputs/ac"),
        ("outputs/action", "random_outputs: expected names in a tuple, got 'outputs/action'"),
    ],
)
def test_a_random_output_that_is_none_is_named(tmp_path, names, message):
    with (
        Model(Sampling(), np.zeros((1, 4), np.float32)) as model,
        pytest.raises(ConfigError, match=message),
    ):
        model.export(tmp_path / "export", random_outputs=names)
    assert list(tmp_path.iterdir()) == []


class Branching(torch.nn.Module):
    def forward(self, x):
        return x * 2 if bool(x.sum() > 0) else x


@pytest.mark.parametrize(
    ("module", "message"),
    [
        (Noisy(), r"^outputs/drawn: .* allowed 0.001.* random_outputs=\('outputs/drawn',\)"),
        (Branching(), r"^torch cannot export the module: \w+"),
    ],
)
def test_a_failed_export_leaves_nothing(tmp_path, module, message):
    with (
        Model(module, np.zeros((1, 4), np.float32)) as model,
        pytest.raises(ExportError, match=message),
    ):
        model.export(tmp_path / "export")
    assert list(tmp_path.iterdir()) == []


def test_a_folder_with_something_else_is_not_replaced(tmp_path):
    (tmp_path / "thesis.tex").write_text("...")
    with (
        Model(torch.nn.Linear(4, 2), np.zeros((1, 4), np.float32)) as model,
        pytest.raises(AlreadyExistsError, match=r"holds something else than an export: choose"),
    ):
        model.export(tmp_path)
    with pytest.raises(AlreadyExistsError):
        check_target(tmp_path / "thesis.tex")


@pytest.mark.parametrize(
    "actor", [{"name": "x"}, {"name": 3, "config": {}}, {"name": "x", "config": {"a": {1, 2}}}, "x"]
)
def test_a_malformed_actor_is_refused(tmp_path, actor):
    with (
        Model(torch.nn.Linear(4, 2), np.zeros((1, 4), np.float32)) as model,
        pytest.raises(ConfigError, match=r"actor: expected .* of JSON values, got"),
    ):
        model.export(tmp_path / "export", actor=actor)


def error(got, want, rtol=1e-3, atol=1e-4):
    return output_error("y", np.array(got), np.array(want), rtol, atol)


def test_the_relative_error_is_absolute_near_zero():
    large = error([1001.0], [1000.0])
    assert (large.max_abs_error, large.max_rel_error) == (1.0, pytest.approx(1e-3))
    small = error([1e-4], [0.0])
    assert (small.max_abs_error, small.max_rel_error) == (1e-4, pytest.approx(1e-3))


def test_equal_infinities_are_no_error_and_unequal_ones_infinite():
    assert error([np.inf, -np.inf, np.nan], [np.inf, -np.inf, np.nan]).max_rel_error == 0
    assert error([np.inf], [1.0]).max_rel_error == np.inf
    assert error([1.0], [np.nan]).max_rel_error == np.inf
    assert not error([1.0], [-np.inf]).max_rel_error <= 1e-3


def test_integers_must_be_equal():
    assert error([10_001], [10_000]).max_rel_error == np.inf
    assert error([True], [True]).max_rel_error == 0


def test_find_export_takes_an_export_or_a_trials_newest(exported, tmp_path):
    import os

    folder = exported[0]
    assert find_export(folder) == folder
    for age, name in enumerate(["policy/onnx/9", "policy/onnx/10", "value/onnx/3"]):
        copy_export(folder, tmp_path / "models" / name)
        os.utime(tmp_path / "models" / name / "manifest.json", (1000 - age, 1000 - age))
    assert find_export(tmp_path) == tmp_path / "models/policy/onnx/9"


def test_copy_refuses_a_broken_export(export_copy, tmp_path):
    (export_copy / "model.onnx").write_bytes(b"")
    with pytest.raises(ExportError, match=r"truncated"):
        copy_export(export_copy, tmp_path / "copy")
    assert not (tmp_path / "copy").exists()


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"outputs": [{"name": "x"}]}'])
def test_a_malformed_report_is_told(tmp_path, text):
    with pytest.raises(ExportError, match=r"its report is malformed"):
        ExportReport.from_json(tmp_path, text.encode())


def test_the_report_times_torch_and_the_graph(exported):
    report = exported[1]
    assert [(found.backend, found.batch_size) for found in report.latency] == [
        ("torch", 1),
        ("torch", 64),
        ("onnxruntime", 1),
        ("onnxruntime", 64),
    ]
    assert all(found.median_us > 0 for found in report.latency)
    assert re.search(r"\nonnxruntime +1 +64 +[\d.,]+ +[\d,]+$", report.table())


def test_a_report_of_an_earlier_version_is_read(exported, tmp_path):
    content = json.loads((exported[0] / "report.json").read_text())
    for newer in ("latency", "quantized", "random_outputs"):
        del content[newer]
    report = ExportReport.from_json(tmp_path, json.dumps(content).encode())
    assert report.outputs == exported[1].outputs
    assert (report.latency, report.quantized, report.random_outputs) == ((), (), ())
    assert len(report.table().splitlines()) == 5


def test_an_output_error_joins_to_the_larger():
    one = OutputError(name="y", max_abs_error=1.0, max_rel_error=0.1)
    other = OutputError(name="y", max_abs_error=0.5, max_rel_error=0.2)
    assert one.joined(other) == OutputError(name="y", max_abs_error=1.0, max_rel_error=0.2)


def test_the_manual_runs_an_export_with_onnxruntime_and_numpy_alone(exported):
    manual = (Path(__file__).parents[3] / "docs" / "manual" / "model.md").read_text()
    (code,) = re.findall(r"    python -c '\n(.*?)\n    '\n", manual, re.DOTALL)
    code = textwrap.dedent(code) + (
        "\nimport sys\nassert not any(name.startswith('bray') or name in ('torch', 'onnx') "
        "for name in sys.modules)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=exported[0], capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert "outputs/logits float32 (5, 3)" in lines
    assert "outputs/best[0] int64 (5,)" in lines
