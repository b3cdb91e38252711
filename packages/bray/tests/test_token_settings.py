"""Settings that save time or memory, on a small Llama: the step they take is the plain one."""

from __future__ import annotations

from typing import Any

import pytest
import token_models
import torch
from token_models import llama
from torch import Tensor, nn

from bray.text.config import LanguageModelConfig, TokenTrainerConfig
from bray.text.language_model import adapted
from bray.text.packing import PackedRows
from bray.text.policy_gradient_config import VARIANTS
from bray.text.row_queue import RowQueue, pack_demonstrations, pack_samples
from bray.text.trainers.preference_trainer import DPOConfig, PreferenceTrainer
from bray.text.trainers.supervised_trainer import SupervisedTrainer
from bray_core.errors import ConfigError


def gradients(module: nn.Module) -> Tensor:
    found = [p.grad for p in module.parameters() if p.grad is not None]
    return torch.cat([one.flatten() for one in found])


def step_of(
    variant: str, module: Any = None, sampler: Any = None, **settings: Any
) -> tuple[Tensor, Any]:
    """Return the gradients of one step of a variant, and the module."""
    module = llama() if module is None else module
    replay = token_models.samples(llama() if sampler is None else sampler)
    if variant == "ppo":
        torch.manual_seed(1)
    trainer = token_models.trainer(module, replay, **{**VARIANTS[variant], **settings})
    if variant == "ppo":
        with torch.no_grad():
            module.value_head.weight.fill_(0.3)
    trainer.run(1)
    return gradients(module), module


