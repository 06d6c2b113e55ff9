"""Runs the pods of a manifest on one machine as a kubelet would, without Kubernetes.

Each container has namespaces of its own for processes, mounts and the network, the addresses and names that a cluster
would give it, exactly the command, environment, user and volumes of the manifest, a root that is read-only, and probes
that are asked at the pod's address. The process that uses this module has to be root in namespaces of its own for the network
and mounts (`unshare --net --mount`).
"""

import json
import os
import re
import shutil
import signal
import subprocess
import threading
import time
import urllib.error
import urllib.request
from pathlib import Path

NAMESPACE = "shop"
# What each loop and wait of this module ends after.
PATIENCE_S = 60
# A container waits for a line before it starts, so that its network is there.
CONTAINER = """
set -e
root=$1 hosts=$2 volumes=$3 user=$4 groups=$5; shift 5
read -r _
mount --make-rprivate /
mount --bind "$root" "$root"
mount --bind "$hosts" "$root/etc/hosts"
while read -r source target options; do
    [ -n "$source" ] || continue
    mount --bind "$source" "$root$target"
    [ "$options" = rw ] || mount -o remount,bind,ro "$root$target"
done < "$volumes"
mount -o remount,bind,ro "$root"
mount -t proc proc "$root/proc"
mount --rbind /dev "$root/dev"
exec setpriv --no-new-privs chroot --userspec="$user" --groups="$groups" "$root" "$@"
"""


class Failure(Exception):
    """What a pod did that it must not."""


def run(*words, **more):
    return subprocess.run([str(word) for word in words], check=True, capture_output=True, text=True, **more).stdout


# What `accepts` was told last.
REFUSALS = []


def until(what, ask, patience_s=PATIENCE_S):
    """Asks until the answer counts as true, at most for the patience."""
    end = time.monotonic() + patience_s
    while True:
        answer = ask()
        if answer:
            return answer
        if time.monotonic() > end:
            raise Failure("; ".join([f"{what}: not within {patience_s} s", *REFUSALS]))
        time.sleep(0.1)


def expand(text, variables):
    """What Kubernetes makes of $(NAME): the variables that were declared before."""
    return re.sub(r"\$\((\w+)\)", lambda name: variables.get(name[1], name[0]), text)


class Network:
    """A bridge with all pods, and the names of those that have one."""

    def __init__(self, folder):
        self.hosts = folder / "hosts"
        self.addresses = {}
        self.given = 1
        self.write()
        # Clients beside the pods know the names, too.
        run("mount", "--bind", self.hosts, "/etc/hosts")
        run("ip", "link", "set", "lo", "up")
        run("ip", "link", "add", "pods", "type", "bridge")
        run("ip", "addr", "add", "10.244.0.1/16", "dev", "pods")
        run("ip", "link", "set", "pods", "up")

    def new_address(self):
        """No address is given twice, as a cluster may do it."""
        self.given += 1
        return f"10.244.{self.given >> 8}.{self.given & 255}"

    def attach(self, pid, address):
        end = f"pod{self.given}"
        run("ip", "link", "add", end, "type", "veth", "peer", "name", "eth0", "netns", pid)
        run("ip", "link", "set", end, "master", "pods", "up")
        inside = ["nsenter", "--target", pid, "--net", "ip"]
        run(*inside, "link", "set", "lo", "up")
        run(*inside, "addr", "add", f"{address}/16", "dev", "eth0")
        run(*inside, "link", "set", "eth0", "up")

    def name(self, pod, service, address):
        """All the names that the search domains of a pod make of one."""
        short = f"{pod}.{service}"
        names = [short, f"{short}.{NAMESPACE}", f"{short}.{NAMESPACE}.svc"]
        self.addresses[pod] = (address, [*names, f"{short}.{NAMESPACE}.svc.cluster.local"])
        self.write()

    def write(self):
        lines = ["127.0.0.1 localhost"]
        lines += [f"{address} {' '.join(names)}" for address, names in self.addresses.values()]
        # In place: containers have this very file mounted.
        with open(self.hosts, "r+" if self.hosts.exists() else "w", encoding="ascii") as file:
            file.write("\n".join(lines) + "\n")
            file.truncate()


