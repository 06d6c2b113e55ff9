"""Collections through two SDKs: made and written in Python, one of them streamed in Go, dropped, their space given back.

The Go program (`stream.go`, whose path is the argument) keeps a copy of one collection by DCP, which is compared document
by document with what this one wrote. Sizes are those of the bucket's files.
"""

import json
import os
import pathlib
import subprocess
import sys
import time
import urllib.request
from base64 import b64encode
from datetime import timedelta

from couchbase.auth import PasswordAuthenticator
from couchbase.cluster import Cluster
from couchbase.options import ClusterOptions

SCOPE = "shop"
FOLLOWED, OTHER = "orders", "log"
DOCUMENTS = 3_000
VALUE_BYTES = 2_000
# How long files and streams may take to become what they must be.
WITHIN_S = 60
# What headers and nodes of the tree take, whatever there is in a file.
BYTES_OF_AN_EMPTY_FILE = 16 << 10


def write(collection, first, count, filler):
    documents = {f"k{at}": {"n": at, "text": filler()} for at in range(first, first + count)}
    result = collection.upsert_multi(documents)
    assert result.all_ok, result.exceptions
    return documents


def filler():
    """Text that does not shrink, so that sizes can be compared."""
    return os.urandom(VALUE_BYTES // 2).hex()


def files_bytes():
    """What the bucket's files take together; not its journal, which is written over."""
    files = pathlib.Path(os.environ["STAVE_DATA"]).glob(f"buckets/{os.environ['STAVE_BUCKET']}/*.couch.*")
    total = 0
    for file in files:
        try:
            total += file.stat().st_size
        except FileNotFoundError:
            # It was compacted just now.
            pass
    return total


def count_files():
    return len(list(pathlib.Path(os.environ["STAVE_DATA"]).glob(f"buckets/{os.environ['STAVE_BUCKET']}/*.couch.*")))


def collection_stats():
    """Items and bytes by collection, as `stave stats collections` tells them."""
    address = os.environ["STAVE_CONN"].removeprefix("couchbase://")
    command = [os.environ["STAVE_BINARY"], "stats", "--json", "--addr", address, "collections"]
    environment = os.environ | {"STAVE_USERNAME": os.environ["STAVE_USER"]}
    told = json.loads(subprocess.run(command, check=True, capture_output=True, env=environment, timeout=20).stdout)
    names = {key.removesuffix(":name"): name for key, name in told.items() if key.endswith(":name")}
    return {name: int(told[f"{key}:items"]) for key, name in names.items()}


def wait_until(what, is_so):
    deadline = time.monotonic() + WITHIN_S
    while not is_so():
        assert time.monotonic() < deadline, f"not within {WITHIN_S} s: {what}; files have {files_bytes()} bytes"
        time.sleep(0.05)


def drop_over_http(scope, collection):
    """As scripts do it."""
    url = f"{os.environ['STAVE_HTTP']}/pools/default/buckets/{os.environ['STAVE_BUCKET']}/scopes/{scope}/collections"
    login = b64encode(f"{os.environ['STAVE_USER']}:{os.environ['STAVE_PASSWORD']}".encode()).decode()
    request = urllib.request.Request(
        f"{url}/{collection}", method="DELETE", headers={"Authorization": f"Basic {login}"}
    )
    with urllib.request.urlopen(request, timeout=20) as answer:
        assert answer.status == 200


class Follower:
    """The Go program."""

    def __init__(self, program):
        pipe = subprocess.PIPE
        self.process = subprocess.Popen([program, SCOPE, FOLLOWED], stdin=pipe, stdout=pipe, text=True)
        assert self.line().startswith("ready"), "the follower follows"

    def line(self):
        line = self.process.stdout.readline()
        assert line, f"the follower ended with {self.process.wait()}"
        return line

    def copy(self):
        self.process.stdin.write("now\n")
        self.process.stdin.flush()
        return json.loads(self.line())

    def end(self):
        self.process.stdin.close()
        how = json.loads(self.line())
        assert self.process.wait(20) == 0
        return how


def say(when, what=""):
    items = collection_stats()
    print(
        f"{when:<34}{items.get(FOLLOWED, '-'):>8}{items.get(OTHER, '-'):>8}{files_bytes() / 1e6:>12.2f}   {what}",
        flush=True,
    )


def main():
    authenticator = PasswordAuthenticator(os.environ["STAVE_USER"], os.environ["STAVE_PASSWORD"])
    cluster = Cluster(os.environ["STAVE_CONN"], ClusterOptions(authenticator))
    cluster.wait_until_ready(timedelta(seconds=20))
    bucket = cluster.bucket(os.environ["STAVE_BUCKET"])
    manager = bucket.collections()
    manager.create_scope(SCOPE)
    manager.create_collection(SCOPE, FOLLOWED)
    manager.create_collection(SCOPE, OTHER)
    followed, other = (bucket.scope(SCOPE).collection(name) for name in (FOLLOWED, OTHER))
    print(f"{'':<34}{FOLLOWED:>8}{OTHER:>8}{'files, MB':>12}")
    say("made in Python")

    half = DOCUMENTS // 2
    wanted = write(followed, 0, half, filler)
    write(other, 0, half, filler)
    follower = Follower(sys.argv[1])
    # Some of it was there before it was followed, and some comes while it is.
    wanted |= write(followed, half, half, filler)
    write(other, half, half, filler)
    removed = [f"k{at}" for at in range(0, DOCUMENTS, 7)]
    assert followed.remove_multi(removed).all_ok
    for key in removed:
        del wanted[key]
    copied = follower.copy()
    differing = [key for key in wanted.keys() | copied["documents"].keys() if wanted.get(key) != copied["documents"].get(key)]
    assert not differing, f"{len(differing)} documents differ, {differing[:3]} among them"
    assert copied["strangers"] == 0, "changes of other collections came"
    written = (len(wanted) + DOCUMENTS) * VALUE_BYTES
    wait_until("everything is in the files", lambda: files_bytes() > written)
    what = f"{copied['changes']} changes streamed in Go over {copied['streams']} streams, {len(wanted)} documents, 0 differ"
    say("written in Python", what)

    before = files_bytes()
    manager.drop_collection(SCOPE, FOLLOWED)
    how = follower.end()
    assert how["ended"] == {"nothing left to follow": copied["streams"]}, how
    assert FOLLOWED not in collection_stats()
    # Nobody asks for a compaction: whoever drops a collection gets its space back.
    wait_until("one collection's space is given back", lambda: files_bytes() < before - len(wanted) * VALUE_BYTES)
    say(f"{FOLLOWED} dropped in Python", f"streams ended: {how['ended']}")

    drop_over_http(SCOPE, OTHER)
    assert OTHER not in collection_stats()
    wait_until("all space is given back", lambda: files_bytes() < count_files() * BYTES_OF_AN_EMPTY_FILE)
    say(f"{OTHER} dropped over HTTP")
    print(f"summary documents {len(wanted)} differ 0 before_bytes {before} after_bytes {files_bytes()}")


if __name__ == "__main__":
    main()
