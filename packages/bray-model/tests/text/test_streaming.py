import asyncio
import contextlib
import threading

import pytest

from bray_core.errors import SpecError
from bray_model.text.detokenizer import Detokenizer
from bray_model.text.requests import (
    Completion,
    MissingChatTemplateError,
    PromptTooLongError,
    Sampling,
    TextRequest,
)


async def read(model, request):
    pieces, completion = [], None
    async with contextlib.aclosing(model.stream(request)) as items:
        async for item in items:
            if isinstance(item, Completion):
                completion = item
            else:
                assert completion is None
                pieces.append(item)
    return pieces, completion


async def test_streamed_pieces_are_the_tokens_and_the_text_of_the_completion(make):
    model = make()
    request = TextRequest(model.encode("1+1="), Sampling(max_tokens=30, seed=3))
    [whole] = model.generate([request])
    streams = [read(model, request) for _ in range(3)]
    for pieces, completion in await asyncio.gather(*streams):
        assert completion.ids.tolist() == whole.ids.tolist()
        assert [token.id for piece in pieces for token in piece.tokens] == whole.ids.tolist()
        assert "".join(piece.text for piece in pieces) == completion.text == whole.text
    assert (await model.complete(request)).text == whole.text
    # The thread of the streams generates for those too who wait.
    assert model.generate([request])[0].text == whole.text


async def test_a_stop_string_is_never_streamed(make):
    model = make()
    prompt = model.encode("1+1=")
    [free] = model.generate([TextRequest(prompt, Sampling(max_tokens=40, seed=3))])
    stop = free.text[12:16]
    request = TextRequest(prompt, Sampling(max_tokens=40, seed=3, stop=(stop,)))
    pieces, completion = await read(model, request)
    assert completion.finish_reason == "stop"
    expected = free.text[: free.text.find(stop)]
    assert "".join(piece.text for piece in pieces) == completion.text == expected


async def test_who_leaves_in_mid_stream_frees_the_row_at_once(make):
    model = make(max_rows=1)
    request = TextRequest((5, 6), Sampling(max_tokens=90, ignore_eos=True))
    items = model.stream(request)
    await anext(items)
    await items.aclose()
    assert model.figures().num_running == 0
    task = asyncio.create_task(model.complete(request))
    await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    await model.complete(TextRequest((5, 6), Sampling(max_tokens=3)))
    assert model.figures().num_running == model.figures().num_waiting == 0


async def test_errors_come_before_the_first_piece(make):
    model = make(context_length=8)
    with pytest.raises(PromptTooLongError):
        await model.complete(TextRequest((5,) * 8))


async def test_streams_go_on_where_others_begin_anew(make):
    model = make(in_flight="restart", max_rows=2)
    new = {name: tensor + 0.01 for name, tensor in model.weights().items()}
    request = TextRequest((5, 6), Sampling(max_tokens=60, ignore_eos=True))
    items = model.stream(request)
    await anext(items)
    model.publish(new)
    *_, completion = [item async for item in items]
    assert completion.versions.tolist() == sorted(completion.versions.tolist())
    assert len(completion.ids) == 60
    assert model.figures().restarted == 0


async def test_whole_answers_begin_anew_with_new_weights(make):
    model = make(in_flight="restart", max_rows=2)
    new = {name: tensor + 0.01 for name, tensor in model.weights().items()}
    request = TextRequest((5, 6), Sampling(max_tokens=80, seed=3, ignore_eos=True))
    answer = asyncio.create_task(model.complete(request))
    for _ in range(100_000):
        if model.figures().tokens >= 2:
            break
        await asyncio.sleep(0)
    model.publish(new)
    completion = await answer
    assert completion.versions.tolist() == [1] * 80
    assert model.figures().restarted == 1
    assert completion.ids.tolist() == (await model.complete(request)).ids.tolist()


async def test_whole_answers_say_what_streams_say(make):
    model = make()
    for stop in ((), ("7",), ("12", "3")):
        request = TextRequest((5, 6), Sampling(max_tokens=40, seed=4, stop=stop))
        *_, streamed = [item async for item in model.stream(request)]
        whole = await model.complete(request)
        assert (whole.text, whole.finish_reason) == (streamed.text, streamed.finish_reason)
        assert whole.ids.tolist() == streamed.ids.tolist()


