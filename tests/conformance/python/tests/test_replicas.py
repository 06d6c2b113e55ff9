"""Replica reads: the active copy answers, and beside it the replicas that have the document already."""

import pytest
from couchbase.exceptions import DocumentNotFoundException, DocumentUnretrievableException
from couchbase.subdocument import exists, get

from support import REPLICAS

DOC = {"v": 1, "list": [1, 2]}


def is_one_of_each(is_replica):
    """One answer of the active copy, and at most one of each replica."""
    assert is_replica.count(False) == 1
    assert is_replica.count(True) <= REPLICAS


def test_get_any_replica(collection, key):
    cas = collection.upsert(key, DOC).cas
    result = collection.get_any_replica(key)
    assert result.content_as[dict] == DOC
    assert result.cas == cas
    assert not result.is_replica or REPLICAS


def test_get_any_replica_of_a_missing_document(collection, key):
    with pytest.raises(DocumentUnretrievableException):
        collection.get_any_replica(key)


def test_get_all_replicas(collection, key):
    collection.upsert(key, DOC)
    results = list(collection.get_all_replicas(key))
    assert all(result.content_as[dict] == DOC for result in results)
    is_one_of_each([result.is_replica for result in results])


def test_get_all_replicas_of_a_missing_document(collection, key):
    with pytest.raises(DocumentNotFoundException):
        list(collection.get_all_replicas(key))


def test_lookup_in_any_replica(collection, key):
    collection.upsert(key, DOC)
    result = collection.lookup_in_any_replica(key, [get("list[1]"), exists("absent")])
    assert result.content_as[int](0) == 2
    assert not result.exists(1)
    assert not result.is_replica or REPLICAS


def test_lookup_in_all_replicas(collection, key):
    collection.upsert(key, DOC)
    results = list(collection.lookup_in_all_replicas(key, [get("v")]))
    assert all(result.content_as[int](0) == 1 for result in results)
    is_one_of_each([result.is_replica for result in results])
