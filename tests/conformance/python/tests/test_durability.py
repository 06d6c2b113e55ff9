"""Durable writes are honoured truthfully or refused by the documented error; which of the two is recorded."""

import pytest
from couchbase.durability import (
    ClientDurability,
    DurabilityLevel,
    PersistToExtended,
    ReplicateTo,
    ServerDurability,
)
from couchbase.exceptions import (
    CasMismatchException,
    DocumentNotFoundException,
    DurabilityImpossibleException,
)
from couchbase.options import (
    AppendOptions,
    DecrementOptions,
    DeltaValue,
    IncrementOptions,
    InsertOptions,
    MutateInOptions,
    PrependOptions,
    RemoveOptions,
    ReplaceOptions,
    SignedInt64,
    UpsertOptions,
)
from couchbase.subdocument import upsert as sd_upsert

from support import REPLICAS, seconds

LEVELS = [
    DurabilityLevel.MAJORITY,
    DurabilityLevel.MAJORITY_AND_PERSIST_TO_ACTIVE,
    DurabilityLevel.PERSIST_TO_MAJORITY,
]
LIMIT = seconds(10)


def honoured(record_property, write):
    """True if the write was done, False if it was refused as impossible; anything else fails the test."""
    try:
        result = write()
    except DurabilityImpossibleException:
        record_property("durability", "refused")
        return False
    record_property("durability", "honoured")
    assert result.cas != 0
    return True


@pytest.mark.parametrize("level", LEVELS, ids=lambda level: level.name)
def test_upsert(collection, key, record_property, level):
    done = honoured(record_property, lambda: collection.upsert(
        key, {"v": 1}, UpsertOptions(durability=ServerDurability(level), timeout=LIMIT)))
    assert collection.exists(key).exists is done


@pytest.mark.parametrize("level", LEVELS, ids=lambda level: level.name)
def test_insert(collection, key, record_property, level):
    done = honoured(record_property, lambda: collection.insert(
        key, {"v": 1}, InsertOptions(durability=ServerDurability(level), timeout=LIMIT)))
    assert collection.exists(key).exists is done


@pytest.mark.parametrize("level", LEVELS, ids=lambda level: level.name)
def test_replace(collection, key, record_property, level):
    collection.upsert(key, {"v": 1})
    done = honoured(record_property, lambda: collection.replace(
        key, {"v": 2}, ReplaceOptions(durability=ServerDurability(level), timeout=LIMIT)))
    assert collection.get(key).content_as[dict] == {"v": 2 if done else 1}


@pytest.mark.parametrize("level", LEVELS, ids=lambda level: level.name)
def test_remove(collection, key, record_property, level):
    collection.upsert(key, {"v": 1})
    done = honoured(record_property, lambda: collection.remove(
        key, RemoveOptions(durability=ServerDurability(level), timeout=LIMIT)))
    assert collection.exists(key).exists is not done


@pytest.mark.parametrize("level", LEVELS, ids=lambda level: level.name)
def test_mutate_in(collection, key, record_property, level):
    collection.upsert(key, {"v": 1})
    done = honoured(record_property, lambda: collection.mutate_in(
        key, [sd_upsert("v", 2)], MutateInOptions(durability=ServerDurability(level), timeout=LIMIT)))
    assert collection.get(key).content_as[dict] == {"v": 2 if done else 1}


@pytest.mark.parametrize("level", LEVELS, ids=lambda level: level.name)
def test_increment(collection, key, record_property, level):
    done = honoured(record_property, lambda: collection.binary().increment(
        key, IncrementOptions(initial=SignedInt64(7), durability=ServerDurability(level), timeout=LIMIT)))
    assert collection.exists(key).exists is done


def test_append(collection, key, record_property):
    collection.upsert(key, "x")
    before = collection.get(key).cas
    done = honoured(record_property, lambda: collection.binary().append(
        key, b" ", AppendOptions(durability=ServerDurability(DurabilityLevel.MAJORITY), timeout=LIMIT)))
    assert (collection.get(key).cas != before) is done


