"""The endpoint as the official `openai` client sees it, with a model that follows a script."""

import asyncio
import dataclasses
import json
import threading
import time
from contextlib import asynccontextmanager
from types import SimpleNamespace

import httpx2
import openai
import pytest
from scripted_model import END, ScriptedModel

from bray_core.errors import CapacityError
from bray_model.chat import chat_sessions
from bray_model.chat.config import ChatConfig
from bray_model.chat.endpoint import ChatEndpoint
from bray_server import Limits, PageRequest, Server

HELLO = [{"role": "user", "content": "hello"}]
CALL = '<tool_call>\n{"name": "add", "arguments": {"a": 1, "b": 2}}\n</tool_call>'
ADD = {
    "type": "function",
    "function": {"name": "add", "parameters": {"type": "object", "properties": {}}},
}


@asynccontextmanager
async def serving(script=(), config=None, limits=None, **options):
    model = ScriptedModel(script, **options)
    episodes = []
    endpoint = ChatEndpoint(model, config, episodes.append)
    server = Server(endpoint.actor, tcp_port=None, http_port=0, pages=endpoint, limits=limits)
    await server.start()
    client = openai.AsyncOpenAI(base_url=f"{server.addresses[0]}/v1", api_key="none")
    try:
        async with client:
            yield client, model, episodes, endpoint
    finally:
        await server.stop(0)
        endpoint.close()


def in_session(client, name):
    root = str(client.base_url).removesuffix("/v1/")
    return client.with_options(base_url=f"{root}/sessions/{name}/v1", max_retries=0)


async def test_a_chat_completion_has_all_that_the_client_reads():
    async with serving(["fine"]) as (client, model, *_):
        reply = await client.chat.completions.create(
            model="scripted",
            messages=[{"role": "developer", "content": [{"type": "text", "text": "be"}]}, *HELLO],
            logprobs=True,
            top_logprobs=2,
            extra_body={"return_token_ids": True},
        )
        choice = reply.choices[0]
        assert (choice.message.role, choice.message.content) == ("assistant", "fine")
        assert choice.finish_reason == "stop"
        assert choice.model_extra["token_ids"] == [*map(ord, "fine"), ord(END)]
        prompt = model.render_chat([{"role": "system", "content": "be"}, *HELLO])
        assert reply.model_extra["prompt_token_ids"] == list(map(ord, prompt))
        assert reply.usage.prompt_tokens == len(prompt)
        assert reply.usage.completion_tokens == 5
        assert reply.system_fingerprint == "version-7"
        first = choice.logprobs.content[0]
        assert (first.token, first.logprob, bytes(first.bytes)) == ("f", -1.0, b"f")
        assert [one.logprob for one in first.top_logprobs] == [-1.0, -2.0]


async def test_streams_say_the_same_as_whole_answers():
    async with serving(["fine"] * 3) as (client, *_):
        asked = {"model": "scripted", "messages": HELLO, "logprobs": True}
        whole = await client.chat.completions.create(**asked)
        stream = await client.chat.completions.create(
            **asked,
            stream=True,
            stream_options={"include_usage": True},
            extra_body={"return_token_ids": True},
        )
        chunks = [chunk async for chunk in stream]
        assert "".join(c.choices[0].delta.content or "" for c in chunks[:-1]) == "fine"
        assert chunks[-2].choices[0].finish_reason == "stop"
        assert (chunks[-1].choices, chunks[-1].usage) == ([], whole.usage)
        ids = [one for c in chunks[:-1] for one in c.choices[0].model_extra.get("token_ids", [])]
        assert ids == list(map(ord, "fine"))
        async with client.chat.completions.stream(**asked) as helper:
            final = await helper.get_final_completion()
        assert final.choices[0].message.content == "fine"
        assert len(final.choices[0].logprobs.content) == 4


