"""The SDK's lists, maps, sets and queues, which are made of sub-document operations."""

import pytest
from couchbase.exceptions import QueueEmpty


def test_list(collection, key):
    items = collection.couchbase_list(key)
    items.append("b")
    items.prepend("a")
    items.append("c")
    items.set_at(1, "B")
    assert items.get_at(1) == "B"
    assert items.size() == 3
    items.remove_at(0)
    assert collection.get(key).content_as[list] == ["B", "c"]


def test_map(collection, key):
    fields = collection.couchbase_map(key)
    fields.add("one", 1)
    fields.add("two", 2)
    assert fields.get("two") == 2
    assert fields.exists("one")
    fields.remove("one")
    assert not fields.exists("one")
    assert fields.size() == 1


def test_set(collection, key):
    members = collection.couchbase_set(key)
    members.add("a")
    members.add("a")
    members.add("b")
    assert members.size() == 2
    assert members.contains("a")
    members.remove("a")
    assert not members.contains("a")


def test_queue(collection, key):
    queue = collection.couchbase_queue(key)
    queue.push(1)
    queue.push(2)
    assert [queue.pop(), queue.pop()] == [1, 2]
    with pytest.raises(QueueEmpty):
        queue.pop()
