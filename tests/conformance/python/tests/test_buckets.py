"""Buckets that come, change, are emptied and go while the server runs."""

import uuid
from datetime import timedelta

import pytest
from couchbase.cluster import Cluster
from couchbase.exceptions import (
    BucketAlreadyExistsException,
    BucketDoesNotExistException,
    BucketNotFlushableException,
    DocumentNotFoundException,
)
from couchbase.management.buckets import BucketSettings, BucketType, CreateBucketSettings
from couchbase.options import ClusterOptions

from support import authenticator, seconds


@pytest.fixture
def made(cluster):
    """Makes buckets that no other test has, and drops them in the end."""
    names = []

    def make(**settings):
        name = f"py-{uuid.uuid4().hex[:12]}"
        settings = {"ram_quota_mb": 100, "num_replicas": 0, "bucket_type": BucketType.COUCHBASE, **settings}
        cluster.buckets().create_bucket(CreateBucketSettings(name=name, **settings))
        names.append(name)
        return name

    yield make
    for name in names:
        try:
            cluster.buckets().drop_bucket(name)
        except BucketDoesNotExistException:
            pass


def test_a_bucket_is_made_read_and_dropped(cluster, made):
    name = made(flush_enabled=True, max_expiry=timedelta(seconds=60))
    settings = cluster.buckets().get_bucket(name)
    assert settings.name == name
    assert settings.ram_quota_mb == 100
    assert settings.num_replicas == 0
    assert settings.flush_enabled
    assert settings.max_expiry == timedelta(seconds=60)
    assert name in [bucket.name for bucket in cluster.buckets().get_all_buckets()]
    cluster.buckets().drop_bucket(name)
    with pytest.raises(BucketDoesNotExistException):
        cluster.buckets().get_bucket(name)
    with pytest.raises(BucketDoesNotExistException):
        cluster.buckets().drop_bucket(name)


def test_a_bucket_that_is_there_is_not_made_again(cluster, made):
    name = made()
    again = CreateBucketSettings(name=name, ram_quota_mb=100, bucket_type=BucketType.COUCHBASE)
    with pytest.raises(BucketAlreadyExistsException):
        cluster.buckets().create_bucket(again)


def test_a_bucket_is_changed(cluster, made):
    name = made()
    cluster.buckets().update_bucket(BucketSettings(name=name, ram_quota_mb=150, flush_enabled=True))
    settings = cluster.buckets().get_bucket(name)
    assert settings.ram_quota_mb == 150
    assert settings.flush_enabled


@pytest.mark.parametrize("kind", [BucketType.COUCHBASE, BucketType.EPHEMERAL])
def test_a_flush_empties_a_bucket_that_allows_it(cluster, server, made, kind):
    name = made(bucket_type=kind)
    # A connection of its own: it goes on looking for a bucket that was dropped.
    own = Cluster(server["STAVE_CONN"], ClusterOptions(authenticator(server)))
    own.wait_until_ready(seconds(10))
    documents = own.bucket(name).default_collection()
    documents.upsert("k", {"a": 1})
    with pytest.raises(BucketNotFlushableException):
        cluster.buckets().flush_bucket(name)
    assert documents.get("k").content_as[dict] == {"a": 1}
    cluster.buckets().update_bucket(BucketSettings(name=name, ram_quota_mb=100, flush_enabled=True))
    cluster.buckets().flush_bucket(name)
    with pytest.raises(DocumentNotFoundException):
        documents.get("k")
    documents.upsert("k", {"a": 2})
    own.close()


def test_what_is_not_there_is_not_flushed(cluster):
    with pytest.raises(BucketDoesNotExistException):
        cluster.buckets().flush_bucket("py-none")
