from __future__ import annotations

from collections import Counter

import pytest

from bray_core.errors import ConfigError
from bray_core.remote.load_balancing import STRATEGIES, LoadBalancer

N = 8000
SIZE = 8


def counts(balance: LoadBalancer, strategy: str, **options: object) -> list[int]:
    found = Counter(balance.choose(strategy, **options) for _ in range(N))  # type: ignore[arg-type]
    return [found[index] for index in range(SIZE)]


def test_round_robin_takes_each_in_turn() -> None:
    balance = LoadBalancer(SIZE)
    assert [balance.choose("round_robin") for _ in range(2 * SIZE)] == [*range(SIZE)] * 2


def test_least_loaded_is_even_without_load_and_avoids_the_busiest() -> None:
    balance = LoadBalancer(SIZE)
    # Binomial(8000, 1/8): mean 1000, standard deviation 30: six of them is 180
    assert all(abs(count - N / SIZE) < 180 for count in counts(balance, "least_loaded"))
    balance.in_flight[3] = 1
    assert counts(balance, "least_loaded")[3] == 0, "one of two different ones is always free"
    balance.in_flight.update(dict.fromkeys(range(SIZE), 10))
    balance.in_flight[5] = 9
    # drawn in 1 - (7·6)/(8·7) = 1/4 of the pairs, and then taken
    assert abs(counts(balance, "least_loaded")[5] - N / 4) < 6 * (N * 3 / 16) ** 0.5


def test_two_choices_keep_the_longest_queue_short() -> None:
    """Mitzenmacher 2001: the fullest of n bins holds about log log n above the mean, not log n."""
    balance = LoadBalancer(100)
    for _ in range(10_000):
        balance.in_flight[balance.choose("least_loaded")] += 1
    assert max(balance.in_flight.values()) <= 100 + 6
    assert min(balance.in_flight.values()) >= 100 - 12


def test_hash_keeps_a_key_and_spreads_keys() -> None:
    balance, other = LoadBalancer(SIZE), LoadBalancer(SIZE)
    keys = [f"session-{number}" for number in range(N)]
    chosen = [balance.choose("hash", key=key) for key in keys]
    assert chosen == [other.choose("hash", key=key) for key in keys]
    assert all(abs(count - N / SIZE) < 180 for count in Counter(chosen).values())


def test_local_first_stays_on_the_node_while_it_can() -> None:
    near = [2, 5]
    balance = LoadBalancer(SIZE, lambda: near)
    assert [balance.choose("local_first") for _ in range(4)] == [2, 5, 2, 5]
    near.clear()
    assert sorted(balance.choose("local_first") for _ in range(SIZE)) == [*range(SIZE)]


def test_one_worker_is_always_chosen() -> None:
    balance = LoadBalancer(1, lambda: [0])
    for strategy in STRATEGIES:
        assert balance.choose(strategy, key="k") == 0  # type: ignore[arg-type]


def test_nonsense_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"strategy: expected one of round_robin, .*got 'best'"):
        LoadBalancer(2).choose("best")  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="key: strategy 'hash' needs one"):
        LoadBalancer(2).choose("hash")
