"""Range, prefix and sampling scans, with documents and without."""

import uuid

import pytest
from couchbase.exceptions import InvalidArgumentException
from couchbase.kv_range_scan import PrefixScan, RangeScan, SamplingScan, ScanTerm
from couchbase.mutation_state import MutationState
from couchbase.options import ScanOptions

from support import seconds


@pytest.fixture(scope="module")
def documents(collection):
    """Sixty documents with a prefix of their own, and what the server must have saved to show them all."""
    prefix = f"scan:{uuid.uuid4().hex}:"
    state = MutationState()
    stored = {}
    for n in range(60):
        key = f"{prefix}{n:02}"
        state.add_mutation_token(collection.upsert(key, {"n": n}).mutation_token())
        stored[key] = {"n": n}
    return prefix, stored, state


def options(state, **others):
    return ScanOptions(consistent_with=state, timeout=seconds(20), **others)


def test_prefix_with_documents(collection, documents):
    prefix, stored, state = documents
    found = {one.id: one.content_as[dict] for one in collection.scan(PrefixScan(prefix), options(state))}
    assert found == stored


def test_prefix_with_keys_only(collection, documents):
    prefix, stored, state = documents
    found = [one.id for one in collection.scan(PrefixScan(prefix), options(state, ids_only=True))]
    assert sorted(found) == sorted(stored)


def test_small_batches(collection, documents):
    prefix, stored, state = documents
    scan = collection.scan(PrefixScan(prefix), options(state, batch_item_limit=1, concurrency=4))
    assert sorted(one.id for one in scan) == sorted(stored)


def test_range_with_exclusive_ends(collection, documents):
    prefix, _, state = documents
    scan = RangeScan(ScanTerm(prefix + "10", exclusive=True), ScanTerm(prefix + "20", exclusive=True))
    found = sorted(one.id for one in collection.scan(scan, options(state, ids_only=True)))
    assert found == [f"{prefix}{n}" for n in range(11, 20)]


def test_range_without_documents(collection, documents):
    prefix, _, state = documents
    scan = RangeScan(ScanTerm(prefix + "x"), ScanTerm(prefix + "y"))
    assert list(collection.scan(scan, options(state))) == []


def test_metadata(collection, documents):
    prefix, _, state = documents
    key = prefix + "00"
    expected = collection.get(key).cas
    found = [one for one in collection.scan(PrefixScan(key), options(state))]
    assert [(one.id, one.cas) for one in found] == [(key, expected)]


def test_deleted_documents_are_not_shown(collection):
    prefix = f"scan:{uuid.uuid4().hex}:"
    state = MutationState()
    for n in range(4):
        state.add_mutation_token(collection.upsert(f"{prefix}{n}", n).mutation_token())
    state.add_mutation_token(collection.remove(prefix + "2").mutation_token())
    found = sorted(one.id for one in collection.scan(PrefixScan(prefix), options(state, ids_only=True)))
    assert found == [f"{prefix}{n}" for n in (0, 1, 3)]


def test_sample(collection, documents):
    _, _, state = documents
    found = {one.id for one in collection.scan(SamplingScan(10, 7), options(state, ids_only=True))}
    assert 1 <= len(found) <= 10
    assert found == {one.id for one in collection.scan(SamplingScan(10, 7), options(state, ids_only=True))}


def test_sample_of_nothing_is_refused(collection):
    with pytest.raises(InvalidArgumentException):
        collection.scan(SamplingScan(0))
