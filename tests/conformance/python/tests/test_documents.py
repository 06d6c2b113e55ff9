"""Insert, upsert, replace, get, remove, exists, CAS and mutation tokens."""

import pytest
from couchbase.exceptions import (
    CasMismatchException,
    DocumentExistsException,
    DocumentNotFoundException,
)
from couchbase.options import GetOptions, RemoveOptions, ReplaceOptions

DOC = {"name": "stave", "count": 3, "nested": {"list": [1, 2.5, None, True], "empty": {}}}


def test_upsert_then_get(collection, key):
    result = collection.upsert(key, DOC)
    got = collection.get(key)
    assert got.content_as[dict] == DOC
    assert got.cas == result.cas != 0


def test_upsert_overwrites_and_changes_the_cas(collection, key):
    first = collection.upsert(key, {"v": 1})
    second = collection.upsert(key, {"v": 2})
    assert second.cas != first.cas
    assert collection.get(key).content_as[dict] == {"v": 2}


def test_cas_grows_from_write_to_write(collection, key):
    values = [collection.upsert(key, n).cas for n in range(20)]
    assert values == sorted(set(values))


def test_get_of_a_missing_document(collection, key):
    with pytest.raises(DocumentNotFoundException):
        collection.get(key)


def test_insert_then_get(collection, key):
    result = collection.insert(key, DOC)
    assert collection.get(key).cas == result.cas


def test_insert_of_an_existing_document(collection, key):
    collection.insert(key, {"v": 1})
    with pytest.raises(DocumentExistsException):
        collection.insert(key, {"v": 2})
    assert collection.get(key).content_as[dict] == {"v": 1}


def test_insert_after_remove(collection, key):
    collection.insert(key, {"v": 1})
    collection.remove(key)
    collection.insert(key, {"v": 2})
    assert collection.get(key).content_as[dict] == {"v": 2}


def test_replace(collection, key):
    collection.upsert(key, {"v": 1})
    collection.replace(key, {"v": 2})
    assert collection.get(key).content_as[dict] == {"v": 2}


def test_replace_of_a_missing_document(collection, key):
    with pytest.raises(DocumentNotFoundException):
        collection.replace(key, {"v": 1})


def test_replace_with_the_right_cas(collection, key):
    cas = collection.upsert(key, {"v": 1}).cas
    collection.replace(key, {"v": 2}, ReplaceOptions(cas=cas))
    assert collection.get(key).content_as[dict] == {"v": 2}


def test_replace_with_a_stale_cas(collection, key):
    stale = collection.upsert(key, {"v": 1}).cas
    collection.upsert(key, {"v": 2})
    with pytest.raises(CasMismatchException):
        collection.replace(key, {"v": 3}, ReplaceOptions(cas=stale))
    assert collection.get(key).content_as[dict] == {"v": 2}


def test_replace_with_a_cas_of_a_missing_document(collection, key):
    cas = collection.upsert(key, {"v": 1}).cas
    collection.remove(key)
    with pytest.raises(DocumentNotFoundException):
        collection.replace(key, {"v": 2}, ReplaceOptions(cas=cas))


def test_remove(collection, key):
    written = collection.upsert(key, {"v": 1})
    removed = collection.remove(key)
    assert removed.cas not in (0, written.cas)
    with pytest.raises(DocumentNotFoundException):
        collection.get(key)


def test_remove_of_a_missing_document(collection, key):
    with pytest.raises(DocumentNotFoundException):
        collection.remove(key)


def test_remove_twice(collection, key):
    collection.upsert(key, 1)
    collection.remove(key)
    with pytest.raises(DocumentNotFoundException):
        collection.remove(key)


def test_remove_with_the_right_cas(collection, key):
    cas = collection.upsert(key, {"v": 1}).cas
    collection.remove(key, RemoveOptions(cas=cas))
    assert not collection.exists(key).exists


def test_remove_with_a_stale_cas(collection, key):
    stale = collection.upsert(key, {"v": 1}).cas
    collection.upsert(key, {"v": 2})
    with pytest.raises(CasMismatchException):
        collection.remove(key, RemoveOptions(cas=stale))
    assert collection.exists(key).exists


def test_exists_of_a_document(collection, key):
    cas = collection.upsert(key, {"v": 1}).cas
    result = collection.exists(key)
    assert result.exists
    assert result.cas == cas


def test_exists_of_a_missing_document(collection, key):
    assert not collection.exists(key).exists


def test_exists_of_a_removed_document(collection, key):
    collection.upsert(key, 1)
    collection.remove(key)
    assert not collection.exists(key).exists


@pytest.mark.parametrize("write", ["upsert", "insert", "replace", "remove"])
def test_mutation_token(collection, server, key, write):
    if write in ("replace", "remove"):
        collection.upsert(key, 0)
    operation = getattr(collection, write)
    result = operation(key) if write == "remove" else operation(key, {"v": 1})
    token = result.mutation_token()
    assert token.bucket_name == server["STAVE_BUCKET"]
    assert 0 <= token.partition_id < 1024
    assert token.partition_uuid != 0
    assert token.sequence_number > 0


def test_mutation_tokens_of_one_key_grow_in_one_vbucket(collection, key):
    first = collection.upsert(key, 1).mutation_token()
    second = collection.upsert(key, 2).mutation_token()
    assert second.partition_id == first.partition_id
    assert second.partition_uuid == first.partition_uuid
    assert second.sequence_number > first.sequence_number


def test_get_with_projection(collection, key):
    collection.upsert(key, DOC)
    got = collection.get(key, GetOptions(project=["name", "nested.list"]))
    assert got.content_as[dict] == {"name": "stave", "nested": {"list": [1, 2.5, None, True]}}


def test_get_with_projection_leaves_out_a_missing_path(collection, key):
    collection.upsert(key, DOC)
    got = collection.get(key, GetOptions(project=["name", "absent"]))
    assert got.content_as[dict] == {"name": "stave"}


def test_get_with_more_projections_than_one_lookup_holds(collection, key):
    wide = {f"field{n}": n for n in range(24)}
    collection.upsert(key, wide)
    got = collection.get(key, GetOptions(project=[f"field{n}" for n in range(20)]))
    assert got.content_as[dict] == {f"field{n}": n for n in range(20)}


def test_get_with_projection_of_a_missing_document(collection, key):
    with pytest.raises(DocumentNotFoundException):
        collection.get(key, GetOptions(project=["name"]))
