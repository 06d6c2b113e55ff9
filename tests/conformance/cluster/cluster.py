"""What an application sees through the Python SDK while nodes of its cluster fail: durable writes, and none of them lost.

Every writer owns some documents and counts up in them; a number that was acknowledged must be there afterwards, or a
higher one that was tried. The cluster is that of `stave dev`, whose control endpoint brings about the failures.
"""

import json
import os
import sys
import threading
import time
import urllib.request
from datetime import timedelta

from couchbase.auth import PasswordAuthenticator
from couchbase.cluster import Cluster
from couchbase.durability import DurabilityLevel, ServerDurability
from couchbase.exceptions import (
    AmbiguousTimeoutException,
    CouchbaseException,
    DurabilityImpossibleException,
    DurabilitySyncWriteAmbiguousException,
    RequestCanceledException,
    UnAmbiguousTimeoutException,
)
from couchbase.options import ClusterOptions, UpsertOptions

LEVELS = (
    DurabilityLevel.MAJORITY,
    DurabilityLevel.MAJORITY_AND_PERSIST_TO_ACTIVE,
    DurabilityLevel.PERSIST_TO_MAJORITY,
)
WRITERS_A_LEVEL = 2
KEYS_A_WRITER = 40
TIMEOUT = timedelta(milliseconds=2500)
# How long writers may take until they go on after a failure: an SDK may wait seconds before it connects again.
GO_ON_WITHIN_S = 20
COLUMNS = ("ok", "retried", "timeouts", "ambiguous", "cancelled", "impossible", "other")


class Tally:
    """What was seen in each phase, and the last number of each document that was tried and acknowledged."""

    def __init__(self):
        self.lock = threading.Lock()
        self.phase = None
        self.phases = {}
        self.tried, self.acknowledged = {}, {}
        self.others = set()
        self.done = False

    def begin(self, phase):
        with self.lock:
            self.phase = self.phases[phase] = dict.fromkeys(COLUMNS, 0) | {"pause": 0.0, "writers": set()}

    def count(self, what):
        with self.lock:
            self.phase[what] += 1

    def other(self, error):
        with self.lock:
            self.phase["other"] += 1
            self.others.add(f"{type(error).__name__}: {error}"[:200])

    def wait_for_all(self):
        """Waits until every writer has gone on; false if some did not."""
        with self.lock:
            self.phase["writers"].clear()
        deadline = time.monotonic() + GO_ON_WITHIN_S
        while time.monotonic() < deadline:
            with self.lock:
                if len(self.phase["writers"]) == len(LEVELS) * WRITERS_A_LEVEL:
                    return True
            time.sleep(0.02)
        return False

    def acknowledge(self, key, number, writer, pause):
        with self.lock:
            self.acknowledged[key] = number
            self.phase["ok"] += 1
            self.phase["writers"].add(writer)
            self.phase["pause"] = max(self.phase["pause"], pause)


def write(collection, tally, name, level):
    """Writes one document after the other; one that is not acknowledged is written again until it is."""
    options = UpsertOptions(durability=ServerDurability(level), timeout=TIMEOUT)
    last, round_ = time.monotonic(), 0
    while not tally.done:
        round_ += 1
        for at in range(KEYS_A_WRITER):
            key = f"python:{name}:{at}"
            tally.tried[key] = round_
            while not tally.done:
                try:
                    collection.upsert(key, {"n": round_}, options)
                except DurabilityImpossibleException:
                    tally.count("impossible")
                    time.sleep(0.02)
                except DurabilitySyncWriteAmbiguousException:
                    tally.count("ambiguous")
                except (AmbiguousTimeoutException, UnAmbiguousTimeoutException):
                    tally.count("timeouts")
                except RequestCanceledException:
                    # Its connection broke: it may have been done.
                    tally.count("cancelled")
                except CouchbaseException as error:
                    tally.other(error)
                    time.sleep(0.02)
                else:
                    now = time.monotonic()
                    tally.acknowledge(key, round_, name, now - last)
                    last = now
                    break
                tally.count("retried")


