"""The helper against a cluster."""

import subprocess
import sys
import time

import pytest
import stave
from couchbase.auth import PasswordAuthenticator
from couchbase.cluster import Cluster
from couchbase.exceptions import DocumentNotFoundException
from couchbase.options import ClusterOptions


@pytest.fixture(scope="module")
def orders(stave_cluster):
    login = PasswordAuthenticator(stave_cluster.username, stave_cluster.password)
    cluster = Cluster(stave_cluster.connection_string, ClusterOptions(login))
    yield cluster.bucket("default").default_collection()
    cluster.close()


def test_temporary_failures_are_tried_again(stave_reset, orders):
    orders.upsert("a", 1)
    told = stave_reset.fail(opcode="get", times=3)
    assert told["nodes"][0]["injections"][0]["left"] == 3
    assert orders.get("a").content_as[int] == 1


def test_requests_are_delayed(stave_reset, orders):
    orders.upsert("a", 1)
    stave_reset.delay(150, opcode="get", node=1)
    stave_reset.delay(150, opcode="get", node=2)
    begun = time.monotonic()
    orders.get("a")
    assert time.monotonic() - begun >= 0.15
    stave_reset.heal()
    assert all(node["injections"] == [] for node in stave_reset.status()["nodes"])


def test_a_reset_removes_documents_and_starts_nodes(stave_reset, orders):
    orders.upsert("a", 1)
    stave_reset.stop(2)
    told = stave_reset.reset()
    assert all(node["may_serve"] for node in told["nodes"])
    with pytest.raises(DocumentNotFoundException):
        orders.get("a")


def test_refused_orders_say_why(stave_reset):
    with pytest.raises(stave.StaveError, match="404: there is no node 9"):
        stave_reset.kill(9)
    with pytest.raises(stave.StaveError, match="is not frozen"):
        stave_reset.thaw(1)


def test_a_cluster_begins_with_its_seed_file_and_so_it_does_after_a_reset(tmp_path):
    seed = tmp_path / "seed.json"
    seed.write_text('{"buckets": {"default": {"documents": {"a": {"n": 1}}}}}')
    with stave.dev(seed_file=seed) as s:
        cluster = Cluster(s.connection_string, ClusterOptions(PasswordAuthenticator(s.username, s.password)))
        documents = cluster.bucket("default").default_collection()
        assert documents.get("a").content_as[dict] == {"n": 1}
        documents.remove("a")
        s.reset()
        assert documents.get("a").content_as[dict] == {"n": 1}
        cluster.close()
    seed.write_text("{}")
    with pytest.raises(stave.StaveError, match="missing field `buckets` at line 1"):
        stave.dev(seed_file=seed)


def test_a_cluster_that_does_not_start_says_why():
    with pytest.raises(stave.StaveError, match="--replicas 5: give a number"):
        stave.dev(nodes=1, replicas=5)
    with pytest.raises(stave.StaveError, match="/nowhere/stave is not an executable file"):
        stave.dev(binary="/nowhere/stave")


def test_closing_ends_the_process():
    cluster = stave.dev()
    cluster.close()
    cluster.close()
    assert subprocess.run(["ps", "-p", str(cluster.pid)], stdout=subprocess.DEVNULL).returncode == 1


if __name__ == "__main__":
    # For dies_with_parent.py: it is killed while it waits.
    with stave.dev() as started:
        print(started.pid, flush=True)
        sys.stdin.read()