class Pod:
    """One pod of a StatefulSet, whose volumes outlive its processes."""

    def __init__(self, kubelet, workload, ordinal):
        self.kubelet, self.workload = kubelet, workload
        self.name = f"{workload['metadata']['name']}-{ordinal}"
        self.spec = workload["spec"]["template"]["spec"]
        (self.container,) = self.spec["containers"]
        self.folder = kubelet.folder / self.name
        self.folder.mkdir()
        self.process = self.pid = None
        self.address = None
        # The last answer to a probe.
        self.said = None
        self.starts = 0
        self.claims = {}
        for claim in workload["spec"].get("volumeClaimTemplates", []):
            self.claims[claim["metadata"]["name"]] = self.new_volume(claim["metadata"]["name"])

    def new_volume(self, name):
        """A fresh file system as kubelets hand it over: of root, with the group of the pod, and not empty."""
        folder = self.folder / f"volume-{name}"
        folder.mkdir()
        os.chown(folder, 0, self.spec["securityContext"]["fsGroup"])
        folder.chmod(0o2775)
        (folder / "lost+found").mkdir(mode=0o700)
        return folder

    def lose_volumes(self):
        """Their files are gone; the claims get new ones."""
        for name, folder in self.claims.items():
            shutil.rmtree(folder)
            self.claims[name] = self.new_volume(name)

    def secret_volume(self, volume):
        """Files behind two links, as kubelets write them."""
        secret = self.kubelet.secrets[volume["secretName"]]
        folder = self.folder / f"secret-{self.starts}"
        inner = folder / "..2026_11_28"
        inner.mkdir(parents=True)
        group = self.spec["securityContext"]["fsGroup"]
        for item in volume["items"]:
            file = inner / item["path"]
            file.write_text(secret[item["key"]])
            os.chown(file, 0, group)
            file.chmod(volume["defaultMode"])
        (folder / "..data").symlink_to(inner.name)
        for item in volume["items"]:
            (folder / item["path"]).symlink_to(f"..data/{item['path']}")
        return folder

    def mounts(self):
        volumes = {volume["name"]: volume for volume in self.spec.get("volumes", [])}
        for mount in self.container["volumeMounts"]:
            source = self.claims.get(mount["name"])
            if source is None:
                source = self.secret_volume(volumes[mount["name"]]["secret"])
            yield source, mount["mountPath"], "ro" if mount.get("readOnly") else "rw"

    def environment(self):
        fields = {
            "metadata.name": self.name,
            "metadata.namespace": NAMESPACE,
            "status.podIP": self.address,
        }
        variables = {}
        for entry in self.container["env"]:
            if "value" in entry:
                variables[entry["name"]] = expand(entry["value"], variables)
            else:
                variables[entry["name"]] = fields[entry["valueFrom"]["fieldRef"]["fieldPath"]]
        return variables

    def start(self):
        """Starts the container, with another address than before."""
        self.starts += 1
        self.address = self.kubelet.network.new_address()
        mounts = list(self.mounts())
        variables = self.environment()
        command = [expand(word, variables) for word in self.container["command"] + self.container.get("args", [])]
        root = self.kubelet.root_of(self.folder / f"root-{self.starts}", command[0], [path for _, path, _ in mounts])
        listed = self.folder / "mounts"
        listed.write_text("".join(f"{source} {path} {mode}\n" for source, path, mode in mounts))
        user = self.spec["securityContext"]
        ids = f"{user['runAsUser']}:{user['runAsGroup']}"
        self.pid = None
        log = open(self.folder / f"log-{self.starts}", "wb")
        self.process = subprocess.Popen(
            ["unshare", "--net", "--mount", "--pid", "--fork", "--kill-child", "sh", "-c", CONTAINER, "sh",
             root, self.kubelet.network.hosts, listed, ids, str(user["fsGroup"]), *command],
            stdin=subprocess.PIPE, stdout=log, stderr=log,
            env={"PATH": "/usr/sbin:/usr/bin:/sbin:/bin", **variables},
        )
        log.close()
        self.pid = until(f"the process of {self.name}", self.inner)
        self.kubelet.network.attach(self.pid, self.address)
        self.kubelet.network.name(self.name, self.workload["spec"]["serviceName"], self.address)
        self.process.stdin.write(b"go\n")
        self.process.stdin.close()

    def inner(self):
        """The process that is the first one in the container."""
        if self.process.poll() is not None:
            raise Failure(f"{self.name} ended with {self.process.returncode}: {self.log()}")
        children = Path(f"/proc/{self.process.pid}/task/{self.process.pid}/children").read_text().split()
        return int(children[0]) if children else None

    def log(self):
        return (self.folder / f"log-{self.starts}").read_text(errors="replace")[-4000:]

    def port(self, name):
        ports = {port["name"]: port["containerPort"] for port in self.container["ports"]}
        return ports[name] if isinstance(name, str) else name

    def probe(self, kind):
        """Asks a probe once."""
        probe = self.container[kind]
        get = probe["httpGet"]
        url = f"http://{self.address}:{self.port(get['port'])}{get['path']}"
        try:
            with urllib.request.urlopen(url, timeout=probe.get("timeoutSeconds", 1)) as answer:
                self.said = answer.read(2000)
                return 200 <= answer.status < 400
        except urllib.error.HTTPError as refused:
            self.said = refused.read(2000)
        except OSError as failure:
            self.said = failure
        return False

    def wait_for(self, kind, patience_s=PATIENCE_S):
        """Until a probe is answered; a container that ends is a failure at once."""

        def asked():
            if self.process.poll() is not None:
                raise Failure(f"{self.name} ended with {self.process.returncode}: {self.log()}")
            return self.probe(kind)

        try:
            until(f"{kind} of {self.name}", asked, patience_s)
        except Failure as failure:
            raise Failure(f"{failure}: {self.said}: {self.log()}") from failure

    def wait_started(self):
        """As long as the manifest lets the startup probe fail."""
        probe = self.container["startupProbe"]
        self.wait_for("startupProbe", min(probe["periodSeconds"] * probe["failureThreshold"], PATIENCE_S))
        self.wait_for("livenessProbe")

    def wait_ready(self):
        self.wait_started()
        self.wait_for("readinessProbe")

    def stop(self):
        """SIGTERM to the first process; its status must be 0 within the time that the manifest gives it."""
        os.kill(self.pid, signal.SIGTERM)
        status = self.process.wait(min(self.spec["terminationGracePeriodSeconds"], PATIENCE_S))
        if status != 0:
            raise Failure(f"{self.name} ended with {status} at SIGTERM: {self.log()}")

    def kill(self):
        """The machine is gone: nothing of the container runs any more."""
        if self.process is not None and self.process.poll() is None:
            # Its first process takes the others along, and its parent ends after it.
            os.kill(self.pid or self.process.pid, signal.SIGKILL)
            self.process.wait(PATIENCE_S)

    def execute(self, *words, check=True):
        """`kubectl exec POD -- WORDS`: in the container's namespaces, as its user, with its environment."""
        user = self.spec["securityContext"]
        done = subprocess.run(
            ["nsenter", "--target", str(self.pid), "--mount", "--net", "--pid", "--root", "--wd=/",
             f"--setuid={user['runAsUser']}", f"--setgid={user['runAsGroup']}", *words],
            env={"PATH": "/usr/bin:/bin", **self.environment()}, capture_output=True, text=True, timeout=PATIENCE_S,
        )
        if check and done.returncode != 0:
            raise Failure(f"{self.name}: {' '.join(words)}: {done.stdout}{done.stderr}")
        return done.stdout


