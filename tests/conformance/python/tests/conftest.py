"""One connection for the whole run, a fresh key for every test."""

import os
import uuid

import pytest
from couchbase.cluster import Cluster
from couchbase.options import ClusterOptions

from support import authenticator, seconds


@pytest.fixture(scope="session")
def server():
    """The address and the user of the server under test; a missing variable is an error, not a skip."""
    names = ("STAVE_CONN", "STAVE_USER", "STAVE_PASSWORD", "STAVE_BUCKET")
    return {name: os.environ[name] for name in names}


@pytest.fixture(scope="session")
def cluster(server):
    cluster = Cluster(server["STAVE_CONN"], ClusterOptions(authenticator(server)))
    cluster.wait_until_ready(seconds(10))
    yield cluster
    cluster.close()


@pytest.fixture(scope="session")
def bucket(cluster, server):
    return cluster.bucket(server["STAVE_BUCKET"])


@pytest.fixture(scope="session")
def collection(bucket):
    return bucket.default_collection()


@pytest.fixture
def key(request):
    """A key no other test and no earlier run on the same server has used."""
    name = request.node.name.split("[")[0]
    return f"py:{name[:60]}:{uuid.uuid4().hex}"
