"""Replica reads on a bucket without replicas: the active copy answers."""

import pytest
from couchbase.exceptions import DocumentNotFoundException, DocumentUnretrievableException
from couchbase.subdocument import exists, get

DOC = {"v": 1, "list": [1, 2]}


def test_get_any_replica(collection, key):
    cas = collection.upsert(key, DOC).cas
    result = collection.get_any_replica(key)
    assert result.content_as[dict] == DOC
    assert result.cas == cas
    assert not result.is_replica


def test_get_any_replica_of_a_missing_document(collection, key):
    with pytest.raises(DocumentUnretrievableException):
        collection.get_any_replica(key)


def test_get_all_replicas(collection, key):
    collection.upsert(key, DOC)
    results = list(collection.get_all_replicas(key))
    assert [result.content_as[dict] for result in results] == [DOC]
    assert not results[0].is_replica


def test_get_all_replicas_of_a_missing_document(collection, key):
    with pytest.raises(DocumentNotFoundException):
        list(collection.get_all_replicas(key))


def test_lookup_in_any_replica(collection, key):
    collection.upsert(key, DOC)
    result = collection.lookup_in_any_replica(key, [get("list[1]"), exists("absent")])
    assert result.content_as[int](0) == 2
    assert not result.exists(1)
    assert not result.is_replica


def test_lookup_in_all_replicas(collection, key):
    collection.upsert(key, DOC)
    results = list(collection.lookup_in_all_replicas(key, [get("v")]))
    assert [result.content_as[int](0) for result in results] == [1]
    assert not results[0].is_replica
