"""Bootstrap, authentication, ping and diagnostics."""

import base64
import os
import socket
import threading
import urllib.parse
import urllib.request

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


class Forwarded:
    """A port of its own that leads to the node, as that of a container does."""

    def __init__(self, host, port):
        self.to, self.listener = (host, port), socket.create_server(("127.0.0.1", 0))
        self.port = self.listener.getsockname()[1]
        threading.Thread(target=self.accept, daemon=True).start()

    def accept(self):
        while True:
            try:
                client, _ = self.listener.accept()
            except OSError:
                return
            node = socket.create_connection(self.to)
            for pair in ((client, node), (node, client)):
                threading.Thread(target=self.pump, args=pair, daemon=True).start()

    @staticmethod
    def pump(source, target):
        try:
            while part := source.recv(65536):
                target.sendall(part)
            target.shutdown(socket.SHUT_WR)
        except OSError:
            pass


def alternate(server, method, form):
    """Has the node tell of another address, or of none."""
    path = os.environ["STAVE_HTTP"] + "/node/controller/setupAlternateAddresses/external"
    request = urllib.request.Request(path, method=method, data=urllib.parse.urlencode(form).encode())
    login = f"{server['STAVE_USER']}:{server['STAVE_PASSWORD']}".encode()
    request.add_header("Authorization", "Basic " + base64.b64encode(login).decode())
    urllib.request.urlopen(request, timeout=10).close()


def test_another_network_is_reached_by_its_address(server, key):
    if os.environ["STAVE_REPLICAS"] != "0" or not server["STAVE_CONN"].startswith("couchbase://"):
        pytest.skip("one node without TLS is enough")
    host, port = server["STAVE_CONN"].removeprefix("couchbase://").rsplit(":", 1)
    forwarded = Forwarded(host, int(port))
    alternate(server, "PUT", {"hostname": "127.0.0.1", "kv": forwarded.port})
    try:
        other = Cluster(f"couchbase://127.0.0.1:{forwarded.port}?network=external",
                        ClusterOptions(authenticator(server)))
        there = other.bucket(server["STAVE_BUCKET"])
        there.default_collection().upsert(key, 1)
        report = there.ping(PingOptions(service_types=[ServiceType.KeyValue]))
        remotes = {endpoint.remote for endpoint in report.endpoints[ServiceType.KeyValue]}
        assert remotes == {f"127.0.0.1:{forwarded.port}"}
        other.close()
    finally:
        alternate(server, "DELETE", {})
        forwarded.listener.close()