async def test_penalties_and_biases_reach_the_model():
    async with serving(["a", "b"]) as (client, model, *_):
        asked = {"frequency_penalty": 0.5, "presence_penalty": -1, "logit_bias": {"65": -100}}
        await client.chat.completions.create(model="scripted", messages=HELLO, **asked)
        await client.completions.create(model="scripted", prompt="x", **asked)
        for request in model.requests:
            sampling = request.sampling
            assert (sampling.frequency_penalty, sampling.presence_penalty) == (0.5, -1.0)
            assert sampling.logit_bias == ((65, -100.0),)


async def test_several_answers_and_plain_completions():
    async with serving(["a", "b", "c", "d", "e", "f"]) as (client, model, *_):
        reply = await client.chat.completions.create(
            model="scripted", messages=HELLO, n=2, seed=5, stop=["x"], max_completion_tokens=9
        )
        assert sorted(choice.message.content for choice in reply.choices) == ["a", "b"]
        assert [request.sampling.seed for request in model.requests] == [5, 6]
        assert {request.sampling.max_tokens for request in model.requests} == {9}
        plain = await client.completions.create(
            model="scripted", prompt=["one", "two"], logprobs=1, temperature=0
        )
        assert [choice.text for choice in plain.choices] == ["c", "d"]
        assert plain.choices[0].logprobs.tokens == ["c", END]
        assert plain.usage.prompt_tokens == 6
        stream = await client.completions.create(
            model="scripted", prompt=[65, 66], n=2, stream=True
        )
        texts = {0: "", 1: ""}
        async for chunk in stream:
            texts[chunk.choices[0].index] += chunk.choices[0].text
        assert sorted(texts.values()) == ["e", "f"]
        assert model.requests[-1].prompt_ids == (65, 66)


async def test_cached_tokens_are_a_part_of_the_prompt():
    """Clients subtract them from `prompt_tokens`, which counts the prompt of `n` answers once."""
    async with serving(["a"] * 4) as (client, model, *_):
        shared = iter([0, 5, 2, 3])  # each prompt's second answer shares what the first computed
        complete = model.complete

        async def sharing(request):
            return dataclasses.replace(await complete(request), num_shared=next(shared))

        model.complete = sharing
        reply = await client.completions.create(model="scripted", prompt=["first", "two"], n=2)
        assert reply.usage.prompt_tokens == 8
        assert reply.usage.prompt_tokens_details.cached_tokens == 2


@pytest.mark.parametrize("is_streamed", [False, True])
async def test_tool_calls_are_read_and_unreadable_ones_stay_text(is_streamed):
    script = [f"Let me add.\n{CALL}", "no {}" + "<tool_call>{bad}</tool_call>"]
    async with serving(script) as (client, _, episodes, _):
        session = in_session(client, "s")
        asked = {"model": "scripted", "messages": HELLO, "tools": [ADD]}

        async def ask(**more):
            if not is_streamed:
                return (await session.chat.completions.create(**asked | more)).choices[0]
            async with session.chat.completions.stream(**asked | more) as stream:
                return (await stream.get_final_completion()).choices[0]

        choice = await ask()
        assert choice.finish_reason == "tool_calls"
        assert choice.message.content == "Let me add."
        [call] = choice.message.tool_calls
        assert (call.function.name, json.loads(call.function.arguments)) == (
            "add",
            {"a": 1, "b": 2},
        )
        answer = {
            "role": "assistant",
            "content": choice.message.content,
            "tool_calls": [call.model_dump(include={"id", "type", "function"})],
        }
        answer["tool_calls"][0]["function"].pop("parsed_arguments", None)
        result = {"role": "tool", "tool_call_id": call.id, "content": "3"}
        choice = await ask(messages=[*HELLO, answer, result])
        assert choice.message.content == "no {}<tool_call>{bad}</tool_call>"
        assert not choice.message.tool_calls
        await session.post("/end", body={"reward": [0, 1]}, cast_to=object)
        [episode] = episodes
        assert episode.num_unparsed_calls == 1
        assert episode.finish_reasons == ("tool_calls", "stop")
        assert len(episode.segments) == 1, "the second turn went on with the first one's tokens"
        assert episode.num_retokenised == 0