def test_text_comes_in_whole_characters(byte_tokenizer):
    text = "naïve 😀 日本語 ok"
    ids = byte_tokenizer.encode(text)
    assert len(ids) > len(text)
    detokenizer = Detokenizer(byte_tokenizer.decode)
    pieces = [detokenizer.add(token) for token in ids]
    assert "".join([*pieces, detokenizer.finish()]) == text
    assert not any("\ufffd" in piece for piece in pieces)


def test_bytes_that_are_no_character_do_not_hold_the_text_back(byte_tokenizer):
    broken = byte_tokenizer.encode("😀")[:2]
    detokenizer = Detokenizer(byte_tokenizer.decode)
    pieces = [detokenizer.add(token) for token in [*broken * 12, *byte_tokenizer.encode("ok")]]
    assert any(pieces[:24])
    assert ("".join(pieces) + detokenizer.finish()).endswith("ok")


def test_stop_strings_are_found_across_tokens_and_held_back_until_they_are_certain():
    detokenizer = Detokenizer(lambda ids: "".join(map(chr, ids)), ("</end>", "<x>"))
    pieces = [detokenizer.add(ord(one)) for one in "a</b></e</end>z"]
    assert "".join(pieces) == detokenizer.text == "a</b></e"
    assert pieces[1:4] == ["", "", "</b"]
    assert detokenizer.stopped
    assert detokenizer.finish() == ""


def test_chat_templates(make, character_tokenizer):
    model = make()
    messages = [{"role": "user", "content": "2+2"}, {"role": "assistant", "content": "4"}]
    assert model.render_chat(messages) == "u 2+2. a 4. a "
    ids = model.apply_chat_template(messages, add_generation_prompt=False)
    assert model.decode(ids) == "u 2+2. a 4"
    for wrong in ([{}], []):
        with pytest.raises(SpecError, match="messages"):
            model.render_chat(wrong)
    silent = character_tokenizer()
    silent.chat_template = None
    with pytest.raises(MissingChatTemplateError, match="has no chat template"):
        make(tokenizer=silent).apply_chat_template(messages)


async def test_who_leaves_does_not_hold_up_the_others_for_the_step_at_hand(make, monkeypatch):
    model = make(max_rows=2)
    items = model.stream(TextRequest((5, 6), Sampling(max_tokens=90, ignore_eos=True)))
    await anext(items)
    decoder, entered, go_on = model.engine._decoder, threading.Event(), threading.Event()
    step = decoder.step

    def slow():
        entered.set()
        assert go_on.wait(20)
        return step()

    monkeypatch.setattr(decoder, "step", slow)
    await asyncio.to_thread(entered.wait, 20)
    closing = asyncio.create_task(items.aclose())
    await asyncio.sleep(0.01)  # the loop turns, though the step is under way
    assert not closing.done()
    go_on.set()
    await asyncio.wait_for(closing, 20)
    assert model.figures().num_running == 0


async def test_weights_that_wait_come_when_the_last_client_leaves(make):
    model = make(in_flight="finish", max_rows=2)
    items = model.stream(TextRequest((5, 6), Sampling(max_tokens=90, ignore_eos=True)))
    await anext(items)
    new = {name: tensor + 0.01 for name, tensor in model.weights().items()}
    model.publish(new)
    assert model.version == 0
    later = asyncio.create_task(model.complete(TextRequest((5, 6), Sampling(max_tokens=3))))
    await asyncio.sleep(0)  # it waits for the new weights
    await items.aclose()
    one = await asyncio.wait_for(later, 20)
    assert set(one.versions.tolist()) == {1}


def test_tokens_without_a_text_are_not_decoded_again_and_again():
    sizes = []

    def decode(ids):
        sizes.append(len(ids))
        return "".join("ab"[one] for one in ids if one < 2)

    detokenizer = Detokenizer(decode)
    text = "".join(detokenizer.add(one) for one in [0, *[7] * 500, 1])
    assert text + detokenizer.finish() == "ab"
    assert max(sizes) < 40
