"""Scopes and collections that are not there."""

import pytest
from couchbase.exceptions import (
    AmbiguousTimeoutException,
    CollectionNotFoundException,
    ScopeNotFoundException,
    UnAmbiguousTimeoutException,
)
from couchbase.options import GetOptions, UpsertOptions

from support import SHORT


def test_default_collection_by_name(bucket, collection, key):
    collection.upsert(key, {"v": 1})
    assert bucket.scope("_default").collection("_default").get(key).content_as[dict] == {"v": 1}


# The SDK asks for the collection's id again until the operation's timeout, in case it is just being created.
def test_get_from_an_unknown_collection(bucket, key):
    with pytest.raises((CollectionNotFoundException, UnAmbiguousTimeoutException)):
        bucket.scope("_default").collection("absent").get(key, GetOptions(timeout=SHORT))


def test_upsert_to_an_unknown_collection(bucket, key):
    with pytest.raises((CollectionNotFoundException, AmbiguousTimeoutException, UnAmbiguousTimeoutException)):
        bucket.scope("_default").collection("absent").upsert(key, 1, UpsertOptions(timeout=SHORT))


def test_get_from_an_unknown_scope(bucket, key):
    with pytest.raises((ScopeNotFoundException, UnAmbiguousTimeoutException)):
        bucket.scope("absent").collection("absent").get(key, GetOptions(timeout=SHORT))


def test_default_collection_works_after_an_unknown_one(bucket, collection, key):
    with pytest.raises((CollectionNotFoundException, UnAmbiguousTimeoutException)):
        bucket.scope("_default").collection("absent").get(key, GetOptions(timeout=SHORT))
    collection.upsert(key, 1)
    assert collection.get(key).content_as[int] == 1