async def test_a_session_continues_the_tokens_that_it_knows():
    async with serving(["one", "two", "three", "four"]) as (client, model, episodes, _):
        session = in_session(client, "a%20b")
        messages = list(HELLO)
        for _ in range(3):
            reply = await session.chat.completions.create(model="scripted", messages=messages)
            messages.append(reply.choices[0].message.model_dump(exclude_none=True))
            messages.append({"role": "user", "content": "more"})
        changed = [{**messages[0], "content": "another"}, *messages[1:]]
        await session.chat.completions.create(model="scripted", messages=changed)
        reply = await session.post("/end", body={"reward": 0.5}, cast_to=dict[str, object])
        assert (reply["turns"], reply["segments"], reply["reward"]) == (4, 2, 0.5)
        [episode] = episodes
        assert (episode.session, episode.reward, episode.turn_rewards) == ("a b", 0.5, None)
        assert (episode.num_turns, episode.num_retokenised, episode.ended_by) == (4, 1, "ended")
        first, second = episode.segments
        shown = model.decode(first.token_ids, special=True)
        assert model.render_chat(messages).startswith(shown)
        assert shown.endswith(f"three{END}")
        own = "".join(map(chr, first.token_ids[first.is_own]))
        assert own == f"one{END}two{END}three{END}"
        assert first.turns[first.is_own].tolist() == [0] * 4 + [1] * 4 + [2] * 6
        assert set(first.versions[first.is_own]) == {7}
        assert set(first.log_probs[first.is_own]) == {-0.5}
        assert not first.log_probs[~first.is_own].any()
        assert second.num_own == 5
        assert model.requests[1].prompt_ids[: len(model.requests[0].prompt_ids)] == (
            model.requests[0].prompt_ids
        )


async def test_an_answer_cut_by_its_length_is_closed_by_the_environment():
    async with serving(["onetwo", "x"]) as (client, model, episodes, _):
        session = in_session(client, "s")
        reply = await session.chat.completions.create(
            model="scripted", messages=HELLO, max_tokens=3
        )
        assert reply.choices[0].finish_reason == "length"
        answer = {"role": "assistant", "content": "one"}
        more = [*HELLO, answer, {"role": "user", "content": "go on"}]
        await session.chat.completions.create(model="scripted", messages=more)
        await session.post("/end", body={}, cast_to=object)
        [segment] = episodes[0].segments
        assert episodes[0].reward is None
        assert model.decode(segment.token_ids, special=True) == model.render_chat(more) + f"x{END}"
        assert "".join(map(chr, segment.token_ids[segment.is_own])) == f"onex{END}"


async def test_branches_share_what_they_have_in_common_and_own_it_once():
    script = ["root", "a", "b", "c"]
    async with serving(script) as (client, _, episodes, _):
        session = in_session(client, "s")
        await session.chat.completions.create(model="scripted", messages=HELLO)
        more = [*HELLO, {"role": "assistant", "content": "root"}, {"role": "user", "content": "?"}]
        await asyncio.gather(
            session.chat.completions.create(model="scripted", messages=more, n=2),
            session.chat.completions.create(model="scripted", messages=more),
        )
        await session.post("/end", body={"reward": 1}, cast_to=object)
        [episode] = episodes
        assert (episode.num_turns, len(episode.segments), episode.num_retokenised) == (3, 3, 0)
        assert sorted(segment.num_own for segment in episode.segments) == [2, 2, 2 + 5]
        assert episode.num_own == 5 + 3 * 2


async def test_plain_completions_of_a_session_continue_too():
    async with serving(["abc", "d", "e"]) as (client, model, episodes, _):
        session = in_session(client, "s")
        await session.completions.create(model="scripted", prompt="12", stop=["x"])
        await session.completions.create(model="scripted", prompt="12abc34")
        ids = [*map(ord, "12abc"), ord(END), *map(ord, "34d"), ord(END), 65]
        await session.completions.create(model="scripted", prompt=ids)
        await session.post("/end", body={"reward": 1}, cast_to=object)
        [segment] = episodes[0].segments
        assert model.decode(segment.token_ids, special=True) == f"12abc{END}34d{END}Ae{END}"
        assert episodes[0].num_turns == 3


