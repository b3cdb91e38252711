"""The page of metrics and the code name the same ones."""

from __future__ import annotations

import re
from pathlib import Path

from bray_core.metrics.hub import RATES

ROOT = Path(__file__).parent.parent
FROM_TERMS = {  # `test_every_algorithm.py` sees that those of its runs are here
    *("policy_loss", "value_loss", "entropy", "approx_kl", "clip_fraction", "loss", "grad_norm"),
    *("td_error", "q", "alpha", "rho_clip_fraction", "behaviour_kl", "kl", "value", "gap"),
    *("squared_error", "log_prob", "weight", "reinforcement_loss", "imitation_loss"),
    *("imitation_weight", "accuracy", "margin", "chosen_reward", "rejected_reward"),
    *("clip_fraction_low", "clip_fraction_high", "sampled_entropy"),
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
