import importlib.util

import pytest

from bray_core.errors import ConfigError
from bray_model.text.config import TextModelConfig
from bray_model.text.vllm_engine import VllmTextEngine


@pytest.mark.skipif(importlib.util.find_spec("vllm") is not None, reason="vLLM is installed")
def test_without_vllm_the_engine_says_what_it_needs(tmp_path):
    with pytest.raises(ConfigError, match="VllmTextEngine needs vllm"):
        VllmTextEngine(tmp_path, TextModelConfig(), eos_ids=(1,))