@pytest.mark.parametrize("way", ["path", "header", "metadata", "user", "page"])
async def test_ways_to_name_a_session(way):
    async with serving() as (client, _, episodes, endpoint):
        more = {}
        if way == "path":
            client = in_session(client, "me")
        if way in ("path", "header"):  # what comes first wins
            more["extra_headers"] = {"X-Session-ID": "me" if way == "header" else "other"}
        if way in ("path", "header", "metadata"):
            more["metadata"] = {"session": "me" if way == "metadata" else "other"}
        more["user"] = "me" if way in ("user", "page") else "other"
        await client.chat.completions.create(model="scripted", messages=HELLO, **more)
        assert len(endpoint.sessions) == 1
        if way == "header":
            await client.post(
                "/end",
                body={"reward": 1},
                cast_to=object,
                options={"headers": {"X-Session-ID": "me"}},
            )
        elif way == "path":
            await client.post("/end", body={"reward": 1}, cast_to=object)
        else:
            await client.post("/sessions/me/end", body={"reward": 1}, cast_to=object)
        assert episodes[0].session == "me"
        assert len(endpoint.sessions) == 0


async def test_a_request_that_is_sent_again_is_one_turn():
    drops = 1

    class DropsAnswers(httpx2.AsyncHTTPTransport):
        async def handle_async_request(self, request):
            nonlocal drops
            reply = await super().handle_async_request(request)
            if drops:
                drops -= 1
                await reply.aread()
                raise httpx2.ReadError("the connection was lost")
            return reply

    async with serving(["first", "second"]) as (client, model, episodes, _):
        http = httpx2.AsyncClient(transport=DropsAnswers())
        base = in_session(client, "s").base_url
        async with openai.AsyncOpenAI(base_url=base, api_key="x", http_client=http) as retrying:
            reply = await retrying.chat.completions.create(model="scripted", messages=HELLO)
            assert reply.choices[0].message.content == "first"
            again = await retrying.chat.completions.create(model="scripted", messages=HELLO)
            assert again.choices[0].message.content == "second", "it was not marked: a new request"
            drops = 1
            await retrying.post("/end", body={"reward": 2.0}, cast_to=object)
        assert len(model.requests) == 2
        [episode] = episodes
        assert (episode.num_turns, episode.num_retries, episode.reward) == (2, 1, 2.0)


async def test_a_retry_joins_the_request_that_is_still_running():
    async with serving(["joined"], ChatConfig(retry_grace_s=20)) as (client, model, *_):
        model.gate = asyncio.Event()
        session = in_session(client, "s")
        await left_in_the_middle(session, model)
        again = asyncio.create_task(
            session.chat.completions.create(
                model="scripted",
                messages=HELLO,
                extra_headers={"x-stainless-retry-count": "1"},
            )
        )
        await asyncio.sleep(0.1)
        assert model.num_running == 1, "the first goes on, and there is no other"
        model.gate.set()
        assert (await again).choices[0].message.content == "joined"
        assert len(model.requests) == 1
        stream = await session.chat.completions.create(
            model="scripted",
            messages=HELLO,
            stream=True,
            extra_headers={"x-stainless-retry-count": "2"},
        )
        assert [c async for c in stream], "another body: made anew"
        assert len(model.requests) == 2


async def test_an_answer_that_nobody_waits_for_is_given_up_and_is_no_turn():
    config = ChatConfig(retry_grace_s=0.1)
    async with serving(["lost", "kept"], config) as (client, model, episodes, _):
        model.gate = asyncio.Event()
        session = in_session(client, "s")
        await left_in_the_middle(session, model)
        await until(lambda: model.num_cancelled == 1)
        model.gate.set()
        await session.chat.completions.create(model="scripted", messages=HELLO)
        await session.post("/end", body={"reward": [1.0]}, cast_to=object)
        assert (episodes[0].num_turns, episodes[0].num_own) == (1, 5)


