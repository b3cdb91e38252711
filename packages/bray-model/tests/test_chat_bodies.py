"""Bodies that nobody expects: each is refused in words, and the endpoint answers the next one."""

import asyncio
import itertools
import json
import pickle
from http.client import HTTPConnection

import msgspec
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scripted_model import ScriptedModel

from bray_core import codec
from bray_core.errors import BrayError, CapacityError, ServiceError
from bray_model.chat.chat_sessions import ChatSessions
from bray_model.chat.config import ChatConfig
from bray_model.chat.endpoint import ChatEndpoint
from bray_model.chat.messages import assistant_message, digests, template_messages
from bray_model.chat.request_bodies import ChatBody, CompletionBody, read_body
from bray_model.chat.tool_calls import ToolCallScanner, scan
from bray_server import PageReply, PageRequest, PageStream, ServerThread

JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=8),
    lambda one: st.lists(one, max_size=3) | st.dictionaries(st.text(max_size=5), one, max_size=3),
    max_leaves=8,
)  # fmt: skip
FIELDS = sorted({*ChatBody.__struct_fields__, *CompletionBody.__struct_fields__, "unknown"})
MESSAGES = st.lists(
    st.fixed_dictionaries(
        {"role": st.sampled_from(["user", "assistant", "tool", "system", "other"])},
        optional={"content": JSON, "tool_calls": JSON, "name": JSON, "tool_call_id": JSON},
    ),
    max_size=3,
)
OBJECTS = st.dictionaries(st.sampled_from(FIELDS), JSON, max_size=5)
PATHS = ["/v1/chat/completions", "/v1/completions", "/sessions/s/v1/chat/completions"]
ENDS = ["/v1/sessions/s/end", "/sessions/s/v1/end"]


def answer_of(endpoint, path, body):
    """Return the status and the body of the reply to a request, a streamed one read whole."""

    async def ask():
        reply = await endpoint.answer(PageRequest("POST", path, {}, body))
        if isinstance(reply, PageStream):
            return reply.status, b"".join([chunk async for chunk in reply.chunks])
        assert isinstance(reply, PageReply)
        return reply.status, reply.body

    return asyncio.run(asyncio.wait_for(ask(), 10))


@settings(max_examples=60, deadline=None)
@given(st.sampled_from(PATHS + ENDS), OBJECTS, st.none() | MESSAGES, st.booleans())
def test_any_object_is_answered_or_refused_in_words(path, body, messages, is_valid):
    if messages is not None:
        body["messages"] = messages
    if is_valid:  # far enough for an answer, now and then
        body |= {"model": "scripted", "messages": [{"role": "user", "content": "x"}]}
        body = {k: v for k, v in body.items() if k not in ("unknown", "prompt")}
    endpoint = ChatEndpoint(ScriptedModel())
    status, reply = answer_of(endpoint, path, json.dumps(body).encode())
    if status != 200:
        assert status in (400, 404, 409)
        error = json.loads(reply)["error"]
        assert set(error) == {"message", "type", "param", "code"}
        assert error["message"]
        assert len(error["message"]) < 2000
    endpoint.close()


@settings(max_examples=40, deadline=None)
@given(st.sampled_from(PATHS + ENDS), st.binary(max_size=60))
def test_any_bytes_are_refused_in_words(path, body):
    endpoint = ChatEndpoint(ScriptedModel())
    status, reply = answer_of(endpoint, path, body)
    assert status in (400, 404)
    assert json.loads(reply)["error"]["message"]
    endpoint.close()


@pytest.mark.parametrize(
    "body",
    [
        b"[" * 100_000,
        b'{"messages": ' + b"[" * 50_000,
        b'{"tools": [{"type": "function", "function": {"name": "f", "parameters": '
        + b'{"a":' * 5_000 + b"1" + b"}" * 5_000 + b"}}]}",
        b'{"messages": [{"role": "user", "content": "\\ud800"}]}',
        b'{"messages": [{"role": "user", "content": "\xed\xa0\x80"}]}',
        b'{"seed": 1e400}',
        b'{"seed": 99999999999999999999999999}',
        b'{"temperature": NaN}',
        b'\xff\xfe',
    ],
)  # fmt: skip
def test_malformed_json_is_refused(body):
    endpoint = ChatEndpoint(ScriptedModel())
    status, reply = answer_of(endpoint, "/v1/chat/completions", body)
    assert status == 400
    assert json.loads(reply)["error"]["code"] in ("invalid_value", "unknown_parameter")
    endpoint.close()


