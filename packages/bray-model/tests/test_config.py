import pytest

from bray_core.errors import ConfigError
from bray_model import ModelConfig


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"max_batch_size": 0}, "max_batch_size: expected 1 or more, got 0"),
        ({"max_batch_size": 2.0}, "max_batch_size: expected a whole number, got 2.0"),
        ({"max_wait_us": -1}, "max_wait_us: expected 0 or more, got -1"),
        ({"inline_below_us": -1}, "inline_below_us: expected 0 or more, got -1"),
        ({"max_queue_rows": True}, "max_queue_rows: expected a whole number, got True"),
        ({"timeout_s": 0}, "timeout_s: expected more than 0, got 0"),
        ({"reject_non_finite": 1}, "reject_non_finite: expected true or false, got 1"),
        ({"compile": "yes"}, "compile: expected true or false, got 'yes'"),
        ({"backend": "onnx"}, "backend: expected one of auto, int8, .*, tensorrt, got 'onnx'"),
        ({"device": "gpu"}, "device: expected one of cpu, cuda, got 'gpu'"),
        ({"precision": "bf61"}, "precision: expected one of fp32, bf16, got 'bf61'"),
        ({"backend": "tensorrt"}, "backend='tensorrt' runs on a GPU only: set device='cuda' too"),
        ({"retention": 10}, "retention: expected a Retention, got 10"),
        ({"cache_bytes": -1}, "cache_bytes: expected 0 or more, got -1"),
        ({"max_sessions": 0}, "max_sessions: expected 1 or more, got 0"),
        ({"session_idle_s": 0}, "session_idle_s: expected more than 0, got 0"),
        ({"session_idle_s": "1"}, "session_idle_s: expected a number, got '1'"),
        ({"pad_to": 8}, r"pad_to: expected batch sizes such as \(8, 64\), got 8"),
        ({"pad_to": (0, 8)}, r"pad_to: expected batch sizes such as \(8, 64\), got \(0, 8\)"),
        ({"pad_to": (8, 4)}, r"pad_to: expected ascending sizes, got \(8, 4\)"),
        ({"pad_to": (8, 128)}, r"pad_to=\(8, 128\) exceeds max_batch_size=64: lower the one"),
    ],
)
def test_refuses(settings, message):
    with pytest.raises(ConfigError, match=message):
        ModelConfig(**settings)


def test_pad_to_may_be_a_list_as_in_yaml():
    assert ModelConfig(pad_to=[8, 16]).pad_to == (8, 16)
