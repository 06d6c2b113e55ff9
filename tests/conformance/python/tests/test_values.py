"""What goes in comes out: transcoders, compressible values, Unicode in keys and values."""

import os

import pytest
from couchbase.exceptions import ValueFormatException
from couchbase.options import GetOptions, InsertOptions, ReplaceOptions, UpsertOptions
from couchbase.transcoder import (
    LegacyTranscoder,
    RawBinaryTranscoder,
    RawJSONTranscoder,
    RawStringTranscoder,
)

JSON_FORMAT, BINARY_FORMAT, STRING_FORMAT = 2, 3, 4
UNICODE = ["ключ", "鍵", "🗝️ 🇪🇺", "e\u0301 and é", "\u202eright to left", "tab\tand\nnewline", "\x01control"]
JSON_VALUES = [{}, [], {"a": {"b": [1, {"c": None}]}}, [1, 2.5, "x", None, False], "text", "", 0, -1, 2**53,
               1.5e300, True, False, None]


def format_of(result):
    return result.flags >> 24 & 0x0F


@pytest.mark.parametrize("value", JSON_VALUES, ids=repr)
def test_json_value_round_trip(collection, key, value):
    collection.upsert(key, value)
    got = collection.get(key)
    assert got.value == value
    assert format_of(got) == JSON_FORMAT


def test_raw_json_is_returned_byte_for_byte(collection, key):
    raw = RawJSONTranscoder()
    text = b'{ "spaces" :  1.0, "dup":1, "dup":2, "esc":"\\u0041" }'
    collection.upsert(key, text, UpsertOptions(transcoder=raw))
    got = collection.get(key, GetOptions(transcoder=raw))
    assert got.value == text
    assert format_of(got) == JSON_FORMAT


def test_raw_string_round_trip(collection, key):
    raw = RawStringTranscoder()
    collection.insert(key, "not {json", InsertOptions(transcoder=raw))
    got = collection.get(key, GetOptions(transcoder=raw))
    assert got.value == "not {json"
    assert format_of(got) == STRING_FORMAT


def test_raw_binary_round_trip(collection, key):
    raw = RawBinaryTranscoder()
    every_byte = bytes(range(256))
    collection.upsert(key, every_byte, UpsertOptions(transcoder=raw))
    got = collection.get(key, GetOptions(transcoder=raw))
    assert got.value == every_byte
    assert format_of(got) == BINARY_FORMAT


def test_legacy_transcoder_round_trip(collection, key):
    legacy = LegacyTranscoder()
    collection.upsert(key, b"\x80bytes", UpsertOptions(transcoder=legacy))
    assert collection.get(key, GetOptions(transcoder=legacy)).value == b"\x80bytes"


def test_flags_follow_the_last_write(collection, key):
    collection.upsert(key, "text", UpsertOptions(transcoder=RawStringTranscoder()))
    collection.replace(key, b"bytes", ReplaceOptions(transcoder=RawBinaryTranscoder()))
    assert format_of(collection.get(key, GetOptions(transcoder=RawBinaryTranscoder()))) == BINARY_FORMAT


def test_binary_document_is_refused_by_the_json_transcoder(collection, key):
    collection.upsert(key, b"\x00\x01", UpsertOptions(transcoder=RawBinaryTranscoder()))
    with pytest.raises(ValueFormatException):
        collection.get(key).value


def test_compressible_json_of_64_kib(collection, key):
    document = {"text": "stave " * (64 * 1024 // 6)}
    collection.upsert(key, document)
    assert collection.get(key).content_as[dict] == document


def test_compressible_binary_of_64_kib(collection, key):
    raw = RawBinaryTranscoder()
    value = b"0123456789abcdef" * 4096
    collection.upsert(key, value, UpsertOptions(transcoder=raw))
    assert collection.get(key, GetOptions(transcoder=raw)).value == value


def test_incompressible_binary_of_64_kib(collection, key):
    raw = RawBinaryTranscoder()
    value = os.urandom(64 * 1024)
    collection.upsert(key, value, UpsertOptions(transcoder=raw))
    assert collection.get(key, GetOptions(transcoder=raw)).value == value


def test_append_to_a_compressed_document(collection, key):
    raw = RawBinaryTranscoder()
    value = b"0123456789abcdef" * 4096
    collection.upsert(key, value, UpsertOptions(transcoder=raw))
    collection.binary().append(key, b"tail")
    assert collection.get(key, GetOptions(transcoder=raw)).value == value + b"tail"


@pytest.mark.parametrize("text", UNICODE, ids=ascii)
def test_unicode_key(collection, key, text):
    collection.upsert(key + text, {"v": text})
    assert collection.get(key + text).content_as[dict] == {"v": text}
    assert not collection.exists(key).exists


@pytest.mark.parametrize("text", UNICODE, ids=ascii)
def test_unicode_value(collection, key, text):
    collection.upsert(key, {text: text, "list": [text]})
    assert collection.get(key).content_as[dict] == {text: text, "list": [text]}


def test_keys_that_differ_only_in_normal_form_are_different(collection, key):
    collection.upsert(key + "\u00e9", 1)
    collection.upsert(key + "e\u0301", 2)
    assert collection.get(key + "\u00e9").content_as[int] == 1
    assert collection.get(key + "e\u0301").content_as[int] == 2
