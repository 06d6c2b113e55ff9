"""Small things that several test files share."""

import os
import time
from datetime import datetime, timedelta

import pytest
from couchbase.auth import PasswordAuthenticator
from couchbase.exceptions import CouchbaseException, DocumentNotFoundException

MIB = 1024 * 1024

# How many copies the bucket keeps on other nodes.
REPLICAS = int(os.environ["STAVE_REPLICAS"])

# An operation that the SDK retries until its timeout is given this much.
SHORT = timedelta(milliseconds=400)

# How long a document with an expiry of one second may take to be gone.
EXPIRY_DEADLINE_S = 10.0

# The C++ core's numbers for errors that have no exception class of their own in the Python SDK.
VALUE_TOO_LARGE = 104


def seconds(count):
    return timedelta(seconds=count)


def authenticator(server, user=None, password=None):
    """The user of the server under test, or another one; over TLS with the CA that is trusted."""
    trusted = {"cert_path": os.environ["STAVE_CA"]} if "STAVE_CA" in os.environ else {}
    return PasswordAuthenticator(user or server["STAVE_USER"], password or server["STAVE_PASSWORD"], **trusted)


def raises_code(code, operation):
    """The error has exactly this number and, having no class of its own, exactly the base class."""
    with pytest.raises(CouchbaseException) as caught:
        operation()
    assert type(caught.value) is CouchbaseException
    assert caught.value.error_code == code


def wait_until_gone(collection, key):
    """Polls, so that the test lasts as long as the expiry does and no longer."""
    deadline = time.monotonic() + EXPIRY_DEADLINE_S
    while time.monotonic() < deadline:
        try:
            collection.get(key)
        except DocumentNotFoundException:
            return
        time.sleep(0.02)
    pytest.fail(f"{key} is still there {EXPIRY_DEADLINE_S} s after it should have expired")


def assert_expires_in(collection, key, expected_s):
    """The document's expiry is `expected_s` seconds from now, give or take the seconds that tick meanwhile."""
    expiry_time = stored_expiry(collection, key)
    assert expiry_time is not None, "the document has no expiry"
    left_s = (expiry_time - datetime.now()).total_seconds()
    assert expected_s - 4 <= left_s <= expected_s + 2


def stored_expiry(collection, key):
    from couchbase.options import GetOptions

    return collection.get(key, GetOptions(with_expiry=True)).expiry_time


def crc32c(data):
    """Castagnoli's CRC, bit by bit: slow, short, and independent of the server's."""
    crc = 0xFFFFFFFF
    for byte in data:
        crc ^= byte
        for _ in range(8):
            crc = (crc >> 1) ^ (0x82F63B78 if crc & 1 else 0)
    return crc ^ 0xFFFFFFFF
