"""Sub-document reads: get, exists, count, whole document, and the error of each path on its own."""

import pytest
from couchbase.exceptions import (
    DocumentNotFoundException,
    DocumentNotJsonException,
    InvalidArgumentException,
    PathInvalidException,
    PathMismatchException,
    PathNotFoundException,
    PathTooBigException,
    PathTooDeepException,
)
from couchbase.options import UpsertOptions
from couchbase.subdocument import count, exists, get
from couchbase.transcoder import RawBinaryTranscoder

DOC = {
    "name": "stave",
    "n": 1,
    "list": [10, 20, [30, 31]],
    "dict": {"a": {"b": "deep"}, "x.y": "dotted"},
    "null": None,
    "empty": {},
}


@pytest.fixture
def doc(collection, key):
    return collection.upsert(key, DOC)


def test_get_of_a_field(collection, key, doc):
    result = collection.lookup_in(key, [get("name")])
    assert result.content_as[str](0) == "stave"
    assert result.cas == doc.cas


@pytest.mark.parametrize("path, value", [
    ("dict.a.b", "deep"),
    ("dict.a", {"b": "deep"}),
    ("dict.`x.y`", "dotted"),
    ("list[0]", 10),
    ("list[-1]", [30, 31]),
    ("list[2][1]", 31),
    ("null", None),
    ("empty", {}),
])
def test_get_of_a_path(collection, key, doc, path, value):
    result = collection.lookup_in(key, [get(path)])
    assert result.content_as[lambda item: item](0) == value


def test_get_of_an_empty_path_is_refused(collection, key, doc):
    # This SDK sends the path operation, which servers refuse for an empty path, not the whole-document one.
    with pytest.raises(InvalidArgumentException):
        collection.lookup_in(key, [get("")])


def test_exists_of_a_path(collection, key, doc):
    result = collection.lookup_in(key, [exists("dict.a"), exists("null"), exists("dict.z")])
    assert [result.exists(index) for index in range(3)] == [True, True, False]


def test_content_of_exists_is_a_boolean(collection, key, doc):
    result = collection.lookup_in(key, [exists("name"), exists("absent")])
    assert result.content_as[bool](0) is True
    assert result.content_as[bool](1) is False


def test_count_of_arrays_and_objects(collection, key, doc):
    result = collection.lookup_in(key, [count("list"), count("dict"), count("empty"), count("list[2]")])
    assert [result.content_as[int](index) for index in range(4)] == [3, 2, 0, 2]


def test_count_of_the_whole_document(collection, key, doc):
    assert collection.lookup_in(key, [count("")]).content_as[int](0) == len(DOC)


def test_each_path_has_its_own_result(collection, key, doc):
    result = collection.lookup_in(key, [get("name"), get("absent"), get("name.sub"), get("list[0"), exists("n"),
                                        count("name")])
    assert result.content_as[str](0) == "stave"
    with pytest.raises(PathNotFoundException):
        result.content_as[str](1)
    with pytest.raises(PathMismatchException):
        result.content_as[str](2)
    with pytest.raises(PathInvalidException):
        result.content_as[str](3)
    assert result.exists(4)
    with pytest.raises(PathMismatchException):
        result.content_as[int](5)


@pytest.mark.parametrize("path", ["list[3]", "dict.a.z", "absent.deeper"])
def test_path_not_found(collection, key, doc, path):
    with pytest.raises(PathNotFoundException):
        collection.lookup_in(key, [get(path)]).content_as[str](0)


@pytest.mark.parametrize("path", ["list.name", "dict[0]", "n.sub"])
def test_path_mismatch(collection, key, doc, path):
    with pytest.raises(PathMismatchException):
        collection.lookup_in(key, [get(path)]).content_as[str](0)


@pytest.mark.parametrize("path", ["list[", "list[x]", "dict..a", "list[-2]", "quo\"te"])
def test_path_invalid(collection, key, doc, path):
    with pytest.raises(PathInvalidException):
        collection.lookup_in(key, [get(path)]).content_as[str](0)


def test_path_with_too_many_components(collection, key, doc):
    with pytest.raises(PathTooBigException):
        collection.lookup_in(key, [get(".".join("a" * 33))]).content_as[str](0)


def test_path_longer_than_1024_bytes(collection, key, doc):
    with pytest.raises(InvalidArgumentException):
        collection.lookup_in(key, [get("a" * 1025)])


def test_document_that_is_nested_too_deeply(collection, key):
    document = 1
    for _ in range(40):
        document = {"a": document}
    collection.upsert(key, document)
    with pytest.raises(PathTooDeepException):
        collection.lookup_in(key, [get("a.a")]).content_as[dict](0)


def test_exists_reports_other_errors_than_not_found(collection, key, doc):
    result = collection.lookup_in(key, [exists("name.sub")])
    with pytest.raises(PathMismatchException):
        result.exists(0)


def test_document_that_is_not_json(collection, key):
    collection.upsert(key, b"\x00not json", UpsertOptions(transcoder=RawBinaryTranscoder()))
    result = collection.lookup_in(key, [get("a"), exists("a"), count("a")])
    for index in range(3):
        with pytest.raises(DocumentNotJsonException):
            result.content_as[str](index)


def test_missing_document(collection, key):
    with pytest.raises(DocumentNotFoundException):
        collection.lookup_in(key, [get("a")])


def test_removed_document(collection, key, doc):
    collection.remove(key)
    with pytest.raises(DocumentNotFoundException):
        collection.lookup_in(key, [get("name")])


def test_sixteen_paths(collection, key):
    collection.upsert(key, {f"f{n}": n for n in range(16)})
    result = collection.lookup_in(key, [get(f"f{n}") for n in range(16)])
    assert [result.content_as[int](n) for n in range(16)] == list(range(16))


def test_seventeen_paths(collection, key, doc):
    with pytest.raises(InvalidArgumentException):
        collection.lookup_in(key, [get("n")] * 17)


def test_no_path(collection, key, doc):
    with pytest.raises(InvalidArgumentException):
        collection.lookup_in(key, [])


def test_path_in_a_compressed_document(collection, key):
    collection.upsert(key, {"pad": "stave " * 10_000, "last": 42})
    assert collection.lookup_in(key, [get("last")]).content_as[int](0) == 42
