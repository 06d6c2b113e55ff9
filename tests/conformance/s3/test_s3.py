"""Backups in an S3-compatible store, by the commands as people run them: moto as the store, nodes that are killed, backups
that are killed, damaged objects, a store that refuses.

STAVE is the binary.
"""

import json
import logging
import os
import re
import subprocess
import sys
import tempfile
import unittest
import urllib.request

from moto.server import ThreadedMotoServer

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "console"))
from server import Kv, Server  # noqa: E402

STAVE = os.environ["STAVE"]
DOCUMENTS = 3_000


def setUpModule():
    global store, endpoint
    logging.getLogger("werkzeug").setLevel(logging.ERROR)
    store = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    store.start()
    host, port = store.get_host_and_port()
    endpoint = f"http://{host}:{port}"


def tearDownModule():
    store.stop()


def ask(method, path, body=None):
    """A request of the test's own to the store, which asks for a signature and does not check it."""
    signed = {"Authorization": "AWS4-HMAC-SHA256 Credential=test/20260101/us-east-1/s3/aws4_request, SignedHeaders=host, Signature=0"}
    request = urllib.request.Request(f"{endpoint}{path}", data=body, method=method, headers=signed)
    with urllib.request.urlopen(request, timeout=30) as answer:
        return answer.read()


def objects(bucket):
    listing = ask("GET", f"/{bucket}?list-type=2").decode()
    return dict(zip(re.findall(r"<Key>(.*?)</Key>", listing), map(int, re.findall(r"<Size>(\d+)</Size>", listing))))


def environment():
    clean = {name: value for name, value in os.environ.items() if not name.startswith(("AWS_", "STAVE_"))}
    return {**clean, "AWS_ACCESS_KEY_ID": "backup", "AWS_SECRET_ACCESS_KEY": "secret", "STAVE_PASSWORD": "password"}


def command(*words, to_store=True):
    return [STAVE, *words, *(["--s3-endpoint", endpoint] if to_store else [])]


def stave(*words, to_store=True, expected=0):
    ended = subprocess.run(command(*words, to_store=to_store), env=environment(), capture_output=True, text=True, timeout=120)
    assert ended.returncode == expected, f"{words}: {ended.returncode}\n{ended.stdout}\n{ended.stderr}"
    return ended.stdout + ended.stderr


class Backups(unittest.TestCase):
    def setUp(self):
        self.bucket = re.sub("[^a-z]", "-", self.id().rsplit(".", 1)[-1])
        ask("PUT", f"/{self.bucket}")
        self.place = f"s3://{self.bucket}/prod"
        self.folder = tempfile.TemporaryDirectory()
        # Behind every node that writes into it.
        self.addCleanup(self.folder.cleanup)
        self.server = self.start("one")
        self.write(range(DOCUMENTS), "first")

    def start(self, name):
        server = Server(STAVE, "serve", "--data", os.path.join(self.folder.name, name), "--bucket", "default:100MiB")
        self.addCleanup(lambda: server.process.returncode is None and server.kill())
        return server

    def write(self, numbers, words):
        kv = Kv(self.server.kv)
        for number in numbers:
            kv.set(f"order-{number:05}", json.dumps({"number": number, "words": words * 40}))
        kv.close()

    def back_up(self, *more):
        return stave("backup", "--to", self.place, "--addr", self.server.kv, *more)

    def documents(self, server):
        """All documents of a node, as lines in order."""
        lines = stave("export", "--to", "-", "--addr", server.kv, to_store=False).splitlines()
        return sorted(line for line in lines if line.startswith("{"))

    def restored(self):
        """A node of its own, with what the store has."""
        other = self.start("other")
        stave("restore", "--from", self.place, "--addr", other.kv)
        return self.documents(other)

    def test_what_was_backed_up_comes_back_after_the_node_is_lost(self):
        self.back_up()
        self.write(range(0, DOCUMENTS, 7), "second")
        self.back_up()
        listed = stave("backup", "list", self.place)
        self.assertGreaterEqual(len(re.findall(r"\d{8}T\d{6}Z", listed)), 2, listed)
        stave("backup", "verify", self.place, "--bucket", "default")
        before = self.documents(self.server)
        self.assertEqual(len(before), DOCUMENTS)
        self.server.kill()
        self.assertEqual(self.restored(), before)

    def test_a_backup_that_was_killed_is_not_complete_and_goes_on(self):
        slow = command("backup", "--to", self.place, "--addr", self.server.kv, "--max-rate", "128KiB")
        process = subprocess.Popen(slow, env=environment(), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        while not objects(self.bucket):
            self.assertIsNone(process.poll(), "it ended before it was killed")
        process.kill()
        process.wait()
        refused = subprocess.run(command("restore", "--from", self.place, "--addr", self.server.kv), env=environment(), capture_output=True, text=True)
        self.assertNotEqual(refused.returncode, 0, "a backup that was broken off is none")
        self.back_up()
        before = self.documents(self.server)
        self.server.kill()
        self.assertEqual(self.restored(), before)

    def test_a_damaged_object_is_named_and_nothing_of_it_is_sent(self):
        self.back_up()
        largest = max(objects(self.bucket).items(), key=lambda item: item[1])[0]
        content = bytearray(ask("GET", f"/{self.bucket}/{largest}"))
        content[len(content) // 2] ^= 0x10
        ask("PUT", f"/{self.bucket}/{largest}", bytes(content))
        told = stave("backup", "verify", self.place, "--bucket", "default", expected=4)
        self.assertIn(largest.rsplit("/", 1)[-1], told)

    def test_old_backups_are_pruned_and_the_last_chain_stays(self):
        for words in ["first", "second", "third"]:
            self.write(range(100), words)
            self.back_up("--full")
        stave("backup", "prune", self.place, "--keep", "1", "--bucket", "default")
        left = stave("backup", "list", self.place, "--json")
        before = self.documents(self.server)
        self.server.kill()
        self.assertEqual(self.restored(), before, left)

    def test_a_bucket_that_is_not_there_is_named(self):
        told = subprocess.run(command("backup", "list", "s3://no-such-bucket/prod"), env=environment(), capture_output=True, text=True, timeout=60)
        self.assertNotEqual(told.returncode, 0)
        self.assertIn("no-such-bucket", told.stderr)


if __name__ == "__main__":
    unittest.main(verbosity=2)
