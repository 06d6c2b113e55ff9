"""Over TLS: who trusts another CA does not come in, and who does not speak TLS neither; certificates log in."""

import os
import socket
import ssl
import subprocess
import threading

import pytest
from couchbase.auth import CertificateAuthenticator, PasswordAuthenticator
from couchbase.cluster import Cluster
from couchbase.exceptions import CouchbaseException
from couchbase.options import ClusterOptions, ClusterTimeoutOptions

from support import seconds

pytestmark = pytest.mark.skipif("STAVE_CA" not in os.environ, reason="the server is used without TLS here")


def refused_with(conn, authenticator):
    timeouts = ClusterTimeoutOptions(bootstrap_timeout=seconds(3))
    with pytest.raises(CouchbaseException):
        Cluster(conn, ClusterOptions(authenticator, timeout_options=timeouts))


def refused(conn, server, ca):
    refused_with(conn, PasswordAuthenticator(server["STAVE_USER"], server["STAVE_PASSWORD"], cert_path=ca))


def certificate(folder):
    """The administrator's certificate that a CA has signed, as `stave certs client` writes it."""
    cert_path, key_path = os.path.join(folder, "client.pem"), os.path.join(folder, "client.key")
    return CertificateAuthenticator(cert_path=cert_path, key_path=key_path, trust_store_path=os.environ["STAVE_CA"])


def test_another_ca_is_not_trusted(server):
    refused(server["STAVE_CONN"], server, os.environ["STAVE_STRANGE_CA"])


@pytest.mark.xfail(strict=True, raises=pytest.fail.Exception, reason="this version of the SDK does not look at the name (CXXCBC-838)")
def test_a_name_that_is_not_in_the_certificate_is_not_trusted(server):
    port = server["STAVE_CONN"].rsplit(":", 1)[1]
    # Another name of this machine, which the certificate does not have.
    refused(f"couchbases://localhost:{port}", server, os.environ["STAVE_CA"])


def test_plain_bytes_are_refused_at_the_port_for_tls(server):
    refused(server["STAVE_CONN"].replace("couchbases://", "couchbase://"), server, None)


def openssl(server, *wanted):
    """What `openssl s_client` says of a connection with these versions or ciphers."""
    address = server["STAVE_CONN"].split("://", 1)[1]
    command = ["openssl", "s_client", "-connect", address, "-CAfile", os.environ["STAVE_CA"], *wanted]
    done = subprocess.run(command, input=b"", capture_output=True, timeout=30)
    return (done.stdout + done.stderr).decode(errors="replace")


@pytest.mark.parametrize("version", ["-tls1_2", "-tls1_3"])
def test_openssl_speaks_the_versions_that_are_allowed(server, version):
    told = openssl(server, version)
    assert "Verify return code: 0 (ok)" in told and "Cipher is (NONE)" not in told, told


# The clients offer it (security level 0), so it is the server that refuses.
@pytest.mark.parametrize(
    "wanted",
    [
        ["-tls1", "-cipher", "ALL:@SECLEVEL=0"],
        ["-tls1_1", "-cipher", "ALL:@SECLEVEL=0"],
        ["-tls1_2", "-cipher", "NULL:@SECLEVEL=0"],
        ["-tls1_2", "-cipher", "DHE:@SECLEVEL=0"],
        ["-tls1_2", "-cipher", "AES128-SHA:@SECLEVEL=0"],
        ["-tls1_2", "-cipher", "AES256-GCM-SHA384:@SECLEVEL=0"],
        ["-tls1_2", "-cipher", "ECDHE-ECDSA-AES128-SHA:@SECLEVEL=0"],
        ["-tls1_2", "-cipher", "ECDHE-RSA-AES256-SHA384:@SECLEVEL=0"],
    ],
    ids=" ".join,
)
def test_openssl_is_refused_old_versions_and_weak_ciphers(server, wanted):
    told = openssl(server, *wanted)
    assert "alert handshake failure" in told and "Cipher is (NONE)" in told, told


def test_a_certificate_takes_the_place_of_a_password(server, key):
    own = Cluster(server["STAVE_CONN"], ClusterOptions(certificate(os.environ["STAVE_CLIENT"])))
    documents = own.bucket(server["STAVE_BUCKET"]).default_collection()
    documents.upsert(key, {"a": 1})
    assert documents.get(key).content_as[dict] == {"a": 1}
    own.close()


def test_a_certificate_of_another_ca_does_not(server):
    refused_with(server["STAVE_CONN"], certificate(os.environ["STAVE_STRANGE_CLIENT"]))


def test_an_expired_certificate_is_not_trusted(server):
    """A server that shows one hears from the client why it goes away."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(os.environ["STAVE_EXPIRED"])
    told = []

    def serve(listener):
        while True:
            try:
                connection, _ = listener.accept()
            except OSError:
                return
            try:
                context.wrap_socket(connection, server_side=True).recv(1)
            except ssl.SSLError as error:
                told.append(error.reason)
            except OSError as error:
                told.append(str(error))
            finally:
                connection.close()

    with socket.create_server(("127.0.0.1", 0)) as listener:
        thread = threading.Thread(target=serve, args=(listener,), daemon=True)
        thread.start()
        refused(f"couchbases://127.0.0.1:{listener.getsockname()[1]}", server, os.environ["STAVE_CA"])
        listener.shutdown(socket.SHUT_RDWR)
    assert told and all("CERTIFICATE_EXPIRED" in why for why in told), told
