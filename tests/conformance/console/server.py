"""Nodes to look at, and the least of the KV protocol that prepares what HTTP cannot."""

import base64
import json
import re
import socket
import struct
import subprocess
import urllib.error
import urllib.request
import zlib


class Server:
    """`stave serve` or `stave dev`, on free ports; after `kill` it can be started again on the same ones."""

    def __init__(self, binary, *args):
        self.binary, self.args = binary, list(args)
        self.kv = self.http = "127.0.0.1:0"
        self.control = self.kvs = None
        self.start()

    def start(self):
        command = [self.binary, *self.args, "--kv", self.kv, "--http", self.http, "--username", "Administrator", "--password", "password"]
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
        for line in self.process.stdout:
            found = re.match(r"ready kv=(\S+) http=(\S+)", line)
            if found:
                self.kv, self.http = found.groups()
                control = re.search(r" control=(\S+)", line)
                self.control = control and control[1]
                kvs = re.search(r" kvs=(\S+)", line)
                self.kvs = kvs and kvs[1]
                return
        raise AssertionError(f"{command} ended before it was ready")

    def kill(self):
        self.process.kill()
        self.process.wait()
        self.process.stdout.close()

    def stop(self):
        self.process.terminate()
        self.process.stdout.close()
        assert self.process.wait() == 0, "it did not stop cleanly"

    def ask(self, method, path, body=None, headers=None, user="Administrator", password="password", at=None):
        credentials = base64.b64encode(f"{user}:{password}".encode()).decode()
        request = urllib.request.Request(
            f"http://{at or self.http}{path}", data=body.encode() if body is not None else None, method=method,
            headers={"Authorization": f"Basic {credentials}", **(headers or {})})
        try:
            with urllib.request.urlopen(request, timeout=30) as answer:
                return answer.status, answer.read().decode()
        except urllib.error.HTTPError as error:
            return error.code, error.read().decode()

    def json(self, path):
        code, body = self.ask("GET", path)
        assert code == 200, f"{path}: {code} {body}"
        return json.loads(body)

    def put(self, key, value, headers=None, bucket="default"):
        quoted = urllib.request.quote(key, safe="")
        headers = headers or {"If-None-Match": "*"}
        return self.ask("PUT", f"/v1/buckets/{bucket}/document?key={quoted}", value, headers)


class Kv:
    """One connection of the KV protocol, logged in, with a bucket selected."""

    def __init__(self, address, bucket="default"):
        host, port = address.rsplit(":", 1)
        self.socket = socket.create_connection((host, int(port)), timeout=20)
        self.file = self.socket.makefile("rb")
        # HELLO with XATTR and JSON.
        self.ask(0x1F, b"console test", struct.pack(">HH", 0x06, 0x0B))
        self.ask(0x21, b"PLAIN", b"\0Administrator\0password")
        self.ask(0x89, bucket.encode())

    def close(self):
        self.file.close()
        self.socket.close()

    def ask(self, opcode, key=b"", value=b"", extras=b"", vbucket=0):
        body = extras + key + value
        self.socket.sendall(struct.pack(">BBHBBHIIQ", 0x80, opcode, len(key), len(extras), 0, vbucket, len(body), 0, 0) + body)
        header = self.file.read(24)
        status, length = struct.unpack(">H", header[6:8])[0], struct.unpack(">I", header[8:12])[0]
        body = self.file.read(length)
        assert status == 0, f"0x{opcode:02x}: status 0x{status:x} {body!r}"
        return body

    def set(self, key, value):
        self.ask(0x01, key.encode(), value.encode(), bytes(8), vbucket=self.vbucket(key))

    @staticmethod
    def vbucket(key, vbuckets=1024):
        return (zlib.crc32(key.encode()) >> 16) & 0x7FFF & (vbuckets - 1)

    def set_xattr(self, key, name, value):
        vbucket = self.vbucket(key)
        spec = struct.pack(">BBHI", 0xC8, 0x05, len(name), len(value)) + name.encode() + value.encode()
        self.ask(0xD1, key.encode(), spec, vbucket=vbucket)