@pytest.mark.parametrize("variant", sorted(VARIANTS))
@pytest.mark.parametrize("packed_tokens", [1, 16, 1000])
def test_packed_rows_give_the_gradients_of_padded_ones(variant: str, packed_tokens: int) -> None:
    settings: dict[str, Any] = {"old_log_prob": "trainer", "kl_coefficient": 0.1}
    if variant == "ppo":
        settings = {}
    plain, _ = step_of(variant, **settings)
    packed, _ = step_of(variant, packed_tokens=packed_tokens, **settings)
    assert plain.abs().max() > 1e-3
    torch.testing.assert_close(packed, plain, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("microbatches", [2, 20])
def test_packed_rows_in_parts_give_the_gradients_of_all_at_once(microbatches: int) -> None:
    plain, _ = step_of("dapo")
    packed, _ = step_of("dapo", packed_tokens=20, microbatches=microbatches)
    torch.testing.assert_close(packed, plain, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("kind", ["sft", "dpo"])
def test_demonstrations_and_pairs_are_packed_alike(kind: str) -> None:
    found = []
    for packed_tokens in (0, 24):
        if kind == "sft":
            found.append(supervised(packed_tokens=packed_tokens)[0])
            continue
        module, queue = llama(), RowQueue(1)
        queue.put(pack_samples(token_models.samples()[:8]))
        part = DPOConfig(max_grad_norm=None, packed_tokens=packed_tokens)
        PreferenceTrainer(module, queue, part).run(1)
        found.append(gradients(module))
    assert found[0].abs().max() > 1e-3
    torch.testing.assert_close(found[1], found[0], atol=1e-5, rtol=1e-5)


def test_rows_are_packed_into_few_places() -> None:
    length = torch.tensor([3, 8, 2, 3])
    tokens = torch.arange(1, 33).view(4, 8)
    packed = PackedRows.of(tokens, length, 8)
    assert packed.tokens.tolist() == [
        tokens[1].tolist(),
        [*tokens[0, :3].tolist(), *tokens[3, :3].tolist(), *tokens[2, :2].tolist()],
    ]
    assert packed.position.tolist() == [[*range(8)], [0, 1, 2, 0, 1, 2, 0, 1]]
    back = packed.unpacked(packed.tokens)
    assert torch.equal(back, tokens.masked_fill(torch.arange(8) >= length[:, None], 0))


def test_a_model_that_mixes_packed_rows_is_refused() -> None:
    class Mixes(token_models.SumOfTokens):
        def forward(self, input_ids: Tensor, position_ids: Any = None, **rest: Any) -> Any:
            """Return logits of a sum over all that lies before, whatever row it is of."""
            return super().forward(input_ids, **rest)

    module = Mixes()
    trainer = token_models.trainer(module, token_models.samples(module), packed_tokens=16)
    with pytest.raises(ConfigError, match="packed_tokens: this model computes other logits"):
        trainer.run(1)


@pytest.mark.parametrize("variant", ["grpo", "ppo"])
@pytest.mark.parametrize("packed_tokens", [0, 24])
def test_checkpointed_activations_give_the_same_gradients(variant: str, packed_tokens: int) -> None:
    plain, _ = step_of(variant)
    again, module = step_of(variant, gradient_checkpointing=True, packed_tokens=packed_tokens)
    assert module.is_activation_checkpointing
    torch.testing.assert_close(again, plain, atol=1e-5, rtol=1e-5)


def test_checkpointed_activations_are_computed_again() -> None:
    calls = {True: 0, False: 0}
    for is_on in calls:
        module = llama()

        def count(*given: Any, is_on: bool = is_on) -> None:
            calls[is_on] += 1

        module.model.layers[0].mlp.register_forward_pre_hook(count)
        step_of("dapo", module, gradient_checkpointing=is_on)
    assert calls == {False: 1, True: 2}


def supervised(**settings: Any) -> tuple[Tensor, Any]:
    """Return the gradients of one supervised step, and the module."""
    module, queue = llama(), RowQueue(1)
    queue.put(pack_demonstrations([one.rows[0] for one in token_models.samples()], 0))
    SupervisedTrainer(module, queue, TokenTrainerConfig(max_grad_norm=None, **settings)).run(1)
    return gradients(module), module


@pytest.mark.parametrize("packed_tokens", [0, 24])
def test_bf16_rounds_the_forward_pass_and_keeps_weights_in_fp32(packed_tokens: int) -> None:
    plain, _ = supervised()
    rounded, module = supervised(precision="bf16", packed_tokens=packed_tokens)
    assert {p.dtype for p in module.parameters()} == {torch.float32}
    difference = (rounded - plain).norm() / plain.norm()
    assert 1e-5 < difference < 0.1


@pytest.mark.filterwarnings("ignore:`is_gradient_checkpointing`:FutureWarning")
@pytest.mark.parametrize("settings", [{}, {"packed_tokens": 24}, {"gradient_checkpointing": True}])
def test_adapters_alone_are_trained_and_merge_into_the_models_weights(
    settings: dict[str, Any],
) -> None:
    config = LanguageModelConfig(lora_rank=4, lora_alpha=8.0, characters="abc")
    before = {name: value.clone() for name, value in llama().state_dict().items()}
    torch.manual_seed(3)
    module, merge = adapted(llama(), config)
    _, module = step_of("dapo", module, **settings)
    weights = {name: value.numpy() for name, value in module.state_dict().items()}
    merged = merge.merged(weights)
    assert merged.keys() == before.keys()
    whole = llama()
    whole.load_state_dict({name: torch.from_numpy(value) for name, value in merged.items()})
    tokens = torch.arange(6)[None]
    with torch.no_grad():
        torch.testing.assert_close(
            whole(tokens).logits, module(tokens).logits, atol=1e-5, rtol=1e-5
        )
    changed = [n for n in before if not torch.equal(before[n], whole.state_dict()[n])]
    assert changed
    assert all(name.endswith("_proj.weight") for name in changed)


def architecture(kind: str, **settings: Any) -> Any:
    from transformers import AutoConfig, AutoModelForCausalLM

    sizes = {"vocab_size": 12, "hidden_size": 16, "max_position_embeddings": 32}
    heads = {"num_attention_heads": 2, "num_hidden_layers": 1}
    torch.manual_seed(0)
    return AutoModelForCausalLM.from_config(
        AutoConfig.for_model(kind, **{**sizes, **heads, **settings})
    )


@pytest.mark.filterwarnings("ignore:`is_gradient_checkpointing`:FutureWarning")
@pytest.mark.parametrize(
    ("kind", "settings", "targets"),
    [
        ("gpt2", {}, ()),
        ("gpt2", {}, ("attn.c_proj",)),  # square: its shape does not tell which way it lies
        ("opt", {"ffn_dim": 24, "word_embed_proj_dim": 16}, ()),
        (
            "mixtral",
            {"intermediate_size": 24, "num_key_value_heads": 2, "num_local_experts": 2},
            (),
        ),
    ],
)
def test_adapters_merge_as_peft_merges_them(
    kind: str, settings: dict[str, Any], targets: tuple[str, ...]
) -> None:
    config = LanguageModelConfig(lora_rank=4, lora_targets=targets, characters="abc")
    module, merge = adapted(architecture(kind, **settings), config)
    for name, parameter in module.named_parameters():
        if "lora_" in name:
            nn.init.normal_(parameter)
    weights = {name: value.numpy().copy() for name, value in module.state_dict().items()}
    merged = merge.merged(weights)
    want = module.merge_and_unload().state_dict()
    assert merged.keys() == want.keys()
    for name, value in want.items():
        torch.testing.assert_close(torch.from_numpy(merged[name]), value, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(
    ("targets", "words"),
    [
        (("wte",), "expected linear layers, got transformer.wte, which is Embedding"),
        (("lm_head",), r"lm_head shares its weight \(lm_head.weight, transformer.wte.weight\)"),
    ],
)
@pytest.mark.filterwarnings("ignore")  # peft's own, about tied weights
def test_adapters_that_cannot_be_merged_are_refused(targets: tuple[str, ...], words: str) -> None:
    config = LanguageModelConfig(lora_rank=4, lora_targets=targets, characters="abc")
    with pytest.raises(ConfigError, match=f"lora_targets: .*{words}"):
        adapted(architecture("gpt2"), config)


@pytest.mark.parametrize(
    ("kind", "settings"),
    [
        ("gpt2", {"resid_pdrop": 0.5, "attn_pdrop": 0.5, "embd_pdrop": 0.5}),
        ("opt", {"ffn_dim": 24, "word_embed_proj_dim": 16, "dropout": 0.5, "layerdrop": 0.5}),
    ],
)
def test_nothing_is_dropped_in_training(kind: str, settings: dict[str, Any]) -> None:
    module = architecture(kind, **settings)
    SupervisedTrainer(module, RowQueue(1), TokenTrainerConfig())
    tokens = torch.arange(8)[None]
    with torch.no_grad():
        trained = module.train()(tokens).logits
        torch.testing.assert_close(trained, module.eval()(tokens).logits)
