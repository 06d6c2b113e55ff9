"""Scopes and collections: made and dropped, their documents, and those that are not there."""

import time
import uuid

import couchbase.subdocument as subdoc
import pytest
from couchbase.exceptions import (
    AmbiguousTimeoutException,
    CollectionAlreadyExistsException,
    CollectionNotFoundException,
    DocumentNotFoundException,
    ScopeAlreadyExistsException,
    ScopeNotFoundException,
    UnAmbiguousTimeoutException,
)
from couchbase.management.collections import CreateCollectionSettings
from couchbase.options import GetOptions, MutateInOptions, UpsertOptions
from couchbase.subdocument import StoreSemantics

from support import SHORT, seconds


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


@pytest.fixture
def scope_name(bucket):
    """A scope of its own, which is gone afterwards."""
    name = f"py-{uuid.uuid4().hex[:12]}"
    manager = bucket.collections()
    manager.create_scope(name)
    yield name
    try:
        manager.drop_scope(name)
    except ScopeNotFoundException:
        pass


def named(bucket, scope_name):
    """The collections of a scope, with their max expiry; nothing if there is no such scope."""
    found = [scope for scope in bucket.collections().get_all_scopes() if scope.name == scope_name]
    return {one.name: one.max_expiry for one in found[0].collections} if found else None


def test_scopes_and_collections_come_and_go(bucket, scope_name):
    manager = bucket.collections()
    assert named(bucket, scope_name) == {}
    manager.create_collection(scope_name, "one")
    manager.create_collection(scope_name, "two", CreateCollectionSettings(max_expiry=seconds(60)))
    assert named(bucket, scope_name) == {"one": seconds(0), "two": seconds(60)}
    manager.drop_collection(scope_name, "one")
    assert set(named(bucket, scope_name)) == {"two"}
    manager.drop_scope(scope_name)
    assert named(bucket, scope_name) is None


def test_what_exists_or_does_not_is_told(bucket, scope_name):
    manager = bucket.collections()
    manager.create_collection(scope_name, "one")
    with pytest.raises(ScopeAlreadyExistsException):
        manager.create_scope(scope_name)
    with pytest.raises(CollectionAlreadyExistsException):
        manager.create_collection(scope_name, "one")
    with pytest.raises(CollectionNotFoundException):
        manager.drop_collection(scope_name, "absent")
    with pytest.raises(ScopeNotFoundException):
        manager.drop_collection("absent", "one")
    with pytest.raises(ScopeNotFoundException):
        manager.create_collection("absent", "one")
    with pytest.raises(ScopeNotFoundException):
        manager.drop_scope("absent")


def test_documents_of_collections_are_apart(bucket, collection, scope_name, key):
    manager = bucket.collections()
    for name in ("one", "two"):
        manager.create_collection(scope_name, name)
    one, two = (bucket.scope(scope_name).collection(name) for name in ("one", "two"))
    collection.upsert(key, "default")
    one.insert(key, "one")
    assert (collection.get(key).content_as[str], one.get(key).content_as[str]) == ("default", "one")
    assert not two.exists(key).exists
    one.mutate_in(f"{key}:doc", (subdoc.upsert("a", 1),), MutateInOptions(store_semantics=StoreSemantics.UPSERT))
    assert one.lookup_in(f"{key}:doc", (subdoc.get("a"),)).content_as[int](0) == 1
    one.remove(key)
    assert collection.get(key).content_as[str] == "default"
    with pytest.raises(DocumentNotFoundException):
        one.get(key)


def test_a_collections_max_expiry_holds(bucket, scope_name, key):
    settings = CreateCollectionSettings(max_expiry=seconds(100))
    bucket.collections().create_collection(scope_name, "short", settings)
    short = bucket.scope(scope_name).collection("short")
    short.upsert(key, 1)
    expires = short.get(key, GetOptions(with_expiry=True)).expiryTime
    assert 0 < (expires.timestamp() if hasattr(expires, "timestamp") else expires) - time.time() <= 101


def test_a_dropped_collection_takes_nothing(bucket, scope_name, key):
    manager = bucket.collections()
    manager.create_collection(scope_name, "gone")
    gone = bucket.scope(scope_name).collection("gone")
    gone.upsert(key, 1)
    manager.drop_collection(scope_name, "gone")
    with pytest.raises((CollectionNotFoundException, UnAmbiguousTimeoutException)):
        gone.get(key, GetOptions(timeout=SHORT))
    # Made again, it is another one.
    manager.create_collection(scope_name, "gone")
    again = bucket.scope(scope_name).collection("gone")
    assert not again.exists(key).exists
    again.upsert(key, 2)
    assert again.get(key).content_as[int] == 2
