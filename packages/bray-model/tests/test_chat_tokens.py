"""The endpoint with a real model: what is recorded are the tokens that were sampled."""

import asyncio
import json
from contextlib import asynccontextmanager

import numpy as np
import openai
import pytest
import torch
from byte_pair_model import byte_pair_model

from bray_model.chat.endpoint import ChatEndpoint
from bray_server import Server


@pytest.fixture(scope="module", autouse=True)
def one_thread():
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="module")
def model():
    model = byte_pair_model()
    yield model
    model.close()


@asynccontextmanager
async def serving(model, listener=None):
    endpoint = ChatEndpoint(model, None, listener)
    server = Server(endpoint.actor, tcp_port=None, http_port=0, pages=endpoint)
    await server.start()
    base = f"{server.addresses[0]}/sessions/s/v1"
    try:
        async with openai.AsyncOpenAI(base_url=base, api_key="x") as client:
            yield client
    finally:
        await server.stop(0)
        endpoint.close()


async def test_what_was_sampled_is_never_tokenised_again(model):
    episodes, prompts, sampled, texts = [], [], [], []
    async with serving(model, episodes.append) as client:
        messages = [{"role": "user", "content": "the cat"}]
        for turn in range(6):
            reply = await client.chat.completions.create(
                model="random",
                messages=messages,
                temperature=1.0,
                seed=turn,
                max_tokens=1 if turn == 2 else 12,
                extra_body={"return_token_ids": True},
            )
            choice = reply.choices[0]
            prompts.append(reply.model_extra["prompt_token_ids"])
            sampled.append(choice.model_extra["token_ids"])
            texts.append(choice.message.content)
            messages.append(choice.message.model_dump(exclude_none=True))
            messages.append({"role": "user", "content": f"and then {turn}"})
        await client.post("/end", body={"reward": 1.0}, cast_to=object)
    again = [list(model.encode(text, special=False)) for text in texts]
    assert sum(a != ids[: len(a)] for a, ids in zip(again, sampled, strict=True)) >= 3, (
        "the tokenizer must show what a character tokenizer cannot"
    )
    for turn in range(5):
        known = prompts[turn] + sampled[turn]
        assert prompts[turn + 1][: len(known)] == known
    [episode] = episodes
    [segment] = episode.segments
    assert segment.token_ids.tolist() == prompts[-1] + sampled[-1]
    own = np.split(segment.token_ids[segment.is_own], np.cumsum([len(s) for s in sampled])[:-1])
    assert [part.tolist() for part in own] == sampled
    assert episode.num_retokenised == 0
    # Each answer is closed once, by the model or by the template.
    assert model.decode(segment.token_ids, special=True).count("<|im_end|>\n<|im_start|>") == 11

    module = model.new_module()
    with torch.inference_mode():
        ids = torch.from_numpy(segment.token_ids.astype(np.int64))[None]
        log_probs = module(ids).logits[0].log_softmax(-1)
    expected = log_probs[:-1].gather(1, ids[0, 1:, None])[:, 0].numpy()[segment.is_own[1:]]
    np.testing.assert_allclose(segment.raw_log_probs[segment.is_own], expected, atol=1e-4)
    np.testing.assert_allclose(segment.log_probs[segment.is_own], expected, atol=1e-4)


async def test_tokens_know_the_version_that_sampled_them():
    episodes = []
    with byte_pair_model() as model:
        async with serving(model, episodes.append) as client:
            messages = [{"role": "user", "content": "the cat"}]
            for _ in range(2):
                reply = await client.chat.completions.create(
                    model="random", messages=messages, max_tokens=4
                )
                messages += [reply.choices[0].message.model_dump(exclude_none=True), messages[0]]
                model.publish(model.weights())
            assert reply.system_fingerprint == "version-1"
            await client.post("/end", body={"reward": 1.0}, cast_to=object)
    [segment] = episodes[0].segments
    assert [set(segment.versions[segment.turns == turn]) for turn in (0, 1)] == [{0}, {1}]


async def test_a_client_that_leaves_in_mid_stream_frees_its_row():
    with byte_pair_model(context_length=4096, max_rows=1) as model:
        async with serving(model) as client:
            stream = await client.chat.completions.create(
                model="random",
                messages=[{"role": "user", "content": "go on"}],
                stream=True,
                extra_body={"ignore_eos": True},
            )
            async for chunk in stream:
                if chunk.choices[0].delta.content:
                    break
            assert model.figures().num_running == 1
            await stream.close()
            reply = await client.chat.completions.create(
                model="random", messages=[{"role": "user", "content": "next"}], max_tokens=2
            )
            assert reply.usage.completion_tokens <= 2
            assert model.figures().cancelled == 1, "the only row was free for the next request"


async def test_a_prompt_longer_than_the_context_is_refused(model):
    async with serving(model) as client:
        with pytest.raises(openai.BadRequestError) as caught:
            await client.chat.completions.create(
                model="random", messages=[{"role": "user", "content": "cat " * 2000}]
            )
        assert caught.value.code == "context_length_exceeded"
        with pytest.raises(openai.BadRequestError, match="empty"):
            await client.completions.create(model="random", prompt="")
        with pytest.raises(openai.BadRequestError):
            await client.completions.create(model="random", prompt=[100_000])
        with pytest.raises(openai.BadRequestError):
            await client.completions.create(model="random", prompt=[-1])
        streamed = await client.completions.create(
            model="random", prompt="the", stream=True, stop=["a", "e"], max_tokens=200
        )
        text = "".join([chunk.choices[0].text async for chunk in streamed])
        assert "a" not in text
        assert "e" not in text


async def test_answers_in_json_parse_whole_or_streamed(model):
    bias = {str(model.encode(one)[0]): 4 for one in '{}":]'}
    async with serving(model) as client:
        asked = {"model": "random", "messages": [{"role": "user", "content": "the cat"}]}
        asked |= {"response_format": {"type": "json_object"}, "logit_bias": bias}
        asked |= {"max_tokens": 300, "n": 8, "seed": 1}
        reply = await client.chat.completions.create(**asked)
        texts = [""] * 8
        async for chunk in await client.chat.completions.create(**asked, stream=True):
            texts[chunk.choices[0].index] += chunk.choices[0].delta.content or ""
    assert texts == [choice.message.content for choice in reply.choices]
    whole = [one.message.content for one in reply.choices if one.finish_reason == "stop"]
    assert len(whole) >= 3
    assert all(isinstance(json.loads(text), dict) for text in whole)


async def test_one_client_s_numbers_end_nobody_else_s_answer(model):
    async with serving(model) as client:
        asked = {"model": "random", "messages": [{"role": "user", "content": "the cat"}]}
        long = asyncio.create_task(client.chat.completions.create(**asked, max_tokens=400))
        await asyncio.sleep(0.05)
        for more in ({"temperature": 1e-50}, {"extra_body": {"top_k": 10**30}}):
            reply = await client.chat.completions.create(**asked, **more, max_tokens=3)
            assert reply.usage.completion_tokens >= 1
        assert (await long).choices[0].finish_reason in ("stop", "length")
