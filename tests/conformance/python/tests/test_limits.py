"""Longest keys, largest values, and what is over the line."""

import os

import pytest
from couchbase.exceptions import InvalidArgumentException
from couchbase.options import GetOptions, UpsertOptions
from couchbase.transcoder import RawBinaryTranscoder, RawStringTranscoder

from support import MIB, VALUE_TOO_LARGE, raises_code, seconds

LIMIT = 20 * MIB
RAW = RawBinaryTranscoder()
LONG = seconds(20)


def upsert_raw(collection, key, value):
    return collection.upsert(key, value, UpsertOptions(transcoder=RAW, timeout=LONG))


def test_key_of_one_byte(collection):
    collection.upsert("k", {"v": 1})
    assert collection.get("k").content_as[dict] == {"v": 1}


def test_key_of_250_bytes(collection, key):
    longest = key + "x" * (250 - len(key))
    collection.upsert(longest, {"v": 1})
    assert collection.get(longest).content_as[dict] == {"v": 1}


def test_key_of_251_bytes(collection, key):
    with pytest.raises(InvalidArgumentException):
        collection.upsert(key + "x" * (251 - len(key)), {"v": 1})


def test_read_with_a_key_of_251_bytes(collection, key):
    with pytest.raises(InvalidArgumentException):
        collection.get(key + "x" * (251 - len(key)))


def test_key_length_is_counted_in_bytes(collection, key):
    # 126 characters of two bytes each: 252 bytes.
    with pytest.raises(InvalidArgumentException):
        collection.upsert("é" * 126, {"v": 1})


def test_empty_key(collection):
    with pytest.raises(InvalidArgumentException):
        collection.upsert("", {"v": 1})


def test_empty_value(collection, key):
    upsert_raw(collection, key, b"")
    assert collection.get(key, GetOptions(transcoder=RAW)).value == b""


def test_value_of_20_mib(collection, key):
    value = os.urandom(MIB) * 20
    upsert_raw(collection, key, value)
    assert collection.get(key, GetOptions(transcoder=RAW, timeout=LONG)).value == value
    collection.remove(key)


def test_value_of_20_mib_and_a_byte(collection, key):
    value = os.urandom(MIB) * 20 + b"!"
    raises_code(VALUE_TOO_LARGE, lambda: upsert_raw(collection, key, value))
    assert not collection.exists(key).exists


def test_value_that_is_too_large_only_when_inflated(collection, key):
    # The SDK sends this as about 1 MiB of Snappy.
    raises_code(VALUE_TOO_LARGE, lambda: upsert_raw(collection, key, b"a" * (LIMIT + 1)))
    assert not collection.exists(key).exists


def test_append_beyond_20_mib(collection, key):
    upsert_raw(collection, key, b"a" * LIMIT)
    raises_code(VALUE_TOO_LARGE, lambda: collection.binary().append(key, b"!"))
    collection.remove(key)


def test_connection_works_after_a_value_that_is_too_large(collection, key):
    raises_code(VALUE_TOO_LARGE, lambda: upsert_raw(collection, key, os.urandom(MIB) * 20 + b"!"))
    text = UpsertOptions(transcoder=RawStringTranscoder())
    collection.upsert(key, "small", text)
    assert collection.get(key, GetOptions(transcoder=RawStringTranscoder())).value == "small"
