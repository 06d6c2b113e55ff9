"""Development clusters of Stave for tests: `with stave.dev(nodes=3) as s:`."""

import json
import os
import shutil
import subprocess
import sys
import tempfile
import urllib.error
import urllib.parse
import urllib.request
from pathlib import Path

__all__ = ["Dev", "StaveError", "dev", "find_binary"]

HOW_TO_GET_IT = (
    "no stave program was found: give binary=PATH, set STAVE_BIN, put stave on the PATH, "
    "or build it with `cargo build --release` in the Stave repository"
)


class StaveError(Exception):
    """The cluster did not start, or refused an order."""


def dev(**options):
    """Starts a development cluster; see `Dev`."""
    return Dev(**options)


def find_binary(binary=None):
    """The program: the one given, STAVE_BIN, one on the PATH, one of the repository, or one that is built there."""
    named = binary or os.environ.get("STAVE_BIN")
    if named:
        if not os.access(named, os.X_OK):
            raise StaveError(f"{named} is not an executable file: give the path of the stave program")
        return str(named)
    on_path = shutil.which("stave")
    if on_path:
        return on_path
    for root in _repositories():
        built = [root / "target" / profile / "stave" for profile in ("release", "debug")]
        for path in built:
            if os.access(path, os.X_OK):
                return str(path)
        if shutil.which("cargo"):
            print(f"building stave in {root}, which takes minutes", file=sys.stderr)
            subprocess.run(["cargo", "build", "--release", "--package", "stave"], cwd=root, check=True)
            return str(built[0])
    raise StaveError(HOW_TO_GET_IT)


def _repositories():
    for start in (Path.cwd(), Path(__file__).resolve().parent):
        for folder in (start, *start.parents):
            if (folder / "crates" / "stave" / "Cargo.toml").is_file():
                yield folder


class Dev:
    """A running cluster. It ends with `close`, with the block, and with this process."""

    def __init__(self, nodes=1, replicas=0, buckets=("default",), username="Administrator", password="password",
                 binary=None, arguments=(), seed_file=None):
        command = [find_binary(binary), "dev", "--json", "--with-parent", str(os.getpid())]
        command += ["--kv", "127.0.0.1:0", "--http", "127.0.0.1:0", "--nodes", str(nodes), "--replicas", str(replicas)]
        command += ["--username", username]
        for bucket in buckets:
            command += ["--bucket", bucket]
        if seed_file is not None:
            command += ["--seed-file", os.fspath(seed_file)]
        self._log = tempfile.TemporaryFile()
        self._process = subprocess.Popen(
            [*command, *arguments], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=self._log,
            env={**os.environ, "STAVE_PASSWORD": password})
        line = self._process.stdout.readline()
        if not line:
            status = self._process.wait()
            self._log.seek(0)
            log = self._log.read().decode(errors="replace")[-2000:]
            self._close_files()
            raise StaveError(f"stave dev ended with status {status} before it was ready; its log ends with:\n{log}")
        ready = json.loads(line)
        self.username, self.password = username, password
        self.nodes = ready["nodes"]
        self.ca = ready["ca"]
        self.connection_string = "couchbase://" + ",".join(node["kv"] for node in self.nodes)
        self.http = "http://" + self.nodes[0]["http"]
        self.control = "http://" + ready["control"]
        self.pid = self._process.pid

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()

    def _close_files(self):
        self._process.stdout.close()
        self._log.close()

    def close(self):
        """Ends the cluster and waits for that; does nothing the second time."""
        if self._process.poll() is None:
            self._process.terminate()
        self._process.wait()
        self._close_files()

    def order(self, path, **options):
        """Any order of the control endpoint: `order("nodes/2/cut", **{"from": "store"})`. Returns what the cluster is then."""
        query = urllib.parse.urlencode({name: _text(value) for name, value in options.items() if value is not None})
        return self._ask("POST", path, query)

    def status(self):
        """What each node is and where it listens."""
        return self._ask("GET", "", "")

    def _ask(self, method, path, query):
        url = f"{self.control}/v1/dev/{path}" + (f"?{query}" if query else "")
        try:
            with urllib.request.urlopen(urllib.request.Request(url, method=method)) as answer:
                return json.load(answer)
        except urllib.error.HTTPError as error:
            message = json.load(error).get("message", "")
            raise StaveError(f"{method} {url} was refused with {error.code}: {message}") from None

    def reset(self):
        """All nodes serve, without injected failures, and all buckets are empty, or have what the seed file says."""
        return self.order("reset")

    def delay(self, ms, opcode=None, node=None, times=None):
        """Requests wait: those of one command or of all, on one node or on all, as often as `times` says or until `heal`."""
        return self.order(_at(node, "delay"), ms=ms, opcode=opcode, times=times)

    def fail(self, opcode=None, node=None, times=None, status="temporary-failure"):
        """Requests are refused: temporary-failure, busy, out-of-memory or internal-error."""
        return self.order(_at(node, "fail"), status=status, opcode=opcode, times=times)

    def heal(self, node=None):
        """Takes back delays and failures."""
        return self.order(_at(node, "heal"))

    def advance_clock(self, seconds, node=None):
        """Moves the wall clock, so that documents expire."""
        return self.order("clock", advance_s=seconds, node=node)


def _at(node, order):
    return order if node is None else f"nodes/{node}/{order}"


def _text(value):
    return str(value).lower() if isinstance(value, bool) else str(value)


def _node_order(name):
    def order(self, node, **options):
        return self.order(f"nodes/{node}/{name}", **options)

    order.__name__, order.__doc__ = name, f"`POST /v1/dev/nodes/N/{name}`"
    return order


for _name in ("kill", "stop", "start", "restart", "freeze", "thaw", "failover", "recover"):
    setattr(Dev, _name, _node_order(_name))