@pytest.mark.parametrize(
    ("path", "body", "param", "words"),
    [
        ("chat/completions", {"messages": [{"role": "robot"}]}, "messages[0].role",
         "expected system or developer or user or assistant or tool, got 'robot'"),
        ("chat/completions", {"messages": [{"role": "user", "content": [{"type": "image_url"}]}]},
         "messages[0].content[0].type", "expected text, got 'image_url'"),
        ("chat/completions", {"messages": [{"role": "user"}], "tools": [{"type": "web"}]},
         "tools[0].type", "expected function, got 'web'"),
        ("completions", {"prompt": ""}, "prompt", "the prompt is empty"),
        ("completions", {"prompt": [-1]}, "prompt", "expected token ids, integers of 0 or more"),
    ],
)  # fmt: skip
def test_a_refusal_names_the_field_as_it_was_sent_and_what_it_may_be(path, body, param, words):
    endpoint = ChatEndpoint(ScriptedModel())
    status, reply = answer_of(endpoint, f"/v1/{path}", json.dumps(body).encode())
    error = json.loads(reply)["error"]
    assert (status, error["param"]) == (400, param)
    assert error["message"].startswith(f"{param}: {words}")
    endpoint.close()


def test_every_field_is_served_refused_or_known_to_be_harmless():
    harmless = {
        "store", "safety_identifier", "prompt_cache_key", "prompt_cache_retention",
        "user", "metadata",
    }  # fmt: skip
    served = {
        "model", "n", "max_tokens", "temperature", "top_p", "seed", "stop", "stream",
        "stream_options", "top_k", "min_p", "stop_token_ids", "ignore_eos", "return_token_ids",
        "messages", "max_completion_tokens", "logprobs", "top_logprobs", "tools", "prompt",
            "frequency_penalty", "presence_penalty", "logit_bias",
    }  # fmt: skip
    for kind in (ChatBody, CompletionBody):
        start = {"messages": [{"role": "user", "content": "x"}]} if kind is ChatBody else {}
        start |= {"prompt": "x"} if kind is CompletionBody else {}
        for name in set(kind.__struct_fields__) - harmless - served:
            with pytest.raises(BrayError, match=f"{name}: this server does not serve it"):
                read_body(kind, msgspec.json.encode({**start, name: {"x": 1}}), 1)
            assert read_body(kind, msgspec.json.encode({**start, name: None}), 1)


def test_tools_that_promise_a_schema_are_refused():
    tool = {"type": "function", "function": {"name": "f", "strict": True}}
    body = {"messages": [{"role": "user", "content": "x"}], "tools": [tool]}
    with pytest.raises(BrayError, match="strict: this server does not serve it"):
        read_body(ChatBody, msgspec.json.encode(body), 1)


PIECES = st.lists(
    st.sampled_from(
        ["<tool_call>", "</tool_call>", '{"name": "f", "arguments": {"a": 1}}', "<too", "\n", " ",
         "words", '{"name": "f"}', '{"name": 1}', "[]", "<"]
    ),
    max_size=9,
)  # fmt: skip


@settings(max_examples=150, deadline=None)
@given(PIECES, st.lists(st.integers(0, 100), max_size=5))
def test_calls_are_the_same_however_the_text_is_cut(parts, cuts):
    text = "".join(parts)
    content, calls, num_unparsed = scan(text)
    scanner, found, said = ToolCallScanner(), [], ""
    places = [0, *sorted(min(cut, len(text)) for cut in cuts), len(text)]
    for start, end in itertools.pairwise(places):
        piece = scanner.feed(text[start:end])
        said += piece.content
        found += piece.calls
    said += scanner.end().content
    assert said == content
    assert [c["function"] for c in found] == [c["function"] for c in calls]
    assert scanner.num_unparsed == num_unparsed
    if not calls:
        assert content == text, "nothing that the model wrote is mended"


def test_a_history_comes_back_as_it_was_sent():
    """Messages of clients and of the endpoint have the same digest, however they are written."""
    call = {"id": "c", "type": "function", "function": {"name": "f", "arguments": '{"b":1,"a":2}'}}
    sent = assistant_message("", [call])
    written = {"role": "assistant", "content": None, "refusal": None, "annotations": []}
    call["function"]["arguments"] = '{"a": 2, "b": 1}'
    body = read_body(
        ChatBody, msgspec.json.encode({"messages": [{**written, "tool_calls": [call]}]}), 1
    )
    assert digests(None, template_messages(body.messages)) == digests(None, [sent])


