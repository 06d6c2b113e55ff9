"""Append, prepend and the counters of the binary collection."""

import pytest
from couchbase.exceptions import CasMismatchException, DeltaInvalidException, DocumentNotFoundException
from couchbase.options import (
    AppendOptions,
    DecrementOptions,
    DeltaValue,
    GetOptions,
    IncrementOptions,
    PrependOptions,
    SignedInt64,
    UpsertOptions,
)
from couchbase.transcoder import RawBinaryTranscoder

RAW = RawBinaryTranscoder()
DO_NOT_CREATE = SignedInt64(-1)


@pytest.fixture
def binary(collection):
    return collection.binary()


def store(collection, key, value):
    return collection.upsert(key, value, UpsertOptions(transcoder=RAW))


def stored(collection, key):
    return collection.get(key, GetOptions(transcoder=RAW)).value


def increment(binary, key, delta=1, initial=0):
    return binary.increment(key, IncrementOptions(delta=DeltaValue(delta), initial=SignedInt64(initial)))


def decrement(binary, key, delta=1, initial=0):
    return binary.decrement(key, DecrementOptions(delta=DeltaValue(delta), initial=SignedInt64(initial)))


def test_append(collection, binary, key):
    before = store(collection, key, b"middle").cas
    result = binary.append(key, b"-end")
    assert result.cas not in (0, before)
    assert stored(collection, key) == b"middle-end"


def test_prepend(collection, binary, key):
    store(collection, key, b"middle")
    binary.prepend(key, b"begin-")
    assert stored(collection, key) == b"begin-middle"


def test_append_of_bytes_that_are_not_text(collection, binary, key):
    store(collection, key, b"\x00\x01")
    binary.append(key, b"\xff\xfe\x00")
    assert stored(collection, key) == b"\x00\x01\xff\xfe\x00"


def test_append_keeps_the_flags(collection, binary, key):
    store(collection, key, b"a")
    flags = collection.get(key, GetOptions(transcoder=RAW)).flags
    binary.append(key, b"b")
    assert collection.get(key, GetOptions(transcoder=RAW)).flags == flags


def test_append_to_a_missing_document(binary, key):
    with pytest.raises(DocumentNotFoundException):
        binary.append(key, b"x")


def test_prepend_to_a_missing_document(binary, key):
    with pytest.raises(DocumentNotFoundException):
        binary.prepend(key, b"x")


def test_append_with_the_right_cas(collection, binary, key):
    cas = store(collection, key, b"a").cas
    binary.append(key, b"b", AppendOptions(cas=cas))
    assert stored(collection, key) == b"ab"


def test_append_with_a_stale_cas(collection, binary, key):
    stale = store(collection, key, b"a").cas
    store(collection, key, b"b")
    with pytest.raises(CasMismatchException):
        binary.append(key, b"c", AppendOptions(cas=stale))
    assert stored(collection, key) == b"b"


def test_prepend_with_a_stale_cas(collection, binary, key):
    stale = store(collection, key, b"a").cas
    store(collection, key, b"b")
    with pytest.raises(CasMismatchException):
        binary.prepend(key, b"c", PrependOptions(cas=stale))
    assert stored(collection, key) == b"b"


def test_append_returns_a_mutation_token(collection, binary, key):
    first = store(collection, key, b"a").mutation_token()
    second = binary.append(key, b"b").mutation_token()
    assert second.sequence_number > first.sequence_number


def test_increment_creates_with_the_initial_value(binary, key):
    assert increment(binary, key, delta=5, initial=100).content == 100


def test_increment_adds_the_delta(binary, key):
    increment(binary, key, initial=100)
    assert increment(binary, key, delta=5).content == 105
    assert increment(binary, key).content == 106


def test_increment_without_initial_does_not_create(collection, binary, key):
    with pytest.raises(DocumentNotFoundException):
        binary.increment(key, IncrementOptions(initial=DO_NOT_CREATE))
    assert not collection.exists(key).exists


def test_decrement_creates_with_the_initial_value(binary, key):
    assert decrement(binary, key, delta=5, initial=100).content == 100


def test_decrement_subtracts_the_delta(binary, key):
    increment(binary, key, initial=100)
    assert decrement(binary, key, delta=30).content == 70


def test_decrement_stops_at_zero(binary, key):
    increment(binary, key, initial=3)
    assert decrement(binary, key, delta=10).content == 0
    assert decrement(binary, key).content == 0


def test_decrement_without_initial_does_not_create(collection, binary, key):
    with pytest.raises(DocumentNotFoundException):
        binary.decrement(key, DecrementOptions(initial=DO_NOT_CREATE))
    assert not collection.exists(key).exists


def test_counter_is_stored_as_decimal_text(collection, binary, key):
    increment(binary, key, initial=41)
    increment(binary, key)
    assert collection.get(key).content_as[int] == 42


def test_counter_on_a_document_written_as_a_json_number(collection, binary, key):
    collection.upsert(key, 7)
    assert increment(binary, key, delta=3).content == 10


def test_counter_beyond_32_bits(binary, key):
    increment(binary, key, initial=2**40)
    assert increment(binary, key, delta=2**40).content == 2**41


def test_increment_of_a_document_that_is_not_a_number(collection, binary, key):
    collection.upsert(key, {"v": 1})
    with pytest.raises(DeltaInvalidException):
        increment(binary, key)
    assert collection.get(key).content_as[dict] == {"v": 1}


def test_decrement_of_a_document_that_is_not_a_number(collection, binary, key):
    collection.upsert(key, "seven")
    with pytest.raises(DeltaInvalidException):
        decrement(binary, key)


def test_counter_returns_cas_and_mutation_token(collection, binary, key):
    result = increment(binary, key, initial=1)
    assert result.cas == collection.get(key).cas != 0
    assert result.mutation_token().sequence_number > 0