RETRY = {"x-stainless-retry-count": "1"}


async def test_a_retry_of_a_stream_that_still_runs_waits_for_its_answer():
    async with serving(["one answer"]) as (client, model, episodes, _):
        model.gate = asyncio.Event()
        session = in_session(client, "s")
        asked = {"model": "scripted", "messages": HELLO, "stream": True}
        first = await session.chat.completions.create(**asked)
        await anext(aiter(first))
        again = asyncio.create_task(session.chat.completions.create(**asked, extra_headers=RETRY))
        await until(lambda: model.num_running == 1)
        await asyncio.sleep(0.05)
        model.gate.set()
        rest, whole = await said(first), await said(await again)
        assert "one answer".endswith(rest)
        assert whole == "one answer"
        await session.post("/end", body={"reward": 1.0}, cast_to=object)
        assert len(model.requests) == 1
        assert (episodes[0].num_turns, episodes[0].num_retries) == (1, 1)


@pytest.mark.parametrize("is_streamed", [True, False])
async def test_a_retry_that_comes_while_the_first_is_made_ready_is_no_second_turn(is_streamed):
    async with serving(["one answer"]) as (client, model, episodes, _):
        is_made, go_on = threading.Event(), threading.Event()
        render = model.render_chat

        def slow(*given, **named):
            is_made.set()
            assert go_on.wait(20)
            return render(*given, **named)

        model.render_chat = slow
        session = in_session(client, "s")
        messages = [{"role": "user", "content": "x" * 40_000}]  # made ready in a thread

        async def ask(headers):
            reply = await session.chat.completions.create(
                model="scripted", messages=messages, stream=is_streamed, extra_headers=headers
            )
            return await said(reply) if is_streamed else reply.choices[0].message.content

        model.context_length = 100_000
        first = asyncio.create_task(ask({}))
        await asyncio.to_thread(is_made.wait, 20)
        again = asyncio.create_task(ask(RETRY))
        await asyncio.sleep(0.1)
        go_on.set()
        assert await asyncio.gather(first, again) == ["one answer"] * 2
        await session.post("/end", body={"reward": 1.0}, cast_to=object)
        assert len(model.requests) == 1
        assert (episodes[0].num_turns, episodes[0].num_retries) == (1, 1)


async def test_a_retry_is_answered_where_the_client_of_the_stream_left_meanwhile():
    async with serving(["left", "kept"]) as (client, model, episodes, _):
        model.gate = asyncio.Event()
        session = in_session(client, "s")
        asked = {"model": "scripted", "messages": HELLO, "stream": True}
        first = await session.chat.completions.create(**asked)
        await anext(aiter(first))
        retries = [
            asyncio.create_task(session.chat.completions.create(**asked, extra_headers=RETRY))
            for _ in range(2)
        ]
        await asyncio.sleep(0.1)
        await first.close()
        await until(lambda: len(model.requests) == 2)
        model.gate.set()
        assert [await said(await retry) for retry in retries] == ["kept"] * 2
        await session.post("/end", body={"reward": 1.0}, cast_to=object)
        assert len(model.requests) == 2
        assert episodes[0].num_turns == 1


async def test_a_retry_of_a_stream_that_was_never_begun_is_made_anew():
    async with serving(["kept"], ChatConfig(retry_grace_s=0.1)) as (_, model, _, endpoint):
        body = json.dumps({"messages": HELLO, "stream": True}).encode()
        path = "/sessions/s/v1/chat/completions"
        lost = await endpoint.answer(PageRequest("POST", path, {}, body))
        headers = {name.encode(): value.encode() for name, value in RETRY.items()}
        again = await endpoint.answer(PageRequest("POST", path, headers, body))
        assert b"DONE" in b"".join([chunk async for chunk in again.chunks])
        assert len(model.requests) == 1
        await lost.chunks.aclose()