def order(path, method="POST"):
    request = urllib.request.Request(f"{os.environ['STAVE_CONTROL']}/v1/dev{path}", method=method)
    with urllib.request.urlopen(request, timeout=60) as answer:
        return json.load(answer)


def wait_until_failed_over(node):
    deadline = time.monotonic() + 30
    while time.monotonic() < deadline:
        if order("", "GET")["nodes"][node - 1]["status"] == "failed_over":
            return
        time.sleep(0.05)
    raise TimeoutError(f"node {node} was not failed over")


def freeze(node):
    order(f"/nodes/{node}/freeze")
    wait_until_failed_over(node)
    order(f"/nodes/{node}/thaw")
    order(f"/nodes/{node}/recover")


def bring_back(node):
    """On a busy machine a node may be away for so long that others take over from it."""
    if order("", "GET")["nodes"][node - 1]["status"] == "failed_over":
        order(f"/nodes/{node}/recover")


def restart(node):
    order(f"/nodes/{node}/restart")
    bring_back(node)


def kill(node):
    order(f"/nodes/{node}/kill")
    order(f"/nodes/{node}/start")
    bring_back(node)


PHASES = (
    ("steady", lambda: None),
    ("failover", lambda: (order("/nodes/2/failover"), order("/nodes/2/recover"))),
    ("freeze", lambda: freeze(3)),
    ("restart", lambda: restart(1)),
    ("kill", lambda: kill(2)),
)


def check(collection, tally):
    """Documents that do not have what was acknowledged."""
    lost = []
    for key, number in tally.acknowledged.items():
        try:
            found = collection.get(key).content_as[dict]["n"]
        except CouchbaseException as error:
            found = type(error).__name__
        if not (isinstance(found, int) and number <= found <= tally.tried[key]):
            lost.append(f"{key}: acknowledged {number}, found {found}")
    return lost


def main():
    authenticator = PasswordAuthenticator(os.environ["STAVE_USER"], os.environ["STAVE_PASSWORD"])
    cluster = Cluster(os.environ["STAVE_CONN"], ClusterOptions(authenticator))
    cluster.wait_until_ready(timedelta(seconds=10))
    collection = cluster.bucket(os.environ["STAVE_BUCKET"]).default_collection()
    tally = Tally()
    tally.begin("steady")
    writers = [
        threading.Thread(target=write, args=(collection, tally, f"{level.name}-{at}", level), daemon=True)
        for level in LEVELS
        for at in range(WRITERS_A_LEVEL)
    ]
    for writer in writers:
        writer.start()
    for name, bring_about in PHASES:
        tally.begin(name)
        bring_about()
        time.sleep(1)
        if not tally.wait_for_all():
            break
    tally.done = True
    for writer in writers:
        writer.join(10)
    lost = check(collection, tally)
    cluster.close()
    report(tally, lost)
    written = all(len(phase["writers"]) == len(writers) for phase in tally.phases.values())
    sys.exit(0 if written and not lost and not tally.others else 1)


def report(tally, lost):
    print(f"{'phase':<10}" + "".join(f"{column:>11}" for column in COLUMNS) + "   longest pause")
    for name, phase in tally.phases.items():
        counts = "".join(f"{phase[column]:>11}" for column in COLUMNS)
        print(f"{name:<10}{counts}   {phase['pause'] * 1000:.0f} ms")
        if len(phase["writers"]) < len(LEVELS) * WRITERS_A_LEVEL:
            print(f"only {len(phase['writers'])} writers have gone on")
    for line in sorted(tally.others) + lost[:10]:
        print(line)
    sums = " ".join(f"{column} {sum(phase[column] for phase in tally.phases.values())}" for column in COLUMNS)
    pause = max(phase["pause"] for phase in tally.phases.values())
    print(f"summary {sums} pause_ms {pause * 1000:.0f} documents {len(tally.acknowledged)} lost {len(lost)}")


main()
