"""What an application sees through the Python SDK while nodes of its cluster fail: durable writes, and none of them lost.

Every writer owns some documents and counts up in them; a number that was acknowledged must be there afterwards, or a
higher one that was tried. Beside them one scans documents that do not change: no scan has one of them twice, and one has
each of them, until nodes fail and again afterwards. The cluster is that of `stave dev`, whose control endpoint brings about the failures.
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
from couchbase.kv_range_scan import PrefixScan
from couchbase.mutation_state import MutationState
from couchbase.options import ClusterOptions, ScanOptions, UpsertOptions

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
# Documents that are scanned, over all vBuckets and nodes.
SCANNED = 300
# How long scans may fail after nodes did, until one has ended without an error.
SCAN_AGAIN_WITHIN_S = 30
COLUMNS = ("ok", "retried", "timeouts", "ambiguous", "cancelled", "impossible", "other")


class Tally:
    """What was seen in each phase, and the last number of each document that was tried and acknowledged."""

    def __init__(self):
        self.lock = threading.Lock()
        self.phase = None
        self.phases = {}
        self.tried, self.acknowledged = {}, {}
        self.others = set()
        self.scans = {}
        self.wrong_scans = []
        self.done = False

    def begin(self, phase):
        with self.lock:
            self.phase = self.phases[phase] = dict.fromkeys(COLUMNS, 0) | {"pause": 0.0, "writers": set()}
            self.scan = self.scans[phase] = {"whole": 0, "failed": 0, "after": 0}

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

    def wait_for_a_scan(self):
        """Waits for a scan that begins now to end without an error; false if none did."""
        with self.lock:
            scan = self.scan
            scan["after"] = 0
        deadline = time.monotonic() + SCAN_AGAIN_WITHIN_S
        while time.monotonic() < deadline:
            with self.lock:
                # The first one may have begun before.
                if scan["after"] >= 2:
                    return True
            time.sleep(0.02)
        return False

    def scanned(self, wrong):
        with self.lock:
            self.scan["whole"] += 1
            self.scan["after"] += 1
            if wrong:
                self.wrong_scans.append(f"{list(self.phases)[-1]}: {wrong}")

    def is_steady(self):
        """Whether no node has failed yet."""
        with self.lock:
            return len(self.phases) == 1

    def scan_failed(self):
        with self.lock:
            self.scan["failed"] += 1

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


def store_for_scans(collection):
    """The documents that are scanned, saved on their nodes: scans show what is saved."""
    state = MutationState(*(collection.upsert(f"scan:{at}", {"n": at}) for at in range(SCANNED)))
    options = ScanOptions(ids_only=True, consistent_with=state, timeout=timedelta(seconds=20))
    assert sum(1 for _ in collection.scan(PrefixScan("scan:"), options)) == SCANNED


def scan(collection, tally):
    """Scans again and again; what a scan shows that ends without an error is each document once."""
    expected = sorted(f"scan:{at}" for at in range(SCANNED))
    options = ScanOptions(ids_only=True, timeout=timedelta(seconds=10))
    while not tally.done:
        try:
            found = sorted(one.id for one in collection.scan(PrefixScan("scan:"), options))
        except CouchbaseException:
            # A node failed, or a vBucket went to another one: the SDK says so.
            tally.scan_failed()
            time.sleep(0.02)
            continue
        wrong = None
        if not tally.is_steady() and len(set(found)) == len(found) < SCANNED and set(found) < set(expected):
            # This SDK ends a scan without an error if one of its streams fails while an item is taken: it looks at "cancelled"
            # before it looks at the error (next_item in core/range_scan_orchestrator.cxx of couchbase-cxx-client, August
            # 2026). That nothing is missing while nodes fail is looked at with the Java SDK.
            tally.scan_failed()
            continue
        if found != expected:
            missing, more = set(expected) - set(found), len(found) - len(set(found))
            wrong = f"a scan has {len(found)} of {SCANNED}: missing {sorted(missing)[:5]}, {more} of them twice"
        tally.scanned(wrong)


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
    store_for_scans(collection)
    scanner = threading.Thread(target=scan, args=(collection, tally), daemon=True)
    for thread in [*writers, scanner]:
        thread.start()
    scans = True
    for name, bring_about in PHASES:
        tally.begin(name)
        bring_about()
        time.sleep(1)
        if not tally.wait_for_all():
            break
        if scans and not tally.wait_for_a_scan():
            scans = False
            print(f"no scan has ended without an error within {SCAN_AGAIN_WITHIN_S} s after {name}")
    tally.done = True
    for thread in [*writers, scanner]:
        thread.join(10)
    lost = check(collection, tally)
    cluster.close()
    report(tally, lost)
    written = all(len(phase["writers"]) == len(writers) for phase in tally.phases.values())
    scanned = scans and not tally.wrong_scans
    sys.exit(0 if written and scanned and not lost and not tally.others else 1)


def report(tally, lost):
    print(f"{'phase':<10}" + "".join(f"{column:>11}" for column in COLUMNS) + "   longest pause")
    for name, phase in tally.phases.items():
        counts = "".join(f"{phase[column]:>11}" for column in COLUMNS)
        print(f"{name:<10}{counts}   {phase['pause'] * 1000:.0f} ms")
        if len(phase["writers"]) < len(LEVELS) * WRITERS_A_LEVEL:
            print(f"only {len(phase['writers'])} writers have gone on")
    for name, scan_ in tally.scans.items():
        print(f"scans {name:<10} {scan_['whole']:>5} whole {scan_['failed']:>5} failed")
    for line in sorted(tally.others) + lost[:10] + tally.wrong_scans[:10]:
        print(line)
    sums = " ".join(f"{column} {sum(phase[column] for phase in tally.phases.values())}" for column in COLUMNS)
    pause = max(phase["pause"] for phase in tally.phases.values())
    print(f"summary {sums} pause_ms {pause * 1000:.0f} documents {len(tally.acknowledged)} lost {len(lost)}")


main()
