"""Plays number guessing with any language model at an OpenAI-compatible endpoint.

It needs the package `openai` and nothing of bray. The endpoint is in OPENAI_BASE_URL, as every
client of OpenAI reads it:

    OPENAI_BASE_URL=http://127.0.0.1:8000/v1 OPENAI_API_KEY=none python play.py --games 100

Each game is a session of its own (`/sessions/<id>/v1`). At its end the program says how well it
went, from which the model learns while it trains; in production the endpoint only counts it.
"""

import argparse
import asyncio
import os
import random
import sys
import time

import openai

MOST, MAX_TURNS = 15, 6


async def play(client: openai.AsyncOpenAI, root: str, secret: int, name: str) -> int:
    """Play one game; return its turns, `MAX_TURNS + 1` where the number was not found."""
    session = client.with_options(base_url=f"{root}/sessions/{name}/v1")
    messages = [{"role": "user", "content": "?"}]
    turns, penalty = MAX_TURNS + 1, 0
    for turn in range(1, MAX_TURNS + 1):
        answer = await session.chat.completions.create(
            model="policy", messages=messages, max_tokens=3, temperature=1.0
        )
        said = answer.choices[0].message.content or ""
        if len(said) != 2 or not said.isdecimal():
            penalty = 1
            break
        if int(said) == secret:
            turns = turn
            break
        hint = ">" if secret > int(said) else "<"
        messages += [{"role": "assistant", "content": said}, {"role": "user", "content": hint}]
    reward = -turns / MAX_TURNS - penalty
    await session.post("/end", body={"reward": reward}, cast_to=object)
    return turns


async def main() -> None:
    """Play games side by side, and print what came of them."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--games", type=int, default=0, help="0 plays until it is ended")
    parser.add_argument("--at-once", type=int, default=32, help="games side by side")
    options = parser.parse_args()
    root = os.environ["OPENAI_BASE_URL"].partition("/sessions/")[0].removesuffix("/v1")
    client = openai.AsyncOpenAI()
    played: list[int] = []
    began = time.monotonic()

    async def go_on() -> None:
        while not options.games or len(played) < options.games:
            secret = random.randint(1, MOST)
            name = f"secret{secret}.{random.getrandbits(48):x}"
            played.append(await play(client, root, secret, name))

    await asyncio.gather(*(go_on() for _ in range(options.at_once)))
    found = sum(turns <= MAX_TURNS for turns in played)
    rate = (sum(min(turns, MAX_TURNS) for turns in played) + len(played)) / (
        time.monotonic() - began
    )
    sys.stdout.write(
        f"{len(played)} games, {found / len(played):.1%} found, "
        f"{sum(played) / len(played):.3f} turns in the mean, {rate:.0f} requests/s\n"
    )


if __name__ == "__main__":
    asyncio.run(main())
