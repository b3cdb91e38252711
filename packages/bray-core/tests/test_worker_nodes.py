from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from bray_core.remote.load_balancing import nodes_of_workers


def test_workers_are_in_proportion_to_cpus() -> None:
    assert Counter(nodes_of_workers(7, {"a": 1.0, "b": 2.0, "c": 4.0})) == {"a": 1, "b": 2, "c": 4}
    assert Counter(nodes_of_workers(3, {"a": 1.0, "b": 1.0, "c": 1.0})) == {"a": 1, "b": 1, "c": 1}
    assert nodes_of_workers(1, {"small": 1.0, "large": 64.0}) == ["large"]


def test_a_node_without_cpus_is_left_out_unless_there_is_no_other() -> None:
    assert nodes_of_workers(3, {"head": 0.0, "b": 2.0}) == ["b", "b", "b"]
    assert nodes_of_workers(2, {"head": 0.0}) == ["head", "head"]


@given(
    st.integers(1, 40),
    st.dictionaries(st.text(min_size=1), st.integers(1, 64), min_size=1, max_size=8),
)
def test_nobody_would_rather_have_another_node(num_workers: int, cpus: dict[str, int]) -> None:
    """No worker has fewer CPUs than one more would have had elsewhere."""
    homes = Counter(nodes_of_workers(num_workers, {node: float(n) for node, n in cpus.items()}))
    assert homes.total() == num_workers
    for home, count in homes.items():
        assert all(cpus[home] / count >= cpus[node] / (homes[node] + 1) for node in cpus)