class Kubelet:
    """All pods of a cluster."""

    def __init__(self, folder, images, secrets):
        """`images` maps a path in an image to a program of this machine."""
        self.folder, self.images, self.secrets = folder, images, secrets
        self.network = Network(folder)
        self.pods = {}

    def root_of(self, root, program, volumes):
        """What an image holds: one program and the libraries that it is linked with."""
        source = Path(self.images[program])
        listed = subprocess.run(["ldd", source], capture_output=True, text=True, check=False).stdout
        libraries = re.findall(r"(?:=> )?(/\S+) \(0x", listed)
        for path, file in [(program, source), *((library, Path(library)) for library in libraries)]:
            target = root / path.lstrip("/")
            target.parent.mkdir(parents=True, exist_ok=True)
            # All roots share one copy.
            kept = self.folder / f"image-{file.name}"
            if not kept.exists():
                shutil.copy(file, kept)
            os.link(kept, target)
        for folder in ["proc", "dev", "etc", *(path.lstrip("/") for path in volumes)]:
            (root / folder).mkdir(parents=True, exist_ok=True)
        (root / "etc/hosts").touch()
        return root

    def stateful_set(self, workload):
        """Makes its pods; starts none."""
        return [self.add(Pod(self, workload, ordinal)) for ordinal in range(workload["spec"]["replicas"])]

    def add(self, pod):
        self.pods[pod.name] = pod
        return pod

    def end(self):
        for pod in self.pods.values():
            pod.kill()


def together(pods, call):
    """Calls for all pods at once; the first failure is told."""
    failures = []

    def one(pod):
        try:
            call(pod)
        except Exception as failure:  # told below, whatever it is
            failures.append(failure)

    threads = [threading.Thread(target=one, args=[pod]) for pod in pods]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if failures:
        raise failures[0]


def stave_cluster(pod, *words, check=True):
    """`stave cluster` in a pod."""
    password = ["--password-file", "/etc/stave/secret/password"]
    return pod.execute("/usr/bin/stave", "cluster", *words, *password, check=check)


def accepts(pod, *words):
    """Whether `stave cluster` does that now; `until` tells why not."""
    try:
        stave_cluster(pod, *words)
    except Failure as failure:
        REFUSALS[:] = [str(failure)]
        return False
    return True


def status_of(pod):
    """The cluster as a node tells it; `None` as long as it does not know."""
    status = stave_cluster(pod, "status", "--json", check=False)
    told = json.loads(status) if status else {}
    # A failure is told as an object, too.
    return None if "error" in told or not told else told


def members(pod):
    """How many nodes the cluster has, as one of them tells it."""
    status = status_of(pod)
    return len(status["state"]["nodes"]) if status else 0


def node_of(pod):
    """What the cluster calls a pod's node."""
    return f"n_{status_of(pod)['this']}"
