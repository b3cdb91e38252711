"""Parts of characters: their bytes, and log-probabilities that clients can put together."""

import openai
import pytest

from bray_model.chat.endpoint import ChatEndpoint
from bray_model.text.token_bytes import bytes_of
from bray_server import ServerThread

TEXT = "aé你🙂 \n\x00\u00ad"


def test_names_of_byte_level_tokens_are_their_bytes(byte_tokenizer):
    tokenizer = byte_tokenizer
    names = tokenizer.convert_ids_to_tokens(tokenizer.encode(TEXT))
    assert b"".join(bytes_of(name, is_byte_level=True) for name in names) == TEXT.encode()
    assert bytes_of("<0xE4>", is_byte_level=False) == b"\xe4"
    assert bytes_of("plain", is_byte_level=False) is None
    assert bytes_of("你", is_byte_level=True) is None, "a special token is no row of bytes"


@pytest.mark.parametrize("stream", [False, True])
def test_bytes_of_streamed_and_whole_answers_spell_their_text(make, llama, byte_tokenizer, stream):
    tokenizer = byte_tokenizer
    tokenizer.chat_template = "{% for m in messages %}{{ m.content }}{% endfor %}"
    model = make(llama(len(tokenizer)), tokenizer)
    endpoint = ChatEndpoint(model)
    server = ServerThread(endpoint.actor, pages=endpoint, http_port=0, tcp_port=None)
    base = f"{server.addresses[0]}/v1"
    try:
        with openai.OpenAI(base_url=base, api_key="none") as client:
            asked = {"model": "model", "logprobs": True, "top_logprobs": 5, "max_tokens": 40}
            asked |= {"messages": [{"role": "user", "content": TEXT}], "seed": 3}
            answer = client.chat.completions.create(**asked, stream=stream)
            if stream:
                choices = [c for chunk in answer for c in chunk.choices]
                text = "".join(one.delta.content or "" for one in choices)
            else:
                choices = answer.choices
                text = choices[0].message.content
            tokens = [token for one in choices if one.logprobs for token in one.logprobs.content]
            spelt = b"".join(bytes(one.bytes) for one in tokens if one.token not in ("<e>", "<p>"))
            assert spelt.decode(errors="replace") == text
            assert "\ufffd" in text, "random bytes make no characters"
            for one in tokens:
                assert len({likely.token for likely in one.top_logprobs}) == 5
            plain = client.completions.create(model="model", prompt="a", logprobs=5, max_tokens=9)
            assert all(len(likely) == 5 for likely in plain.choices[0].logprobs.top_logprobs)
            assert any("bytes:\\x" in token for token in plain.choices[0].logprobs.tokens)
    finally:
        server.close()
        endpoint.close()
