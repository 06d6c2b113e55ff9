"""Sub-document writes on the document's body."""

import pytest
from couchbase.exceptions import (
    CasMismatchException,
    DocumentExistsException,
    DocumentNotFoundException,
    DocumentNotJsonException,
    InvalidArgumentException,
    InvalidValueException,
    PathExistsException,
    PathInvalidException,
    PathMismatchException,
    PathNotFoundException,
    PathTooBigException,
    ValueTooDeepException,
)
from couchbase.options import MutateInOptions, UpsertOptions
from couchbase.subdocument import (
    StoreSemantics,
    array_addunique,
    array_append,
    array_insert,
    array_prepend,
    decrement,
    increment,
    insert,
    remove,
    replace,
    upsert,
)
from couchbase.transcoder import RawBinaryTranscoder

DOC = {"name": "stave", "n": 10, "list": [1, 2, 3], "dict": {"a": 1}, "objects": [{"a": 1}]}


@pytest.fixture
def doc(collection, key):
    return collection.upsert(key, DOC)


def body(collection, key):
    return collection.get(key).content_as[dict]


def test_upsert_of_a_new_field(collection, key, doc):
    result = collection.mutate_in(key, [upsert("new", {"v": 1})])
    assert body(collection, key) == {**DOC, "new": {"v": 1}}
    assert result.cas == collection.get(key).cas != doc.cas


def test_upsert_of_an_existing_field(collection, key, doc):
    collection.mutate_in(key, [upsert("name", "oak")])
    assert body(collection, key)["name"] == "oak"


def test_upsert_below_a_missing_parent(collection, key, doc):
    with pytest.raises(PathNotFoundException):
        collection.mutate_in(key, [upsert("p.q.r", 1)])


def test_upsert_creates_parents(collection, key, doc):
    collection.mutate_in(key, [upsert("p.q.r", 1, create_parents=True)])
    assert body(collection, key)["p"] == {"q": {"r": 1}}


def test_upsert_below_a_scalar(collection, key, doc):
    with pytest.raises(PathMismatchException):
        collection.mutate_in(key, [upsert("n.x", 1)])


def test_upsert_of_an_array_element_is_an_invalid_path(collection, key, doc):
    with pytest.raises(PathInvalidException):
        collection.mutate_in(key, [upsert("list[1]", 9)])


def test_insert_of_a_new_field(collection, key, doc):
    collection.mutate_in(key, [insert("new", [1])])
    assert body(collection, key)["new"] == [1]


def test_insert_of_an_existing_field(collection, key, doc):
    with pytest.raises(PathExistsException):
        collection.mutate_in(key, [insert("name", 1)])
    assert body(collection, key) == DOC


def test_insert_creates_parents(collection, key, doc):
    collection.mutate_in(key, [insert("p.q", 1, create_parents=True)])
    assert body(collection, key)["p"] == {"q": 1}


def test_replace_of_an_existing_field(collection, key, doc):
    collection.mutate_in(key, [replace("dict.a", "x"), replace("list[1]", 9)])
    assert body(collection, key)["dict"] == {"a": "x"}
    assert body(collection, key)["list"] == [1, 9, 3]


def test_replace_of_a_missing_field(collection, key, doc):
    with pytest.raises(PathNotFoundException):
        collection.mutate_in(key, [replace("absent", 1)])


def test_replace_of_the_whole_document(collection, key, doc):
    collection.mutate_in(key, [replace("", {"all": "new"})])
    assert body(collection, key) == {"all": "new"}


def test_remove_of_a_field(collection, key, doc):
    collection.mutate_in(key, [remove("dict.a"), remove("list[-1]")])
    assert body(collection, key)["dict"] == {}
    assert body(collection, key)["list"] == [1, 2]


def test_remove_of_a_missing_field(collection, key, doc):
    with pytest.raises(PathNotFoundException):
        collection.mutate_in(key, [remove("absent")])


