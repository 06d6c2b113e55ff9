"""`cbc`, the command line of libcouchbase, as people type it: with TLS and without, trusting the right CA and another one.

STAVE is the binary; build/ holds what build.sh has built.
"""

import os
import re
import socket
import ssl
import subprocess
import sys
import tempfile
import threading
import unittest

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, os.path.join(HERE, "..", "console"))
from server import Server  # noqa: E402

STAVE = os.environ["STAVE"]
CBC = os.path.join(HERE, "build", "bin", "cbc")


def certs(*words):
    subprocess.run([STAVE, "certs", *words], check=True, capture_output=True, timeout=30)


def setUpModule():
    global folder, server
    folder = tempfile.TemporaryDirectory()
    for ca in ("certs", "strange"):
        certs("init", "--out", at(ca))
        certs("client", "--ca", at(ca), "--out", at(f"{ca}-client"), "--user", "Administrator")
    server = Server(
        STAVE, "serve", "--data", at("data"), "--bucket", "default:100MiB", "--tls-cert", at("certs/node.pem"), "--tls-key",
        at("certs/node.key"), "--tls-ca", at("certs/ca.pem"), "--tls-client-auth", "optional", "--kv-tls", "127.0.0.1:0",
        "--http-tls", "127.0.0.1:0")


def tearDownModule():
    server.stop()
    folder.cleanup()


def at(name):
    return os.path.join(folder.name, name)


def expired():
    """A file with a certificate of the node's CA that has ended, and its key."""
    files = {name: at(f"expired.{name}") for name in ("key", "csr", "pem", "ext", "both")}
    with open(files["ext"], "w") as names:
        names.write("subjectAltName=DNS:localhost,IP:127.0.0.1")
    of_ca = ["-CA", at("certs/ca.pem"), "-CAkey", at("certs/ca.key")]
    for words in (
        ["req", "-new", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes", "-subj", "/CN=localhost", "-keyout", files["key"], "-out", files["csr"]],
        ["x509", "-req", "-in", files["csr"], *of_ca, "-days", "-1", "-extfile", files["ext"], "-out", files["pem"]],
    ):
        subprocess.run(["openssl", *words], check=True, capture_output=True, timeout=30)
    with open(files["both"], "w") as both:
        for name in ("pem", "key"):
            with open(files[name]) as part:
                both.write(part.read())
    return files["both"]


def run(words, spec, login=("-u", "Administrator", "-P", "password"), stdin=""):
    """Status, standard output, and both outputs together."""
    # It looks for a file of its own in the user's folder.
    environment = {**os.environ, "HOME": folder.name, "LD_LIBRARY_PATH": os.path.join(HERE, "build", "lib")}
    ended = subprocess.run([CBC, *words, "-U", spec, *login], env=environment, input=stdin, capture_output=True, text=True, timeout=20)
    return ended.returncode, ended.stdout, ended.stdout + ended.stderr


def clear():
    return f"couchbase://{server.kv}/default"


def encrypted(ca="certs/ca.pem", more=""):
    # A server that is not trusted is given up after so many seconds.
    return f"couchbases://{server.kvs}/default?truststorepath={at(ca)}&config_total_timeout=5{more}"


class Commands(unittest.TestCase):
    def done(self, words, spec, **more):
        status, out, said = run(words, spec, **more)
        self.assertEqual(status, 0, said)
        return out, said

    def round(self, spec, **more):
        key = f"cbc-{self.id().rsplit('.', 1)[-1]}"
        self.done(["create", key, "-V", '{"a": 1}'], spec, **more)
        self.assertEqual(self.done(["cat", key], spec, **more)[0].strip(), '{"a": 1}')
        self.done(["rm", key], spec, **more)
        self.assertIn("LCB_ERR_DOCUMENT_NOT_FOUND", self.done(["cat", key], spec, **more)[1])

    def ping(self, spec, **more):
        out, said = self.done(["ping", "--count", "1", "--details"], spec, **more)
        self.assertRegex(said, r"(?i)\bok\b", out)

    def stats(self, spec, **more):
        out, said = self.done(["stats"], spec, **more)
        self.assertTrue(re.search(r"curr_items", out), said)

    def refused(self, spec, *why, **more):
        status, _, said = run(["cat", "cbc-refused"], spec, **more)
        self.assertNotEqual(status, 0, said)
        self.assertTrue(any(word in said for word in why), said)


class Clear(Commands):
    def test_a_document_is_made_read_and_removed(self):
        self.round(clear())

    def test_ping_reaches_the_node(self):
        self.ping(clear())

    def test_stats_are_told(self):
        self.stats(clear())

    def test_a_wrong_password_is_refused(self):
        self.refused(clear(), "LCB_ERR_AUTHENTICATION_FAILURE", login=("-u", "Administrator", "-P", "wrong"))


class Encrypted(Commands):
    def test_a_document_is_made_read_and_removed(self):
        self.round(encrypted())

    def test_ping_reaches_the_node(self):
        self.ping(encrypted())

    def test_stats_are_told(self):
        self.stats(encrypted())

    def test_another_ca_is_not_trusted(self):
        self.refused(encrypted(ca="strange/ca.pem"), "LCB_ERR_SSL_CANTVERIFY")

    def test_an_expired_certificate_is_not_trusted(self):
        """`cbc` closes the connection before it says why; its own log does."""
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(expired())

        def serve(listener):
            while True:
                try:
                    connection, _ = listener.accept()
                except OSError:
                    return
                try:
                    context.wrap_socket(connection, server_side=True).recv(1)
                except OSError:
                    pass
                finally:
                    connection.close()

        with socket.create_server(("127.0.0.1", 0)) as listener:
            thread = threading.Thread(target=serve, args=(listener,), daemon=True)
            thread.start()
            address = f"127.0.0.1:{listener.getsockname()[1]}"
            status, _, said = run(["cat", "cbc-refused", "-vvvv"], encrypted().replace(server.kvs, address))
            listener.shutdown(socket.SHUT_RDWR)
        thread.join(20)
        self.assertNotEqual(status, 0, said)
        self.assertIn("fatal (certificate expired)", said)
        self.assertIn("LCB_ERR_SSL_CANTVERIFY", said)

    def test_a_certificate_takes_the_place_of_a_password(self):
        own = at("certs-client")
        self.round(encrypted(more=f"&certpath={own}/client.pem&keypath={own}/client.key"), login=())

    def test_a_certificate_of_another_ca_does_not(self):
        own = at("strange-client")
        self.refused(encrypted(more=f"&certpath={own}/client.pem&keypath={own}/client.key"), "LCB_ERR_", login=())


if __name__ == "__main__":
    unittest.main(verbosity=2)
