"""Extended attributes, virtual attributes, macros and deleted documents."""

import pytest
from couchbase.exceptions import DocumentNotFoundException, PathExistsException, PathNotFoundException
from couchbase.options import LookupInOptions, MutateInOptions, UpsertOptions
from couchbase.subdocument import (
    LookupInMacro,
    MutationMacro,
    StoreSemantics,
    array_append,
    convert_macro_cas_to_cas,
    exists,
    get,
    increment,
    insert,
    remove,
    replace,
    upsert,
)
from couchbase.transcoder import RawJSONTranscoder

from support import crc32c, raises_code, seconds, wait_until_gone

XATTR_INVALID_KEY_COMBO = 126
XATTR_CANNOT_MODIFY_VIRTUAL_ATTRIBUTE = 128
DOC = {"v": 1}


@pytest.fixture
def doc(collection, key):
    return collection.upsert(key, DOC)


def xattr(collection, key, path):
    return collection.lookup_in(key, [get(path, xattr=True)]).content_as[lambda item: item](0)


def test_upsert_and_get(collection, key, doc):
    collection.mutate_in(key, [upsert("meta", {"a": 1}, xattr=True)])
    assert xattr(collection, key, "meta") == {"a": 1}
    assert xattr(collection, key, "meta.a") == 1


def test_xattrs_are_not_part_of_the_body(collection, key, doc):
    collection.mutate_in(key, [upsert("meta", 1, xattr=True)])
    assert collection.get(key).content_as[dict] == DOC


def test_missing_xattr(collection, key, doc):
    with pytest.raises(PathNotFoundException):
        xattr(collection, key, "meta")


def test_exists(collection, key, doc):
    collection.mutate_in(key, [upsert("meta", {"a": 1}, xattr=True)])
    result = collection.lookup_in(key, [exists("meta.a", xattr=True), exists("meta.b", xattr=True)])
    assert result.exists(0)
    assert not result.exists(1)


def test_insert_of_an_existing_xattr(collection, key, doc):
    collection.mutate_in(key, [upsert("meta", 1, xattr=True)])
    with pytest.raises(PathExistsException):
        collection.mutate_in(key, [insert("meta", 2, xattr=True)])


def test_replace_and_remove(collection, key, doc):
    collection.mutate_in(key, [upsert("meta", {"a": 1, "b": 2}, xattr=True)])
    collection.mutate_in(key, [replace("meta.a", 9, xattr=True), remove("meta.b", xattr=True)])
    assert xattr(collection, key, "meta") == {"a": 9}


def test_array_and_counter(collection, key, doc):
    collection.mutate_in(key, [upsert("meta", {"l": [1], "n": 1}, xattr=True)])
    collection.mutate_in(key, [array_append("meta.l", 2, xattr=True), increment("meta.n", 4, xattr=True)])
    assert xattr(collection, key, "meta") == {"l": [1, 2], "n": 5}


def test_create_parents(collection, key, doc):
    collection.mutate_in(key, [upsert("meta.a.b", 1, xattr=True, create_parents=True)])
    assert xattr(collection, key, "meta") == {"a": {"b": 1}}


def test_xattr_and_body_in_one_call(collection, key, doc):
    collection.mutate_in(key, [upsert("meta", "x", xattr=True), upsert("v", 2)])
    result = collection.lookup_in(key, [get("meta", xattr=True), get("v")])
    assert result.content_as[str](0) == "x"
    assert result.content_as[int](1) == 2


def test_specs_may_be_given_in_any_order(collection, key, doc):
    # The server wants attributes first; the SDK sorts, and returns results at the caller's indexes.
    collection.mutate_in(key, [upsert("v", 2), upsert("meta", "x", xattr=True)])
    result = collection.lookup_in(key, [get("v"), get("meta", xattr=True)])
    assert result.content_as[int](0) == 2
    assert result.content_as[str](1) == "x"


def test_two_xattr_keys_in_one_call(collection, key, doc):
    raises_code(XATTR_INVALID_KEY_COMBO, lambda: collection.mutate_in(
        key, [upsert("one", 1, xattr=True), upsert("two", 2, xattr=True)]))


def test_xattrs_survive_an_upsert_through_mutate_in(collection, key, doc):
    collection.mutate_in(key, [upsert("meta", 1, xattr=True)])
    collection.mutate_in(key, [upsert("v", 2)])
    assert xattr(collection, key, "meta") == 1


def test_xattrs_survive_upsert_and_replace(collection, key, doc):
    collection.mutate_in(key, [upsert("meta", 1, xattr=True)])
    collection.upsert(key, {"v": 2})
    collection.replace(key, {"v": 3})
    assert xattr(collection, key, "meta") == 1


def test_document_created_with_an_xattr_only(collection, key):
    collection.mutate_in(key, [upsert("meta", 1, xattr=True)],
                         MutateInOptions(store_semantics=StoreSemantics.UPSERT))
    assert xattr(collection, key, "meta") == 1
    assert collection.get(key).content_as[dict] == {}


