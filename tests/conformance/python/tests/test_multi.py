"""The multi operations: many keys in one call."""

import pytest
from couchbase.exceptions import DocumentExistsException, DocumentNotFoundException
from couchbase.options import (
    GetMultiOptions,
    IncrementMultiOptions,
    SignedInt64,
    UpsertMultiOptions,
    UpsertOptions,
)
from couchbase.transcoder import RawBinaryTranscoder

from support import assert_expires_in, seconds

MANY = 500


@pytest.fixture
def documents(key):
    return {f"{key}:{n}": {"n": n} for n in range(MANY)}


def test_upsert_multi_then_get_multi(collection, documents):
    written = collection.upsert_multi(documents)
    assert written.all_ok
    read = collection.get_multi(list(documents))
    assert read.all_ok
    assert {name: result.content_as[dict] for name, result in read.results.items()} == documents
    assert all(read.results[name].cas == written.results[name].cas for name in documents)


def test_get_multi_reports_each_missing_document(collection, key):
    collection.upsert(key, 1)
    result = collection.get_multi([key, key + ":absent"])
    assert not result.all_ok
    assert result.results[key].content_as[int] == 1
    assert set(result.exceptions) == {key + ":absent"}
    assert isinstance(result.exceptions[key + ":absent"], DocumentNotFoundException)


def test_get_multi_raises_when_asked_to(collection, key):
    with pytest.raises(DocumentNotFoundException):
        collection.get_multi([key], GetMultiOptions(return_exceptions=False))


def test_insert_multi_reports_each_existing_document(collection, key):
    collection.upsert(key, 1)
    result = collection.insert_multi({key: 2, key + ":new": 2})
    assert isinstance(result.exceptions[key], DocumentExistsException)
    assert collection.get(key).content_as[int] == 1
    assert collection.get(key + ":new").content_as[int] == 2


def test_replace_multi(collection, documents):
    collection.upsert_multi(documents)
    assert collection.replace_multi({name: "new" for name in documents}).all_ok
    read = collection.get_multi(list(documents))
    assert {result.content_as[str] for result in read.results.values()} == {"new"}


def test_remove_multi_then_exists_multi(collection, documents):
    collection.upsert_multi(documents)
    assert collection.remove_multi(list(documents)).all_ok
    found = collection.exists_multi(list(documents))
    assert not any(result.exists for result in found.results.values())


def test_touch_multi(collection, key):
    names = [f"{key}:{n}" for n in range(10)]
    collection.upsert_multi({name: 1 for name in names})
    assert collection.touch_multi(names, seconds(100)).all_ok
    for name in names:
        assert_expires_in(collection, name, 100)


def test_get_and_lock_multi_then_unlock_multi(collection, key):
    names = [f"{key}:{n}" for n in range(10)]
    collection.upsert_multi({name: 1 for name in names})
    locked = collection.get_and_lock_multi(names, seconds(20))
    assert locked.all_ok
    collection.unlock_multi(locked)
    assert collection.upsert_multi({name: 2 for name in names}).all_ok


def test_options_for_one_key(collection, key):
    names = [f"{key}:{n}" for n in range(2)]
    options = UpsertMultiOptions(per_key_options={names[1]: UpsertOptions(expiry=seconds(100))})
    assert collection.upsert_multi({name: 1 for name in names}, options).all_ok
    assert_expires_in(collection, names[1], 100)


def test_append_multi_and_prepend_multi(collection, key):
    raw = RawBinaryTranscoder()
    names = [f"{key}:{n}" for n in range(10)]
    collection.upsert_multi({name: b"-" for name in names}, UpsertMultiOptions(transcoder=raw))
    assert collection.binary().append_multi({name: b"z" for name in names}).all_ok
    assert collection.binary().prepend_multi({name: b"a" for name in names}).all_ok
    read = collection.get_multi(names, GetMultiOptions(transcoder=raw))
    assert {result.value for result in read.results.values()} == {b"a-z"}


def test_increment_multi(collection, key):
    names = [f"{key}:{n}" for n in range(10)]
    options = IncrementMultiOptions(initial=SignedInt64(5))
    collection.binary().increment_multi(names, options)
    result = collection.binary().increment_multi(names, options)
    assert {counter.content for counter in result.results.values()} == {6}
