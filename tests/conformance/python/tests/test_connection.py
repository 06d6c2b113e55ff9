"""Bootstrap, authentication, ping and diagnostics."""

import pytest
from couchbase.cluster import Cluster
from couchbase.diagnostics import ClusterState, EndpointState, PingState, ServiceType
from couchbase.exceptions import (
    AuthenticationException,
    BucketNotFoundException,
    UnAmbiguousTimeoutException,
)
from couchbase.options import (
    ClusterOptions,
    ClusterTimeoutOptions,
    PingOptions,
    WaitUntilReadyOptions,
)

from support import authenticator, seconds


def connect(server, user=None, password=None):
    timeouts = ClusterTimeoutOptions(bootstrap_timeout=seconds(2), connect_timeout=seconds(2))
    return Cluster(server["STAVE_CONN"], ClusterOptions(authenticator(server, user, password), timeout_options=timeouts))


def test_cluster_becomes_ready(cluster):
    cluster.wait_until_ready(seconds(5), WaitUntilReadyOptions(desired_state=ClusterState.Online,
                                                               service_types=[ServiceType.KeyValue]))


def test_a_second_connection_becomes_ready_and_closes(server, key):
    other = connect(server)
    other.wait_until_ready(seconds(5))
    other.bucket(server["STAVE_BUCKET"]).default_collection().upsert(key, 1)
    other.close()


def test_wrong_password_is_an_authentication_error(server):
    with pytest.raises(AuthenticationException):
        connect(server, password="not the password")


def test_unknown_user_is_an_authentication_error(server):
    with pytest.raises(AuthenticationException):
        connect(server, user="nobody")


def test_unknown_bucket_is_refused(server):
    # A user with all rights is told "not found", which the SDK retries until the bootstrap timeout.
    other = connect(server)
    with pytest.raises((BucketNotFoundException, UnAmbiguousTimeoutException)):
        other.bucket("no-such-bucket")
    other.close()


def test_ping_reaches_the_key_value_service(bucket):
    report = bucket.ping(PingOptions(service_types=[ServiceType.KeyValue]))
    endpoints = report.endpoints[ServiceType.KeyValue]
    assert endpoints
    assert all(endpoint.state == PingState.OK for endpoint in endpoints)


def test_ping_latency_is_measured(bucket):
    report = bucket.ping(PingOptions(service_types=[ServiceType.KeyValue]))
    assert all(endpoint.latency > seconds(0) for endpoint in report.endpoints[ServiceType.KeyValue])


def test_diagnostics_lists_connected_endpoints(cluster, collection, key):
    collection.upsert(key, 1)
    report = cluster.diagnostics()
    endpoints = report.endpoints[ServiceType.KeyValue]
    assert any(endpoint.state == EndpointState.Connected for endpoint in endpoints)
