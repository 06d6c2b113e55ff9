"""Over TLS: who trusts another CA does not come in, and who does not speak TLS neither."""

import os

import pytest
from couchbase.auth import PasswordAuthenticator
from couchbase.cluster import Cluster
from couchbase.exceptions import CouchbaseException
from couchbase.options import ClusterOptions, ClusterTimeoutOptions

from support import seconds

pytestmark = pytest.mark.skipif("STAVE_CA" not in os.environ, reason="the server is used without TLS here")


def refused(conn, server, ca):
    timeouts = ClusterTimeoutOptions(bootstrap_timeout=seconds(3))
    authenticator = PasswordAuthenticator(server["STAVE_USER"], server["STAVE_PASSWORD"], cert_path=ca)
    with pytest.raises(CouchbaseException):
        Cluster(conn, ClusterOptions(authenticator, timeout_options=timeouts))


def test_another_ca_is_not_trusted(server):
    refused(server["STAVE_CONN"], server, os.environ["STAVE_STRANGE_CA"])


def test_a_name_that_is_not_in_the_certificate_is_not_trusted(server):
    port = server["STAVE_CONN"].rsplit(":", 1)[1]
    # Another address of this machine, which the certificate does not name.
    refused(f"couchbases://127.0.0.2:{port}", server, os.environ["STAVE_CA"])


def test_plain_bytes_are_refused_at_the_port_for_tls(server):
    refused(server["STAVE_CONN"].replace("couchbases://", "couchbase://"), server, None)
