"""The page of metrics and the code name the same ones."""

from __future__ import annotations

import re
from pathlib import Path

from bray_core.metrics.hub import RATES

ROOT = Path(__file__).parent.parent
FROM_TERMS = {
    "policy_loss",
    "value_loss",
    "entropy",
    "approx_kl",
    "clip_fraction",
    "loss",
    "grad_norm",
    "td_error",
    "q",
    "alpha",
}


def test_every_recorded_metric_is_on_the_page_and_no_other() -> None:
    recorded = {f"trainer/{term}" for term in FROM_TERMS} | set(RATES.values())
    for file in ROOT.glob("packages/*/src/**/*.py"):
        text = file.read_text()
        recorded |= set(re.findall(r'record\(\s*"([a-z_]+/[a-z_]+)"', text))
        recorded |= set(re.findall(r'PlayReports\([^)]*"([a-z_]+/[a-z_]+)"', text))
    page = (ROOT / "docs" / "metrics.md").read_text()
    described = {
        n for row in re.findall(r"^\| (`.*?) \|", page, re.M) for n in re.findall("`(.*?)`", row)
    }
    assert recorded == described
