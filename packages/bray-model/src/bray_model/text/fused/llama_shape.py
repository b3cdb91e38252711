"""Whether a module is built like Llama, which `fused_module` computes with few operations."""

from __future__ import annotations

from typing import Any

import torch

_ROPE_TYPES = ("default", "linear", "llama3", "yarn")
"""Rotations that depend on the position alone."""
_ATTENTION = {"q_proj", "k_proj", "v_proj", "o_proj"}
_LAYER = {"self_attn", "mlp", "input_layernorm", "post_attention_layernorm"}


def has_llama_shape(module: Any) -> bool:
    """Return whether a module has the parts of Llama, Mistral, Qwen2 or Qwen3, and no others.

    Whether it computes the same with them is for `step_check` to find out.
    """
    try:
        layers, rotary = module.model.layers, module.model.rotary_emb
        if rotary.rope_type not in _ROPE_TYPES or not _is_plain(module.lm_head):
            return False
        return _is_norm(module.model.norm) and all(_has_llama_shape(layer) for layer in layers)
    except AttributeError:
        return False


def _has_llama_shape(layer: Any) -> bool:
    attention, mlp = layer.self_attn, layer.mlp
    names = {name for name, _ in attention.named_children()}
    mlp_names = {name for name, _ in mlp.named_children()} - {"act_fn"}
    return (
        {name for name, _ in layer.named_children()} == _LAYER
        and names in (_ATTENTION, _ATTENTION | {"q_norm", "k_norm"})
        and mlp_names == {"gate_proj", "up_proj", "down_proj"}
        and type(mlp.act_fn).__name__ in ("SiLU", "SiLUActivation")
        and all(_is_plain(getattr(attention, name)) for name in _ATTENTION)
        and all(_is_plain(getattr(mlp, name)) for name in mlp_names)
        and all(_is_norm(getattr(attention, name)) for name in names - _ATTENTION)
        and _is_norm(layer.input_layernorm)
        and _is_norm(layer.post_attention_layernorm)
    )


def _is_plain(linear: Any) -> bool:
    return type(linear) is torch.nn.Linear


def _is_norm(norm: Any) -> bool:
    """Return whether a norm has a weight; OLMo's has none."""
    return hasattr(norm, "weight") and hasattr(norm, "variance_epsilon")
