from collections import Counter

import hypothesis.strategies as st
from hypothesis import given

from bray_model.distributed.relays import RelayTree


def test_each_parent_has_so_many_children():
    tree = RelayTree(2)
    parents = [tree.join(name) for name in "abcdefg"]
    assert parents == [None, None, "a", "a", "b", "b", "c"]


def test_who_joins_again_gets_one_place_and_keeps_its_children():
    tree = RelayTree(1)
    assert [tree.join(name) for name in "abc"] == [None, "a", "b"]
    tree.leave("a")
    assert tree.join("c") is None, "b, its parent, is not reached from the root"
    assert tree.join("b") == "c"
    assert tree.join("a") == "b"
    tree.leave("unknown")


@given(st.integers(1, 3), st.lists(st.tuples(st.booleans(), st.integers(0, 7)), max_size=60))
def test_all_members_hang_on_the_root_and_no_parent_has_too_many(width, steps):
    tree = RelayTree(width)
    parents: dict[str, str | None] = {}
    for joins, number in steps:
        name = str(number)
        if joins:
            parents[name] = tree.join(name)
        elif name in parents:
            tree.leave(name)
            lost = {name}
            del parents[name]
            while lost:  # those that missed it ask again, as relays do
                orphans = [child for child, parent in parents.items() if parent in lost]
                for child in orphans:
                    parents[child] = tree.join(child)
                lost = set()
    assert all(count <= width for count in Counter(parents.values()).values())
    for name in parents:
        seen = set()
        at: str | None = name
        while at is not None:
            assert at not in seen, "a cycle"
            seen.add(at)
            at = parents[at]
