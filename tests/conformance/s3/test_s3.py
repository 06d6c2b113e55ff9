"""Backups in an S3-compatible store, by the commands as people run them: nodes that are killed, backups that are killed,
damaged objects, a store that refuses.

STAVE is the binary. The store is moto, or MinIO or Versity's gateway to a folder if MINIO or VERSITYGW names its binary.
"""

import json
import logging
import os
import re
import socket
import subprocess
import sys
import tempfile
import time
import unittest

import boto3
from botocore.config import Config
from botocore.exceptions import BotoCoreError, ClientError
from moto.server import ThreadedMotoServer

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "console"))
from server import Kv, Server  # noqa: E402

STAVE = os.environ["STAVE"]
DOCUMENTS = 3_000


class Moto:
    """The store in this process."""

    def __init__(self):
        logging.getLogger("werkzeug").setLevel(logging.ERROR)
        self.server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
        self.server.start()
        self.address = "%s:%d" % self.server.get_host_and_port()

    def stop(self):
        self.server.stop()


class Process:
    """A store in a process of its own, with a folder. `words` makes its command of the folder and two addresses."""

    def __init__(self, words, login):
        self.folder = tempfile.TemporaryDirectory()
        # Such stores take no port 0: those that were free a moment ago.
        with socket.create_server(("127.0.0.1", 0)) as free, socket.create_server(("127.0.0.1", 0)) as console:
            self.address, other = ("127.0.0.1:%d" % one.getsockname()[1] for one in (free, console))
        command = words(self.folder.name, self.address, other)
        self.process = subprocess.Popen(command, env={**os.environ, **login}, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)

    def stop(self):
        self.process.terminate()
        self.process.wait()
        self.folder.cleanup()


def minio(binary):
    login = {"MINIO_ROOT_USER": KEY_ID, "MINIO_ROOT_PASSWORD": SECRET}
    return Process(lambda folder, address, console: [binary, "server", folder, "--address", address, "--console-address", console], login)


def versitygw(binary):
    login = {"ROOT_ACCESS_KEY": KEY_ID, "ROOT_SECRET_KEY": SECRET}
    # A bucket is a folder, and an object a file with extended attributes.
    return Process(lambda folder, address, _: [binary, "--port", address, "--quiet", "posix", folder], login)


KEY_ID, SECRET = "backup", "secret-secret"


def setUpModule():
    global store, endpoint, s3
    others = [(make, os.environ[name]) for name, make in (("MINIO", minio), ("VERSITYGW", versitygw)) if os.environ.get(name)]
    store = others[0][0](others[0][1]) if others else Moto()
    endpoint = f"http://{store.address}"
    s3 = boto3.client(
        "s3",
        endpoint_url=endpoint,
        region_name="us-east-1",
        aws_access_key_id=KEY_ID,
        aws_secret_access_key=SECRET,
        config=Config(s3={"addressing_style": "path"}),
    )
    deadline = time.monotonic() + 30
    while True:
        try:
            s3.list_buckets()
            return
        except (BotoCoreError, ClientError):
            if time.monotonic() > deadline:
                raise
            time.sleep(0.1)


def tearDownModule():
    store.stop()


def objects(bucket):
    """Sizes of all objects, by their names."""
    pages = s3.get_paginator("list_objects_v2").paginate(Bucket=bucket)
    return {one["Key"]: one["Size"] for page in pages for one in page.get("Contents", [])}


def environment():
    clean = {name: value for name, value in os.environ.items() if not name.startswith(("AWS_", "STAVE_"))}
    return {**clean, "AWS_ACCESS_KEY_ID": KEY_ID, "AWS_SECRET_ACCESS_KEY": SECRET, "STAVE_PASSWORD": "password"}


def command(*words, to_store=True):
    return [STAVE, *words, *(["--s3-endpoint", endpoint] if to_store else [])]


def stave(*words, to_store=True, expected=0):
    ended = subprocess.run(command(*words, to_store=to_store), env=environment(), capture_output=True, text=True, timeout=120)
    assert ended.returncode == expected, f"{words}: {ended.returncode}\n{ended.stdout}\n{ended.stderr}"
    return ended.stdout + ended.stderr


class Backups(unittest.TestCase):
    def setUp(self):
        # Names of buckets have 63 letters at the most.
        self.bucket = re.sub("[^a-z]", "-", self.id().rsplit(".", 1)[-1])[:63].strip("-")
        s3.create_bucket(Bucket=self.bucket)
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

    def test_an_object_of_several_parts_comes_back(self):
        kv = Kv(self.server.kv)
        # What cannot be compressed, so that files are longer than a part.
        for number in range(300):
            kv.set(f"long-{number:05}", json.dumps(os.urandom(48 << 10).hex()))
        kv.close()
        self.back_up()
        sizes = objects(self.bucket)
        longest = max(sizes, key=sizes.get)
        self.assertGreater(sizes[longest], 8 << 20, sizes)
        # The tag of an object that came in parts ends with their number.
        self.assertRegex(s3.head_object(Bucket=self.bucket, Key=longest)["ETag"], r'-[2-9]"$')
        stave("backup", "verify", self.place, "--bucket", "default")
        before = self.documents(self.server)
        self.server.kill()
        self.assertEqual(self.restored(), before)

    def test_a_second_follower_is_refused_while_one_is_at_work(self):
        process = subprocess.Popen(
            command("backup", "--to", self.place, "--addr", self.server.kv, "--follow"),
            env=environment(), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
        )
        self.addCleanup(process.wait)
        self.addCleanup(process.kill)
        deadline = time.monotonic() + 60
        while not any("/log/" in name for name in objects(self.bucket)):
            self.assertIsNone(process.poll(), "it ended")
            self.assertLess(time.monotonic(), deadline, "it has written no log")
            time.sleep(0.1)
        told = stave("backup", "--to", self.place, "--addr", self.server.kv, "--follow", "--once-caught-up", expected=3)
        self.assertIn("another process works on the log", told)

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

    def test_what_a_follower_logged_comes_back_at_its_moment(self):
        follow = ("--follow", "--once-caught-up", "--json")
        self.back_up(*follow)
        self.write(range(0, DOCUMENTS, 5), "followed")
        # The last line is the summary; others come each ten seconds.
        told = [json.loads(line) for line in self.back_up(*follow).splitlines() if line.startswith("{")][-1]
        self.assertEqual(told["end"], "caught up", told)
        before = self.documents(self.server)
        self.write(range(0, DOCUMENTS, 3), "later")
        stave("backup", "verify", self.place, "--bucket", "default")
        self.server.kill()
        other = self.start("other")
        stave("restore", "--from", self.place, "--addr", other.kv, "--at", told["horizon"])
        self.assertEqual(self.documents(other), before)
        self.assertFalse([name for name in objects(self.bucket) if name.endswith("/lock")], "no lock stays")

    def test_a_damaged_object_is_named_and_nothing_of_it_is_sent(self):
        self.back_up()
        largest = max(objects(self.bucket).items(), key=lambda item: item[1])[0]
        content = bytearray(s3.get_object(Bucket=self.bucket, Key=largest)["Body"].read())
        content[len(content) // 2] ^= 0x10
        s3.put_object(Bucket=self.bucket, Key=largest, Body=bytes(content))
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