async def said(stream):
    """Return the text of a streamed answer."""
    chunks = [chunk async for chunk in stream]
    return "".join(one.choices[0].delta.content or "" for one in chunks if one.choices)


async def left_in_the_middle(session, model):
    """Ask, and hang up once the answer has begun."""
    asked = asyncio.create_task(session.chat.completions.create(model="scripted", messages=HELLO))
    await model.began.wait()
    asked.cancel()
    with pytest.raises(asyncio.CancelledError):
        await asked


async def until(holds, most_s=20.0):
    end = time.monotonic() + most_s
    while not holds():
        assert time.monotonic() < end
        await asyncio.sleep(0.01)


@pytest.mark.parametrize("count", [1, 3])
@pytest.mark.parametrize("name", [None, "s"])
async def test_a_client_that_leaves_in_mid_stream_ends_its_generation_at_once(name, count):
    async with serving(["a long answer"] * count) as (client, model, episodes, endpoint):
        model.gate = asyncio.Event()
        client = client if name is None else in_session(client, name)
        stream = await client.chat.completions.create(
            model="scripted", messages=HELLO, stream=True, n=count
        )
        await anext(aiter(stream))
        await until(lambda: model.num_running == count)
        await stream.close()
        await until(lambda: model.num_cancelled == count)
        assert model.num_running == 0
        endpoint.close()
        assert not episodes, "nothing was answered"