def test_remove_of_the_whole_document(collection, key, doc):
    collection.mutate_in(key, [remove("")])
    assert not collection.exists(key).exists


def test_array_append(collection, key, doc):
    collection.mutate_in(key, [array_append("list", 4), array_append("list", 5, 6)])
    assert body(collection, key)["list"] == [1, 2, 3, 4, 5, 6]


def test_array_prepend(collection, key, doc):
    collection.mutate_in(key, [array_prepend("list", 0), array_prepend("list", -2, -1)])
    assert body(collection, key)["list"] == [-2, -1, 0, 1, 2, 3]


def test_array_insert(collection, key, doc):
    collection.mutate_in(key, [array_insert("list[1]", "x", "y")])
    assert body(collection, key)["list"] == [1, "x", "y", 2, 3]


def test_array_insert_at_the_end(collection, key, doc):
    collection.mutate_in(key, [array_insert("list[3]", 4)])
    assert body(collection, key)["list"] == [1, 2, 3, 4]


def test_array_insert_beyond_the_end(collection, key, doc):
    with pytest.raises(PathNotFoundException):
        collection.mutate_in(key, [array_insert("list[4]", 5)])


def test_array_insert_without_an_index(collection, key, doc):
    with pytest.raises(PathInvalidException):
        collection.mutate_in(key, [array_insert("list", 5)])


def test_array_append_to_a_field_that_is_not_an_array(collection, key, doc):
    with pytest.raises(PathMismatchException):
        collection.mutate_in(key, [array_append("name", 1)])


def test_array_append_to_a_missing_array(collection, key, doc):
    with pytest.raises(PathNotFoundException):
        collection.mutate_in(key, [array_append("absent", 1)])


def test_array_append_creates_the_array(collection, key, doc):
    collection.mutate_in(key, [array_append("p.q", 1, create_parents=True)])
    assert body(collection, key)["p"] == {"q": [1]}


def test_array_append_to_the_root(collection, key):
    collection.upsert(key, [1])
    collection.mutate_in(key, [array_append("", 2)])
    assert collection.get(key).content_as[list] == [1, 2]


def test_array_addunique(collection, key, doc):
    collection.mutate_in(key, [array_addunique("list", 4)])
    assert body(collection, key)["list"] == [1, 2, 3, 4]


def test_array_addunique_of_a_member(collection, key, doc):
    with pytest.raises(PathExistsException):
        collection.mutate_in(key, [array_addunique("list", 2)])


def test_array_addunique_of_an_object(collection, key, doc):
    with pytest.raises(InvalidValueException):
        collection.mutate_in(key, [array_addunique("list", {"a": 1})])


def test_array_addunique_to_an_array_of_objects(collection, key, doc):
    with pytest.raises(PathMismatchException):
        collection.mutate_in(key, [array_addunique("objects", 1)])


def test_increment(collection, key, doc):
    result = collection.mutate_in(key, [increment("n", 5)])
    assert result.content_as[int](0) == 15
    assert body(collection, key)["n"] == 15


def test_decrement_goes_below_zero(collection, key, doc):
    result = collection.mutate_in(key, [decrement("n", 25)])
    assert result.content_as[int](0) == -15


def test_increment_creates_the_number(collection, key, doc):
    result = collection.mutate_in(key, [increment("hits", 3), increment("p.q", 4, create_parents=True)])
    assert result.content_as[int](0) == 3
    assert result.content_as[int](1) == 4


def test_increment_of_text(collection, key, doc):
    with pytest.raises(PathMismatchException):
        collection.mutate_in(key, [increment("name", 1)])


def test_increment_past_the_largest_number(collection, key, doc):
    with pytest.raises(InvalidValueException):
        collection.mutate_in(key, [increment("n", 2**63 - 1)])


def test_path_with_too_many_components(collection, key, doc):
    with pytest.raises(PathTooBigException):
        collection.mutate_in(key, [upsert(".".join("a" * 33), 1, create_parents=True)])


