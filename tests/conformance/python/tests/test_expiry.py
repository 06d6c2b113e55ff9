"""Expiry: set, read back, kept, cleared, and documents that go when it comes."""

import pytest
from couchbase.exceptions import DocumentNotFoundException
from couchbase.options import (
    IncrementOptions,
    InsertOptions,
    MutateInOptions,
    ReplaceOptions,
    SignedInt64,
    UpsertOptions,
)
from couchbase.subdocument import upsert as sd_upsert

from support import assert_expires_in, seconds, stored_expiry, wait_until_gone

DAY_S = 24 * 60 * 60


def test_document_without_expiry(collection, key):
    collection.upsert(key, 1)
    assert stored_expiry(collection, key) is None


def test_upsert_with_expiry(collection, key):
    collection.upsert(key, {"v": 1}, UpsertOptions(expiry=seconds(100)))
    assert_expires_in(collection, key, 100)


def test_insert_with_expiry(collection, key):
    collection.insert(key, {"v": 1}, InsertOptions(expiry=seconds(100)))
    assert_expires_in(collection, key, 100)


def test_replace_with_expiry(collection, key):
    collection.upsert(key, {"v": 1})
    collection.replace(key, {"v": 2}, ReplaceOptions(expiry=seconds(100)))
    assert_expires_in(collection, key, 100)


def test_expiry_beyond_thirty_days(collection, key):
    # From 30 days on the SDK sends a point in time instead of a number of seconds.
    collection.upsert(key, {"v": 1}, UpsertOptions(expiry=seconds(60 * DAY_S)))
    assert_expires_in(collection, key, 60 * DAY_S)


def test_upserted_document_expires(collection, key):
    collection.upsert(key, {"v": 1}, UpsertOptions(expiry=seconds(1)))
    wait_until_gone(collection, key)
    assert not collection.exists(key).exists


def test_inserted_document_expires_and_may_be_inserted_again(collection, key):
    collection.insert(key, {"v": 1}, InsertOptions(expiry=seconds(1)))
    wait_until_gone(collection, key)
    collection.insert(key, {"v": 2})
    assert collection.get(key).content_as[dict] == {"v": 2}


def test_replace_of_an_expired_document(collection, key):
    collection.upsert(key, {"v": 1}, UpsertOptions(expiry=seconds(1)))
    wait_until_gone(collection, key)
    with pytest.raises(DocumentNotFoundException):
        collection.replace(key, {"v": 2})


def test_touched_document_expires(collection, key):
    collection.upsert(key, {"v": 1})
    collection.touch(key, seconds(1))
    wait_until_gone(collection, key)


def test_touch_sets_an_expiry(collection, key):
    before = collection.upsert(key, {"v": 1}).cas
    result = collection.touch(key, seconds(100))
    assert result.cas not in (0, before)
    assert_expires_in(collection, key, 100)


def test_touch_with_zero_clears_the_expiry(collection, key):
    collection.upsert(key, {"v": 1}, UpsertOptions(expiry=seconds(100)))
    collection.touch(key, seconds(0))
    assert stored_expiry(collection, key) is None


def test_touch_of_a_missing_document(collection, key):
    with pytest.raises(DocumentNotFoundException):
        collection.touch(key, seconds(10))


def test_get_and_touch(collection, key):
    collection.upsert(key, {"v": 1})
    got = collection.get_and_touch(key, seconds(100))
    assert got.content_as[dict] == {"v": 1}
    assert_expires_in(collection, key, 100)


def test_get_and_touch_of_a_missing_document(collection, key):
    with pytest.raises(DocumentNotFoundException):
        collection.get_and_touch(key, seconds(10))


def test_upsert_clears_the_expiry(collection, key):
    collection.upsert(key, {"v": 1}, UpsertOptions(expiry=seconds(100)))
    collection.upsert(key, {"v": 2})
    assert stored_expiry(collection, key) is None


def test_upsert_preserves_the_expiry(collection, key):
    collection.upsert(key, {"v": 1}, UpsertOptions(expiry=seconds(100)))
    collection.upsert(key, {"v": 2}, UpsertOptions(preserve_expiry=True))
    assert collection.get(key).content_as[dict] == {"v": 2}
    assert_expires_in(collection, key, 100)


def test_upsert_that_preserves_uses_its_own_expiry_on_a_new_document(collection, key):
    collection.upsert(key, {"v": 1}, UpsertOptions(expiry=seconds(100), preserve_expiry=True))
    assert_expires_in(collection, key, 100)


def test_replace_preserves_the_expiry(collection, key):
    collection.upsert(key, {"v": 1}, UpsertOptions(expiry=seconds(100)))
    collection.replace(key, {"v": 2}, ReplaceOptions(preserve_expiry=True))
    assert_expires_in(collection, key, 100)


def test_mutate_in_preserves_the_expiry(collection, key):
    collection.upsert(key, {"v": 1}, UpsertOptions(expiry=seconds(100)))
    collection.mutate_in(key, [sd_upsert("w", 2)], MutateInOptions(preserve_expiry=True))
    assert_expires_in(collection, key, 100)


def test_mutate_in_with_expiry(collection, key):
    collection.upsert(key, {"v": 1})
    collection.mutate_in(key, [sd_upsert("w", 2)], MutateInOptions(expiry=seconds(100)))
    assert_expires_in(collection, key, 100)


def test_counter_created_with_expiry_expires(collection, key):
    collection.binary().increment(key, IncrementOptions(initial=SignedInt64(5), expiry=seconds(1)))
    wait_until_gone(collection, key)
