"""The plug-in for pytest: a cluster for the session, and the same, reset, for a test."""

import pytest

from . import Dev


def pytest_addoption(parser):
    group = parser.getgroup("stave")
    for name, default, text in (("nodes", "1", "nodes of the cluster"), ("replicas", "0", "copies of each vBucket")):
        group.addoption(f"--stave-{name}", default=None, help=text)
        parser.addini(f"stave_{name}", text, default=default)
    group.addoption("--stave-seed-file", default=None, help="documents that the cluster begins with")
    parser.addini("stave_seed_file", "documents that the cluster begins with, beside the file of this option", default="")


def _seed_file(config):
    given = config.getoption("--stave-seed-file")
    named = config.getini("stave_seed_file")
    if given is None and named:
        return config.rootpath / named
    return given


@pytest.fixture(scope="session")
def stave_cluster(request):
    """A development cluster that lives as long as the session."""

    def option(name):
        given = request.config.getoption(f"--stave-{name}")
        return int(request.config.getini(f"stave_{name}") if given is None else given)

    with Dev(nodes=option("nodes"), replicas=option("replicas"), seed_file=_seed_file(request.config)) as cluster:
        yield cluster


@pytest.fixture
def stave_reset(stave_cluster):
    """The cluster of the session, reset before this test."""
    stave_cluster.reset()
    return stave_cluster
