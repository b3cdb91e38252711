import pytest
import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors
from transformers import LlamaConfig, PreTrainedTokenizerFast

from bray_model.text.config import TextModelConfig
from bray_model.text.text_model import TextModel

CHARACTERS = "abcdefghijklmnopqrstuvwxyz0123456789+-*/=?!. "
CHAT = (
    "{% for message in messages %}{{ message.role[0] }} {{ message.content }}"
    "{% if not loop.last %}. {% endif %}{% endfor %}"
    "{% if add_generation_prompt %}. a {% endif %}"
)


def make_character_tokenizer(characters: str = CHARACTERS) -> PreTrainedTokenizerFast:
    """One token a character; `<e>` ends a text."""
    vocab = {name: at for at, name in enumerate(["<p>", "<e>", "<u>", *characters])}
    tokenizer = Tokenizer(models.WordLevel(vocab, unk_token="<u>"))
    tokenizer.pre_tokenizer = pre_tokenizers.Split("", "isolated")
    tokenizer.decoder = decoders.Fuse()
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        eos_token="<e>",
        pad_token="<p>",
        unk_token="<u>",
        chat_template=CHAT,
    )


def make_byte_tokenizer() -> PreTrainedTokenizerFast:
    """One token a byte, so that most characters beyond ASCII need several."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    vocab = {name: at for at, name in enumerate(["<p>", "<e>", *alphabet])}
    tokenizer = Tokenizer(models.BPE(vocab, []))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.post_processor = processors.ByteLevel()
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token="<e>", pad_token="<p>")


def make_llama(vocab_size: int = 3 + len(CHARACTERS), **changes) -> LlamaConfig:
    """Two layers with large weights, so that the probabilities are far from even."""
    settings = {
        "vocab_size": vocab_size,
        "hidden_size": 32,
        "intermediate_size": 48,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "max_position_embeddings": 96,
        "initializer_range": 0.3,
        "bos_token_id": None,
        "eos_token_id": 1,
        "pad_token_id": 0,
    }
    return LlamaConfig(**settings | changes)


@pytest.fixture(autouse=True)
def one_thread():
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture
def llama():
    return make_llama


@pytest.fixture
def character_tokenizer():
    return make_character_tokenizer


@pytest.fixture
def byte_tokenizer():
    return make_byte_tokenizer()


@pytest.fixture
def make():
    """Make a tiny model with random weights; closed after the test."""
    models = []

    def make(architecture=None, tokenizer=None, *, seed=0, **settings) -> TextModel:
        model = TextModel.create(
            architecture or make_llama(),
            tokenizer or make_character_tokenizer(),
            TextModelConfig(**settings),
            seed=seed,
        )
        models.append(model)
        return model

    yield make
    for model in models:
        model.close()
