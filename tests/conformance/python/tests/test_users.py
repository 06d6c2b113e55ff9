"""Users and groups that come, change and go while the server runs."""

import uuid

import pytest
from couchbase.cluster import Cluster
from couchbase.exceptions import (
    CouchbaseException,
    GroupNotFoundException,
    InvalidArgumentException,
    UserNotFoundException,
)
from couchbase.management.users import Group, Role, User
from couchbase.options import ClusterOptions

from support import authenticator, seconds


@pytest.fixture
def users(cluster):
    return cluster.users()


@pytest.fixture
def name():
    return f"py-{uuid.uuid4().hex[:12]}"


def test_a_user_is_made_read_and_dropped(users, server, name):
    bucket = server["STAVE_BUCKET"]
    roles = [Role("data_reader", bucket), Role("data_writer", bucket, "_default", "_default")]
    users.upsert_user(User(username=name, password="secret-1", display_name="A name", roles=roles))
    found = users.get_user(name)
    assert found.user.username == name
    assert found.user.display_name == "A name"
    assert {role.name for role in found.user.roles} == {"data_reader", "data_writer"}
    assert name in [user.user.username for user in users.get_all_users()]
    users.drop_user(name)
    with pytest.raises(UserNotFoundException):
        users.get_user(name)
    with pytest.raises(UserNotFoundException):
        users.drop_user(name)


def test_roles_that_there_are_not_are_refused(users, name):
    with pytest.raises(InvalidArgumentException):
        users.upsert_user(User(username=name, password="secret-1", roles=[Role("nobody")]))


def test_a_user_has_the_roles_of_its_groups(users, server, name):
    group = f"{name}-group"
    users.upsert_group(Group(name=group, description="readers", roles=[Role("data_reader", server["STAVE_BUCKET"])]))
    assert users.get_group(group).description == "readers"
    assert group in [found.name for found in users.get_all_groups()]
    users.upsert_user(User(username=name, password="secret-1", groups={group}, roles=[]))
    found = users.get_user(name)
    assert [role.role.name for role in found.effective_roles] == ["data_reader"]
    users.drop_user(name)
    users.drop_group(group)
    with pytest.raises(GroupNotFoundException):
        users.get_group(group)


def test_roles_are_listed(users):
    names = {role.role.name for role in users.get_roles()}
    assert {"admin", "data_reader", "data_writer", "data_dcp_reader", "bucket_admin"} <= names


def test_a_user_logs_in_and_may_what_its_roles_say(users, server, cluster, collection, key, name):
    bucket = server["STAVE_BUCKET"]
    collection.upsert(key, {"a": 1})
    users.upsert_user(User(username=name, password="secret-1", roles=[Role("data_reader", bucket)]))
    own = Cluster(server["STAVE_CONN"], ClusterOptions(authenticator(server, name, "secret-1")))
    documents = own.bucket(bucket).default_collection()
    assert documents.get(key).content_as[dict] == {"a": 1}
    with pytest.raises(CouchbaseException):
        documents.upsert(key, {"a": 2}, timeout=seconds(2))
    assert documents.get(key).content_as[dict] == {"a": 1}
    users.upsert_user(
        User(username=name, roles=[Role("data_reader", bucket), Role("data_writer", bucket)])
    )
    documents.upsert(key, {"a": 3})
    assert documents.get(key).content_as[dict] == {"a": 3}
    own.close()
    users.drop_user(name)