@pytest.mark.parametrize("level", LEVELS, ids=lambda level: level.name)
def test_prepend(collection, key, level):
    collection.upsert(key, "x")
    before = collection.get(key).cas
    result = collection.binary().prepend(
        key, b" ", PrependOptions(durability=ServerDurability(level), timeout=LIMIT))
    assert collection.get(key).cas == result.cas != before


@pytest.mark.parametrize("level", LEVELS, ids=lambda level: level.name)
def test_decrement(collection, key, level):
    collection.upsert(key, 7)
    result = collection.binary().decrement(
        key, DecrementOptions(delta=DeltaValue(3), durability=ServerDurability(level), timeout=LIMIT))
    assert result.content == 4
    assert collection.get(key).content_as[int] == 4


@pytest.mark.parametrize("level", LEVELS, ids=lambda level: level.name)
def test_replace_with_cas(collection, key, level):
    present = collection.upsert(key, 1).cas
    durability = ServerDurability(level)
    with pytest.raises(CasMismatchException):
        collection.replace(key, 2, ReplaceOptions(cas=present + 1, durability=durability, timeout=LIMIT))
    assert collection.get(key).content_as[int] == 1
    replaced = collection.replace(key, 3, ReplaceOptions(cas=present, durability=durability, timeout=LIMIT))
    assert collection.get(key).cas == replaced.cas
    assert collection.get(key).content_as[int] == 3


@pytest.mark.parametrize("level", LEVELS, ids=lambda level: level.name)
def test_remove_with_cas(collection, key, level):
    present = collection.upsert(key, 1).cas
    durability = ServerDurability(level)
    with pytest.raises(CasMismatchException):
        collection.remove(key, RemoveOptions(cas=present + 1, durability=durability, timeout=LIMIT))
    collection.remove(key, RemoveOptions(cas=present, durability=durability, timeout=LIMIT))
    assert not collection.exists(key).exists


def test_durable_replace_of_a_missing_document(collection, key):
    with pytest.raises(DocumentNotFoundException):
        collection.replace(key, 1, ReplaceOptions(
            durability=ServerDurability(DurabilityLevel.MAJORITY), timeout=LIMIT))


def test_observed_persistence(collection, key):
    durability = ClientDurability(replicate_to=ReplicateTo.NONE, persist_to=PersistToExtended.ACTIVE)
    result = collection.upsert(key, {"v": 1}, UpsertOptions(durability=durability, timeout=LIMIT))
    assert collection.get(key).cas == result.cas


@pytest.mark.skipif(REPLICAS > 0, reason="the bucket has replicas")
def test_observed_persistence_on_one_of_several_nodes_needs_replicas(collection, key):
    # The SDK refuses by itself: it counts ONE as a node beside the active one, and the bucket has no replicas.
    durability = ClientDurability(replicate_to=ReplicateTo.NONE, persist_to=PersistToExtended.ONE)
    with pytest.raises(DurabilityImpossibleException):
        collection.upsert(key, {"v": 1}, UpsertOptions(durability=durability, timeout=LIMIT))


def test_observed_persistence_of_a_removal(collection, key):
    collection.upsert(key, {"v": 1})
    durability = ClientDurability(replicate_to=ReplicateTo.NONE, persist_to=PersistToExtended.ACTIVE)
    collection.remove(key, RemoveOptions(durability=durability, timeout=LIMIT))
    assert not collection.exists(key).exists


@pytest.mark.skipif(REPLICAS == 0, reason="the bucket has no replicas")
def test_observed_replication(collection, key):
    durability = ClientDurability(replicate_to=ReplicateTo.ONE, persist_to=PersistToExtended.ONE)
    result = collection.upsert(key, {"v": 1}, UpsertOptions(durability=durability, timeout=LIMIT))
    assert collection.get(key).cas == result.cas


@pytest.mark.skipif(REPLICAS > 0, reason="the bucket has replicas")
def test_observed_replication_without_replicas(collection, key):
    durability = ClientDurability(replicate_to=ReplicateTo.ONE, persist_to=PersistToExtended.NONE)
    with pytest.raises(DurabilityImpossibleException):
        collection.upsert(key, {"v": 1}, UpsertOptions(durability=durability, timeout=LIMIT))