def test_macro_cas(collection, key, doc):
    result = collection.mutate_in(key, [upsert("meta", MutationMacro.cas())])
    assert convert_macro_cas_to_cas(xattr(collection, key, "meta")) == result.cas


def test_macro_seqno(collection, key, doc):
    result = collection.mutate_in(key, [upsert("meta", MutationMacro.seq_no())])
    assert int(xattr(collection, key, "meta"), 16) == result.mutation_token().sequence_number


def test_macro_value_crc32c(collection, key):
    text = b'{"v":1,"w":[true,null]}'
    collection.upsert(key, text, UpsertOptions(transcoder=RawJSONTranscoder()))
    collection.mutate_in(key, [upsert("meta", MutationMacro.value_crc32c())])
    assert int(xattr(collection, key, "meta"), 16) == crc32c(text)


def test_macros_below_a_created_parent(collection, key, doc):
    result = collection.mutate_in(key, [
        upsert("meta.cas", MutationMacro.cas(), create_parents=True),
        upsert("meta.seqno", MutationMacro.seq_no(), create_parents=True),
    ])
    assert convert_macro_cas_to_cas(xattr(collection, key, "meta.cas")) == result.cas
    assert int(xattr(collection, key, "meta.seqno"), 16) == result.mutation_token().sequence_number


def test_macro_text_without_expansion_is_stored_as_it_is(collection, key, doc):
    collection.mutate_in(key, [upsert("meta", "${Mutation.CAS}", xattr=True)])
    assert xattr(collection, key, "meta") == "${Mutation.CAS}"


def test_document_attributes(collection, key):
    text = b'{"v":1}'
    result = collection.upsert(key, text, UpsertOptions(transcoder=RawJSONTranscoder(), expiry=seconds(1000)))
    document = xattr(collection, key, LookupInMacro.document())
    assert int(document["CAS"], 16) == result.cas
    assert int(document["seqno"], 16) == result.mutation_token().sequence_number
    assert int(document["vbucket_uuid"], 16) == result.mutation_token().partition_uuid
    assert int(document["value_crc32c"], 16) == crc32c(text)
    assert document["value_bytes"] == len(text)
    assert document["exptime"] > 1000
    assert document["deleted"] is False
    assert "json" in document["datatype"]


def test_document_attributes_one_by_one(collection, key):
    doc = collection.upsert(key, b'{"v":1}', UpsertOptions(transcoder=RawJSONTranscoder()))
    result = collection.lookup_in(key, [
        get(LookupInMacro.cas(), xattr=True),
        get(LookupInMacro.seq_no(), xattr=True),
        get(LookupInMacro.is_deleted(), xattr=True),
        get(LookupInMacro.value_size_bytes(), xattr=True),
        get(LookupInMacro.rev_id(), xattr=True),
        get(LookupInMacro.last_modified(), xattr=True),
        get(LookupInMacro.expiry_time(), xattr=True),
    ])
    assert int(result.content_as[str](0), 16) == doc.cas
    assert int(result.content_as[str](1), 16) == doc.mutation_token().sequence_number
    assert result.content_as[bool](2) is False
    assert result.content_as[int](3) == len('{"v":1}')
    assert int(result.content_as[str](4)) > 0
    assert int(result.content_as[str](5)) > 0
    assert result.content_as[int](6) == 0


def test_virtual_attribute_is_read_only(collection, key, doc):
    raises_code(XATTR_CANNOT_MODIFY_VIRTUAL_ATTRIBUTE, lambda: collection.mutate_in(
        key, [upsert("$document.x", 1, xattr=True)]))


def test_system_xattr_of_a_removed_document(collection, key, doc):
    collection.mutate_in(key, [upsert("_sys", "kept", xattr=True)])
    collection.remove(key)
    with pytest.raises(DocumentNotFoundException):
        xattr(collection, key, "_sys")
    result = collection.lookup_in(key, [get("_sys", xattr=True)], LookupInOptions(access_deleted=True))
    assert result.content_as[str](0) == "kept"


def test_user_xattr_is_gone_with_the_document(collection, key, doc):
    collection.mutate_in(key, [upsert("meta", 1, xattr=True)])
    collection.mutate_in(key, [upsert("_sys", 1, xattr=True)])
    collection.remove(key)
    result = collection.lookup_in(key, [get("meta", xattr=True)], LookupInOptions(access_deleted=True))
    with pytest.raises(PathNotFoundException):
        result.content_as[int](0)


def test_xattrs_of_an_expired_document(collection, key):
    collection.upsert(key, DOC, UpsertOptions(expiry=seconds(1)))
    collection.mutate_in(key, [upsert("_sys", "kept", xattr=True)], MutateInOptions(preserve_expiry=True))
    wait_until_gone(collection, key)
    result = collection.lookup_in(key, [get("_sys", xattr=True)], LookupInOptions(access_deleted=True))
    assert result.content_as[str](0) == "kept"