def test_value_nested_too_deeply(collection, key, doc):
    value = 1
    for _ in range(40):
        value = [value]
    with pytest.raises(ValueTooDeepException):
        collection.mutate_in(key, [array_append("list", value)])


def test_document_that_is_not_json(collection, key):
    collection.upsert(key, b"\x00\x01", UpsertOptions(transcoder=RawBinaryTranscoder()))
    with pytest.raises(DocumentNotJsonException):
        collection.mutate_in(key, [upsert("a", 1)])


def test_missing_document(collection, key):
    with pytest.raises(DocumentNotFoundException):
        collection.mutate_in(key, [upsert("a", 1)])


def test_one_failure_undoes_everything(collection, key, doc):
    with pytest.raises(PathNotFoundException):
        collection.mutate_in(key, [upsert("new", 1), remove("name"), replace("absent", 1)])
    assert body(collection, key) == DOC
    assert collection.get(key).cas == doc.cas


def test_later_specs_see_earlier_ones(collection, key, doc):
    collection.mutate_in(key, [insert("box", {}), insert("box.a", []), array_append("box.a", 1)])
    assert body(collection, key)["box"] == {"a": [1]}


def test_results_are_at_the_index_of_their_spec(collection, key, doc):
    result = collection.mutate_in(key, [upsert("a", 1), increment("n", 1), upsert("b", 2), increment("n", 1)])
    assert result.content_as[int](1) == 11
    assert result.content_as[int](3) == 12


def test_mutation_token(collection, key, doc):
    token = collection.mutate_in(key, [upsert("a", 1)]).mutation_token()
    assert token.sequence_number > doc.mutation_token().sequence_number


def test_right_cas(collection, key, doc):
    collection.mutate_in(key, [upsert("a", 1)], MutateInOptions(cas=doc.cas))
    assert body(collection, key)["a"] == 1


def test_stale_cas(collection, key, doc):
    collection.upsert(key, {"v": 2})
    with pytest.raises(CasMismatchException):
        collection.mutate_in(key, [upsert("a", 1)], MutateInOptions(cas=doc.cas))
    assert body(collection, key) == {"v": 2}


def test_store_semantics_upsert_creates_the_document(collection, key):
    collection.mutate_in(key, [upsert("a", 1)], MutateInOptions(store_semantics=StoreSemantics.UPSERT))
    assert body(collection, key) == {"a": 1}


def test_store_semantics_upsert_changes_an_existing_document(collection, key, doc):
    collection.mutate_in(key, [upsert("a", 1)], MutateInOptions(store_semantics=StoreSemantics.UPSERT))
    assert body(collection, key) == {**DOC, "a": 1}


def test_store_semantics_insert_creates_the_document(collection, key):
    collection.mutate_in(key, [insert("a", 1)], MutateInOptions(store_semantics=StoreSemantics.INSERT))
    assert body(collection, key) == {"a": 1}


def test_store_semantics_insert_of_an_existing_document(collection, key, doc):
    with pytest.raises(DocumentExistsException):
        collection.mutate_in(key, [insert("a", 1)], MutateInOptions(store_semantics=StoreSemantics.INSERT))
    assert body(collection, key) == DOC


def test_sixteen_specs(collection, key, doc):
    collection.mutate_in(key, [upsert(f"f{n}", n) for n in range(16)])
    assert body(collection, key) == {**DOC, **{f"f{n}": n for n in range(16)}}


def test_seventeen_specs(collection, key, doc):
    with pytest.raises(InvalidArgumentException):
        collection.mutate_in(key, [upsert(f"f{n}", n) for n in range(17)])


def test_no_spec(collection, key, doc):
    with pytest.raises(InvalidArgumentException):
        collection.mutate_in(key, [])


def test_change_in_a_compressed_document(collection, key):
    document = {"pad": "stave " * 10_000, "n": 1}
    collection.upsert(key, document)
    collection.mutate_in(key, [increment("n", 1)])
    assert body(collection, key) == {**document, "n": 2}