def test_game_servers_play_by_start_tick_end():
    episodes = []
    endpoint = ChatEndpoint(ScriptedModel(["north", "<tool_call>", "south"]), None, episodes.append)
    server = ServerThread(endpoint.actor, tcp_port=None, http_port=0, pages=endpoint)
    connection = HTTPConnection(server.addresses[0].removeprefix("http://"), timeout=20)

    def step(kind, body):
        headers = {"session": "game", "step_kind": kind, "content-type": "application/json"}
        connection.request("POST", "/step", json.dumps(body), headers)
        reply = connection.getresponse()
        return reply.status, json.loads(reply.read())

    def says(text, **more):
        return {"messages": [{"role": "user", "content": text}], **more}

    assert step("start", {})[0] == 200
    status, reply = step("tick", {"observation": says("where?", stop_token_ids=[5, 6])})
    assert (status, reply["action"]["content"]) == (200, "north")
    assert reply["action"]["finish_reason"] == "stop"
    assert step("tick", {"observation": says("and now?"), "reward": 0.5})[0] == 200
    for wrong in ({}, {"observation": 3}, {"observation": says("x", stream=True)}, [1]):
        status, reply = step("tick", wrong)
        assert (status, reply["error"]["code"]) == (400, "bad_request")
    assert step("tick", {"observation": says("x" * 5000)})[0] == 400
    status, reply = step("end", {"reward": 2})
    assert (status, reply) == (200, {"turns": 2, "reward": 2.5})
    [episode] = episodes
    assert (episode.session, episode.turn_rewards) == ("game", (0.5, 2.0))
    assert (len(episode.segments), episode.num_retokenised) == (1, 0)
    connection.close()
    server.close(0)
    endpoint.close()


async def test_a_tick_that_failed_may_bring_its_reward_again():
    model = ScriptedModel(["north", CapacityError("the queue is full"), "south"])
    episodes = []
    endpoint = ChatEndpoint(model, None, episodes.append)
    actor = endpoint.actor("game")

    def tick(**more):
        observation = {"messages": [{"role": "user", "content": "where?"}]}
        return actor.tick(codec.encode({"observation": observation, **more}))

    await actor.start(b"")
    await tick()
    with pytest.raises(ServiceError, match="queue is full"):
        await tick(reward=0.5)
    await tick(reward=0.5)
    await actor.end(codec.encode({"reward": 2}))
    assert episodes[0].turn_rewards == (0.5, 2.0)
    endpoint.close()


@pytest.mark.parametrize("last", [codec.encode({"reward": 1e308}), codec.encode([1]), b"nonsense"])
async def test_a_refused_end_closes_the_episode_and_frees_its_id(last):
    endpoint = ChatEndpoint(ScriptedModel(), None, lambda episode: None)
    said = {"observation": {"messages": [{"role": "user", "content": "where?"}]}}
    for _ in range(2):
        actor = endpoint.actor("game")
        await actor.start(b"")
        await actor.tick(codec.encode(said))
        await actor.tick(codec.encode({**said, "reward": 1e308}))
        with pytest.raises(ServiceError) as caught:
            await actor.end(last)
        assert caught.value.code == "bad_request"
    endpoint.close()


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (
            {"messages": [{"role": "user", "content": b"bytes"}]},
            "messages/0/content: expected text",
        ),
        ({"temperature": float("nan")}, "temperature: expected a finite number"),
        ({"logit_bias": np.array([1 + 2j])}, "logit_bias: expected text, numbers"),
        ({"stop": np.array([1.0, np.inf])}, "stop/1: expected a finite number"),
    ],
)
async def test_what_json_cannot_say_is_refused(change, words):
    endpoint = ChatEndpoint(ScriptedModel(), None, lambda episode: None)
    actor = endpoint.actor("game")
    await actor.start(b"")
    observation = {"messages": [{"role": "user", "content": "where?"}], **change}
    with pytest.raises(ServiceError, match=f"observation/{words}") as caught:
        await actor.tick(codec.encode({"observation": observation}))
    assert caught.value.code == "bad_request"
    endpoint.close()


async def test_a_prompt_that_cannot_fit_is_not_tokenised(monkeypatch):
    model = ScriptedModel(context_length=100)
    endpoint = ChatEndpoint(model, None, None)
    encoded = []
    encode = model.encode
    monkeypatch.setattr(model, "encode", lambda text, **how: encoded.append(text) or encode(text))
    for path, said in (
        ("chat/completions", {"messages": [{"role": "user", "content": "x" * 13_000}]}),
        ("completions", {"prompt": "x" * 13_000}),
    ):
        body = json.dumps({"model": "scripted", **said}).encode()
        reply = await endpoint.answer(PageRequest("POST", f"/v1/{path}", {}, body))
        error = json.loads(reply.body)["error"]
        assert (reply.status, error["code"]) == (400, "context_length_exceeded")
        assert (error["param"], encoded) == (next(iter(said)), [])
        assert "more than the context of 100 tokens can hold" in error["message"]
    endpoint.close()


def test_an_end_is_remembered_in_little_room():
    sessions = ChatSessions(ChatConfig(), None)
    body = b'{"reward": 1}' + b" " * 100_000
    for number in range(20):
        sessions.leave(sessions.enter(str(number)))
        reply = sessions.end(str(number), body, is_retry=False)
        assert sessions.end(str(number), body, is_retry=True) == reply
    assert len(pickle.dumps(sessions._ends)) < 20_000
