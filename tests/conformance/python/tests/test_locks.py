"""Pessimistic locks: get-and-lock, unlock, and what a locked document refuses."""

import time

import pytest
from couchbase.exceptions import (
    CasMismatchException,
    DocumentLockedException,
    DocumentNotFoundException,
    DocumentNotLockedException,
)
from couchbase.options import (
    GetAndLockOptions,
    MutateInOptions,
    RemoveOptions,
    ReplaceOptions,
    TouchOptions,
    UnlockOptions,
    UpsertOptions,
)
from couchbase.subdocument import upsert as sd_upsert

from support import EXPIRY_DEADLINE_S, SHORT, seconds


@pytest.fixture
def locked(collection, key):
    """A document that stays locked for the length of a test; gives the CAS that unlocks it."""
    collection.upsert(key, {"v": 1})
    return collection.get_and_lock(key, seconds(20)).cas


def test_get_and_lock_returns_the_document(collection, key):
    before = collection.upsert(key, {"v": 1}).cas
    got = collection.get_and_lock(key, seconds(5))
    assert got.content_as[dict] == {"v": 1}
    assert got.cas not in (0, before)


def test_get_and_lock_of_a_missing_document(collection, key):
    with pytest.raises(DocumentNotFoundException):
        collection.get_and_lock(key, seconds(5))


def test_locked_document_is_readable(collection, key, locked):
    assert collection.get(key).content_as[dict] == {"v": 1}


def test_locked_document_hides_its_cas(collection, key, locked):
    assert collection.get(key).cas != locked


# The SDK retries an operation on a locked document until its timeout and then says why it could not succeed.
def test_get_and_lock_of_a_locked_document(collection, key, locked):
    with pytest.raises(DocumentLockedException):
        collection.get_and_lock(key, seconds(5), GetAndLockOptions(timeout=SHORT))


def test_upsert_of_a_locked_document(collection, key, locked):
    with pytest.raises(DocumentLockedException):
        collection.upsert(key, {"v": 2}, UpsertOptions(timeout=SHORT))
    assert collection.get(key).content_as[dict] == {"v": 1}


def test_remove_of_a_locked_document(collection, key, locked):
    with pytest.raises(DocumentLockedException):
        collection.remove(key, RemoveOptions(timeout=SHORT))


def test_touch_of_a_locked_document(collection, key, locked):
    with pytest.raises(DocumentLockedException):
        collection.touch(key, seconds(10), TouchOptions(timeout=SHORT))


def test_mutate_in_of_a_locked_document(collection, key, locked):
    with pytest.raises(DocumentLockedException):
        collection.mutate_in(key, [sd_upsert("w", 2)], MutateInOptions(timeout=SHORT))


def test_replace_with_the_lock_cas_unlocks(collection, key, locked):
    collection.replace(key, {"v": 2}, ReplaceOptions(cas=locked))
    collection.upsert(key, {"v": 3}, UpsertOptions(timeout=SHORT))
    assert collection.get(key).content_as[dict] == {"v": 3}


def test_remove_with_the_lock_cas(collection, key, locked):
    collection.remove(key, RemoveOptions(cas=locked))
    assert not collection.exists(key).exists


def test_unlock(collection, key, locked):
    collection.unlock(key, locked)
    collection.upsert(key, {"v": 2}, UpsertOptions(timeout=SHORT))
    assert collection.get(key).content_as[dict] == {"v": 2}


def test_unlock_with_the_wrong_cas(collection, key, locked):
    with pytest.raises(CasMismatchException):
        collection.unlock(key, locked + 1, UnlockOptions(timeout=SHORT))
    with pytest.raises(DocumentLockedException):
        collection.upsert(key, {"v": 2}, UpsertOptions(timeout=SHORT))


def test_unlock_of_an_unlocked_document(collection, key):
    cas = collection.upsert(key, {"v": 1}).cas
    with pytest.raises(DocumentNotLockedException):
        collection.unlock(key, cas, UnlockOptions(timeout=SHORT))


def test_unlock_of_a_missing_document(collection, key):
    with pytest.raises(DocumentNotFoundException):
        collection.unlock(key, 1, UnlockOptions(timeout=SHORT))


def test_lock_ends_by_itself(collection, key):
    collection.upsert(key, {"v": 1})
    collection.get_and_lock(key, seconds(1))
    started = time.monotonic()
    collection.upsert(key, {"v": 2}, UpsertOptions(timeout=seconds(EXPIRY_DEADLINE_S)))
    assert time.monotonic() - started < EXPIRY_DEADLINE_S
    assert collection.get(key).content_as[dict] == {"v": 2}