ERRORS = [
    ({"messages": []}, openai.BadRequestError, "invalid_value", "messages"),
    ({"model": "gpt-4o"}, openai.NotFoundError, "model_not_found", "model"),
    ({"temperature": -1}, openai.BadRequestError, "invalid_value", "temperature"),
    ({"n": 1000}, openai.BadRequestError, "invalid_value", "n"),
    ({"stop": ["x" * 2000]}, openai.BadRequestError, "invalid_value", "stop"),
    ({"max_tokens": 0}, openai.BadRequestError, "invalid_value", "max_tokens"),
    ({"logit_bias": {"5": 101}}, openai.BadRequestError, "invalid_value", "logit_bias"),
    ({"logit_bias": {"five": 1}}, openai.BadRequestError, "invalid_value", "logit_bias"),
    ({"frequency_penalty": 3}, openai.BadRequestError, "invalid_value", "frequency_penalty"),
    ({"presence_penalty": "much"}, openai.BadRequestError, "invalid_value", "presence_penalty"),
    ({"tool_choice": "required"}, openai.BadRequestError, "unsupported_value", "tool_choice"),
    (
        {"response_format": {"type": "json_schema", "json_schema": {"name": "x", "schema": {}}}},
        openai.BadRequestError,
        "unsupported_value",
        "response_format",
    ),
    (
        {"response_format": {"type": "json_object"}, "tools": [ADD]},
        openai.BadRequestError,
        "invalid_value",
        "response_format",
    ),
    ({"extra_body": {"nonsense": 1}}, openai.BadRequestError, "unknown_parameter", "nonsense"),
    ({"top_logprobs": 3}, openai.BadRequestError, "invalid_value", "top_logprobs"),
    (
        {"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {}}]}]},
        openai.BadRequestError,
        "invalid_value",
        "messages[0].content[0]",
    ),
    (
        {"messages": [{"role": "user", "content": "x" * 5000}]},
        openai.BadRequestError,
        "context_length_exceeded",
        "messages",
    ),
    ({"user": "x" * 300}, openai.BadRequestError, "bad_session", None),
]


@pytest.mark.parametrize("stream", [False, True])
async def test_mistakes_are_errors_that_the_client_knows(stream):
    async with serving() as (client, model, *_):
        for change, kind, code, param in ERRORS:
            with pytest.raises(kind) as caught:
                await client.chat.completions.create(
                    **{"model": "scripted", "messages": HELLO, "stream": stream, **change}
                )
            found = caught.value
            assert (found.code, found.body["type"]) == (code, "invalid_request_error"), change
            if param is not None:
                assert (found.param or "").startswith(param), change
        assert not model.requests


async def test_errors_of_the_model_and_of_the_server_have_the_same_shape():
    async with serving(has_template=False) as (client, *_):
        with pytest.raises(openai.BadRequestError) as caught:
            await client.chat.completions.create(model="scripted", messages=HELLO)
        assert caught.value.code == "missing_chat_template"
    full = [CapacityError("the queue is full")] * 2
    async with serving(full, limits=Limits(max_body_bytes=2000)) as (client, *_):
        client = client.with_options(max_retries=0)
        with pytest.raises(openai.RateLimitError) as caught:
            await client.chat.completions.create(model="scripted", messages=HELLO)
        assert caught.value.code == "overloaded"
        stream = await client.chat.completions.create(model="scripted", messages=HELLO, stream=True)
        with pytest.raises(openai.APIError, match="the queue is full"):
            [_ async for _ in stream]
        with pytest.raises(openai.APIStatusError) as caught:
            await client.chat.completions.create(
                model="scripted", messages=[{"role": "user", "content": "x" * 3000}]
            )
        assert (caught.value.status_code, caught.value.code) == (413, "body_too_large")
        with pytest.raises(openai.NotFoundError, match="Responses API"):
            await client.responses.create(model="scripted", input="x")
        with pytest.raises(openai.NotFoundError) as caught:
            await client.post("/sessions/none/end", body={"reward": 1}, cast_to=object)
        assert caught.value.code == "session_not_found"
        with pytest.raises(openai.APIStatusError) as caught:
            await client.get("/chat/completions", cast_to=object)
        assert caught.value.status_code == 405
        models = await client.models.list()
        assert [model.id for model in models.data] == ["scripted"]
        assert (await client.models.retrieve("scripted")).model_extra["max_model_len"] == 4000
        with pytest.raises(openai.NotFoundError):
            await client.models.retrieve("other")


@pytest.mark.parametrize(
    "body",
    [
        b'{"reward": NaN}',
        b'{"reward": 1e999}',
        b'{"reward": [1, 2]}',
        b'{"reward": "1"}',
        b"[",
        b'{"a": 1}',
    ],
)
async def test_a_bad_reward_ends_nothing(body):
    async with serving() as (client, _, episodes, _):
        session = in_session(client, "s")
        await session.chat.completions.create(model="scripted", messages=HELLO)
        with pytest.raises(openai.BadRequestError) as caught:
            await session.post("/end", cast_to=object, options={"headers": {}}, content=body)
        assert caught.value.code == "invalid_value"
        assert not episodes
        await session.post("/end", body={"reward": -1.5}, cast_to=object)
        assert episodes[0].reward == -1.5


async def test_an_end_waits_for_running_requests():
    async with serving(["long"]) as (client, model, episodes, _):
        model.gate = asyncio.Event()
        session = in_session(client, "s")
        running = asyncio.create_task(
            session.chat.completions.create(model="scripted", messages=HELLO)
        )
        await model.began.wait()
        with pytest.raises(openai.ConflictError):
            await session.post("/end", body={"reward": 1}, cast_to=object)
        model.gate.set()
        await running
        await session.post("/end", body={"reward": 1}, cast_to=object)
        assert episodes[0].num_turns == 1


async def test_sessions_are_bounded_in_time_number_and_size(monkeypatch):
    later_s = 0.0
    clock = SimpleNamespace(monotonic=lambda: time.monotonic() + later_s)
    monkeypatch.setattr(chat_sessions, "time", clock)
    config = ChatConfig(session_idle_s=600, max_sessions=2, min_rest_s=500, max_session_tokens=60)
    async with serving(config=config) as (client, _, episodes, endpoint):
        client = client.with_options(max_retries=0)
        for name in ("a", "b"):
            await client.chat.completions.create(model="scripted", messages=HELLO, user=name)
        with pytest.raises(openai.RateLimitError) as caught:
            await client.chat.completions.create(model="scripted", messages=HELLO, user="c")
        assert caught.value.code == "too_many_sessions"
        long = [{"role": "user", "content": "x" * 40}]
        with pytest.raises(openai.BadRequestError) as caught:
            await client.chat.completions.create(model="scripted", messages=long, user="b")
        assert caught.value.code == "session_too_long"
        later_s = 700.0
        await client.chat.completions.create(model="scripted", messages=HELLO, user="c")
        assert [(e.session, e.ended_by, e.reward) for e in episodes] == [
            ("a", "timeout", None),
            ("b", "timeout", None),
        ]
        assert len(endpoint.sessions) == 1
    assert episodes[-1].ended_by == "shutdown"


async def test_the_session_at_rest_for_longest_makes_room():
    config = ChatConfig(max_sessions=2, min_rest_s=1e-6)
    async with serving(config=config) as (client, _, episodes, _):
        for name in ("a", "b", "a", "c"):
            await client.chat.completions.create(model="scripted", messages=HELLO, user=name)
        assert [(e.session, e.ended_by) for e in episodes] == [("b", "full")]


async def test_the_tokens_of_all_sessions_are_bounded():
    config = ChatConfig(max_held_tokens=50, min_rest_s=1e-6)
    async with serving(config=config) as (client, _, episodes, endpoint):
        for name in "aaabaaa":
            await client.chat.completions.create(model="scripted", messages=HELLO, user=name)
        assert {e.ended_by for e in episodes} == {"full"}
        assert len(endpoint.sessions) == 1
    config = ChatConfig(max_held_tokens=20)
    async with serving(config=config) as (client, _, episodes, _):
        session = in_session(client, "s")
        await session.chat.completions.create(model="scripted", messages=HELLO)
        with pytest.raises(openai.RateLimitError, match="tokens are open, the limit"):
            await session.chat.completions.create(model="scripted", messages=HELLO)
        await session.post("/end", body={"reward": 1}, cast_to=object)
        assert episodes[0].num_turns == 1


async def test_a_session_open_for_too_long_is_closed_after_its_last_answer():
    async with serving(["long"], ChatConfig(session_s=0.1)) as (client, model, episodes, endpoint):
        model.gate = asyncio.Event()
        session = in_session(client, "s")
        running = asyncio.create_task(
            session.chat.completions.create(model="scripted", messages=HELLO)
        )
        await model.began.wait()
        await asyncio.sleep(0.12)
        with pytest.raises(openai.APIStatusError) as caught:
            await session.chat.completions.create(model="scripted", messages=HELLO)
        assert (caught.value.status_code, caught.value.code) == (410, "session_expired")
        model.gate.set()
        await running
        assert [(e.ended_by, e.num_turns) for e in episodes] == [("timeout", 1)]
        assert len(endpoint.sessions) == 0


def test_the_synchronous_client():
    async def run():
        async with serving(["one", "two"]) as (client, *_):
            base = str(client.base_url)
            return await asyncio.to_thread(ask, base)

    def ask(base):
        with openai.OpenAI(base_url=base, api_key="x") as client:
            one = client.chat.completions.create(model="scripted", messages=HELLO)
            two = client.chat.completions.create(model="scripted", messages=HELLO, stream=True)
            return one.choices[0].message.content, "".join(
                chunk.choices[0].delta.content or "" for chunk in two
            )

    assert asyncio.run(run()) == ("one", "two")


async def test_what_is_kept_for_requests_sent_again_is_bounded():
    async with serving() as (client, _, _, endpoint):
        session = in_session(client, "s")
        for turn in range(12):
            await session.chat.completions.create(
                model="scripted", messages=[{"role": "user", "content": f"{turn}"}]
            )
        kept = endpoint.sessions.find("s").attempts._last
        assert len(kept) <= 5
        assert all(not attempt.outcome.result().job.requests for attempt in kept)
        again = await session.chat.completions.create(
            model="scripted",
            messages=[{"role": "user", "content": "11"}],
            extra_body={"return_token_ids": True},
        )
        assert again.model_extra["prompt_token_ids"]
        assert endpoint.sessions.find("s").num_turns == 13
