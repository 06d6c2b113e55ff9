"""The manifests in deploy/kubernetes: valid, true of the program, and a cluster that outlives its pods.

STAVE is the program. With PODS=1 the process is root in namespaces of its own for the network and mounts.
"""

import os
import re
import shutil
import subprocess
import tempfile
import unittest
import urllib.parse
import urllib.request
from base64 import b64encode
from pathlib import Path

import kubernetes_validate
import yaml

import pods

ROOT = Path(__file__).resolve().parents[3]
FOLDER = ROOT / "deploy/kubernetes"
PAGE = ROOT / "docs/kubernetes.md"
# The oldest version with everything that the manifests use that the schemas know, and the newest.
VERSIONS = ["1.25", "1.31", "1.37"]
PASSWORD = "secret1-of-pods"


def documents():
    listed = yaml.safe_load((FOLDER / "kustomization.yaml").read_text())["resources"]
    return [document for file in listed for document in yaml.safe_load_all((FOLDER / file).read_text())]


def of_kind(kind):
    return {document["metadata"]["name"]: document for document in documents() if document["kind"] == kind}


def pod_labels(workload):
    return workload["spec"]["template"]["metadata"]["labels"]


def containers():
    for workload in of_kind("StatefulSet").values():
        spec = workload["spec"]["template"]["spec"]
        for container in spec["containers"]:
            yield workload, spec, container


class Manifests(unittest.TestCase):
    def test_every_document_is_valid_in_each_version(self):
        for version in VERSIONS:
            for document in documents():
                with self.subTest(version=version, kind=document["kind"], name=document["metadata"]["name"]):
                    kubernetes_validate.validate(document, version, strict=True)

    def test_documents_of_the_page_are_valid_and_their_commands_exist(self):
        blocks = re.findall(r"^```yaml\n(.*?)^```", PAGE.read_text(), re.M | re.S)
        found = [document for block in blocks for document in yaml.safe_load_all(block) if "apiVersion" in document]
        self.assertGreater(len(found), 2)
        nodes = of_kind("Service")["stave"]["spec"]["selector"]
        for document in found:
            for version in VERSIONS:
                with self.subTest(version=version, kind=document["kind"], name=document["metadata"]["name"]):
                    kubernetes_validate.validate(document, version, strict=True)
            pod = document["spec"].get("jobTemplate", {}).get("spec", {}).get("template", document)
            self.assertFalse(nodes.items() <= pod["metadata"].get("labels", {}).items(), "the Service would choose it")
            for container in [*pod["spec"].get("initContainers", []), *pod["spec"].get("containers", [])]:
                if container["command"] == ["/usr/bin/stave"]:
                    # With --help the program reads all flags, and does nothing else.
                    subprocess.run([os.environ["STAVE"], *container["args"], "--help"], check=True, capture_output=True)

    def test_a_mistake_would_be_found(self):
        broken = of_kind("StatefulSet")["stave"]
        broken["spec"]["template"]["spec"]["containers"][0]["livenesProbe"] = {}
        with self.assertRaises(kubernetes_validate.ValidationError):
            kubernetes_validate.validate(broken, VERSIONS[-1], strict=True)

    def test_all_files_are_listed(self):
        listed = yaml.safe_load((FOLDER / "kustomization.yaml").read_text())["resources"]
        there = {path.name for path in FOLDER.iterdir()} - {"kustomization.yaml"}
        self.assertEqual(set(listed), there)

    def test_selectors_find_one_workload(self):
        workloads = of_kind("StatefulSet").values()
        chosen = [(name, service["spec"]["selector"]) for name, service in of_kind("Service").items()]
        chosen += [(name, budget["spec"]["selector"]["matchLabels"])
                   for name, budget in of_kind("PodDisruptionBudget").items()]
        for policy in of_kind("NetworkPolicy").values():
            chosen.append(("policy", policy["spec"]["podSelector"]["matchLabels"]))
            for rule in policy["spec"]["ingress"]:
                chosen += [("source", source["podSelector"]["matchLabels"]) for source in rule["from"]]
        for name, selector in chosen:
            found = [workload for workload in workloads if selector.items() <= pod_labels(workload).items()]
            self.assertEqual(len(found), 1, f"{name}: {selector}")
        for workload in workloads:
            self.assertEqual(workload["spec"]["selector"]["matchLabels"], pod_labels(workload))

    def test_ports_exist(self):
        for workload, _, container in containers():
            names = {port["name"] for port in container["ports"]}
            for probe in ("startupProbe", "livenessProbe", "readinessProbe"):
                self.assertIn(container[probe]["httpGet"]["port"], names)
            for name, service in of_kind("Service").items():
                if service["spec"]["selector"].items() <= pod_labels(workload).items():
                    for port in service["spec"]["ports"]:
                        self.assertIn(port["targetPort"], names, name)
            for policy in of_kind("NetworkPolicy").values():
                if policy["spec"]["podSelector"]["matchLabels"].items() <= pod_labels(workload).items():
                    for rule in policy["spec"]["ingress"]:
                        self.assertLessEqual({port["port"] for port in rule["ports"]}, names)

    def test_workloads_have_a_headless_service_and_a_budget(self):
        services = of_kind("Service")
        for name, workload in of_kind("StatefulSet").items():
            service = services[workload["spec"]["serviceName"]]
            self.assertEqual(service["spec"]["clusterIP"], "None")
            self.assertTrue(service["spec"]["publishNotReadyAddresses"])
            self.assertEqual(of_kind("PodDisruptionBudget")[name]["spec"]["maxUnavailable"], 1)

    def test_containers_have_few_rights(self):
        for _, spec, container in containers():
            self.assertFalse(spec["automountServiceAccountToken"])
            self.assertFalse(spec["enableServiceLinks"])
            self.assertTrue(spec["securityContext"]["runAsNonRoot"])
            self.assertEqual(spec["securityContext"]["seccompProfile"]["type"], "RuntimeDefault")
            rights = container["securityContext"]
            self.assertFalse(rights["allowPrivilegeEscalation"])
            self.assertTrue(rights["readOnlyRootFilesystem"])
            self.assertEqual(rights["capabilities"], {"drop": ["ALL"]})
            self.assertIn("memory", container["resources"]["limits"])
            self.assertNotIn("latest", container["image"])

    def test_volumes_and_secrets_exist(self):
        for workload, spec, container in containers():
            claims = {claim["metadata"]["name"] for claim in workload["spec"]["volumeClaimTemplates"]}
            volumes = {volume["name"] for volume in spec.get("volumes", [])}
            for mount in container["volumeMounts"]:
                self.assertIn(mount["name"], claims | volumes)
            for entry in container["env"]:
                path = entry.get("value", "")
                if path.startswith("/"):
                    self.assertTrue(any(path.startswith(f"{mount['mountPath']}/")
                                        for mount in container["volumeMounts"]), path)

    def test_members_of_etcd_are_as_many_as_its_pods(self):
        etcd = of_kind("StatefulSet")["stave-etcd"]
        (container,) = etcd["spec"]["template"]["spec"]["containers"]
        named = {entry["name"]: entry.get("value") for entry in container["env"]}["ETCD_INITIAL_CLUSTER"]
        self.assertEqual([member.split("=")[0] for member in named.split(",")],
                         [f"stave-etcd-{ordinal}" for ordinal in range(etcd["spec"]["replicas"])])

    def test_the_image_is_the_one_that_is_made(self):
        source = (ROOT / "xtask/src/dist/oci.rs").read_text()
        stave = of_kind("StatefulSet")["stave"]["spec"]["template"]["spec"]
        user = int(re.search(r"USER: u32 = ([\d_]+);", source)[1].replace("_", ""))
        program = re.search(r'PROGRAM: &str = "(.*)";', source)[1]
        self.assertEqual(stave["securityContext"]["runAsUser"], user)
        self.assertEqual(stave["containers"][0]["command"], [f"/{program}"])
        version = re.search(r'^version = "(.*)"', (ROOT / "Cargo.toml").read_text(), re.M)[1]
        (image,) = yaml.safe_load((FOLDER / "kustomization.yaml").read_text())["images"]
        self.assertEqual((image["name"], image["newTag"]), ("stave", version))
        self.assertEqual(stave["containers"][0]["image"], image["name"])

    def test_variables_are_those_of_the_program(self):
        text = subprocess.run([os.environ["STAVE"], "serve", "--help"], check=True, capture_output=True, text=True)
        known = set(re.findall(r"\[env: (STAVE_\w+)", text.stdout))
        (container,) = of_kind("StatefulSet")["stave"]["spec"]["template"]["spec"]["containers"]
        used = {entry["name"] for entry in container["env"] if entry["name"].startswith("STAVE_")}
        self.assertEqual(used - known, set())

    @unittest.skipUnless(shutil.which("kubectl"), "there is no kubectl")
    def test_kustomize_understands_them(self):
        made = subprocess.run(["kubectl", "kustomize", FOLDER], check=True, capture_output=True, text=True).stdout
        self.assertEqual(len(list(yaml.safe_load_all(made))), len(documents()))


def commands_of_page(heading):
    """What a section of the page has run in pods, or which pods it deletes: (verb, pod, words)."""
    section = PAGE.read_text().split(f"\n## {heading}\n")[1].split("\n## ")[0]
    found = re.findall(r"^kubectl (exec|delete pod) (\S+)(?: -- (.*))?$", section, re.M)
    return [(verb, pod, words.split()) for verb, pod, words in found]


@unittest.skipUnless(os.environ.get("PODS"), "pods need root and namespaces: run.sh makes them")
class Pods(unittest.TestCase):
    def setUp(self):
        scratch = tempfile.TemporaryDirectory(prefix="stave-pods-")
        self.addCleanup(scratch.cleanup)
        # The users of the pods pass through it.
        os.chmod(scratch.name, 0o755)
        self.binary = os.environ["STAVE"]
        images = {"/usr/bin/stave": self.binary, "/usr/local/bin/etcd": shutil.which("etcd")}
        self.kubelet = pods.Kubelet(Path(scratch.name), images, {"stave": {"password": PASSWORD}})
        self.addCleanup(self.kubelet.end)
        workloads = of_kind("StatefulSet")
        self.etcd = self.kubelet.stateful_set(workloads["stave-etcd"])
        self.nodes = self.kubelet.stateful_set(workloads["stave"])

    def start(self, started, wait):
        for pod in started:
            pod.start()
        pods.together(started, wait)

    def http(self, path, **form):
        node = self.nodes[0]
        data = urllib.parse.urlencode(form).encode() if form else None
        request = urllib.request.Request(f"http://{node.address}:{node.port('http')}{path}", data)
        login = b64encode(f"Administrator:{PASSWORD}".encode()).decode()
        request.add_header("Authorization", f"Basic {login}")
        with urllib.request.urlopen(request, timeout=30) as answer:
            return answer.read()

    def stave(self, pod, *words):
        """A client beside the pods that asks one of them, and goes on with the names of nodes."""
        done = subprocess.run(
            [self.binary, *words, "--bucket", "orders", "--addr", f"{pod.address}:{pod.port('kv')}"],
            env={"PATH": os.environ["PATH"], "STAVE_PASSWORD": PASSWORD}, capture_output=True, text=True, timeout=60)
        self.assertEqual(done.returncode, 0, f"{words}: {done.stderr}")
        return done.stdout.strip()

    def check_documents(self, pod, count):
        for number in range(count):
            self.assertEqual(self.stave(pod, "get", f"order-{number}"), f'{{"n":{number}}}')

    def found(self):
        """As the page has it: nodes that are new serve after a rebalance."""
        # Together, as the manifests say: a node waits until etcd answers.
        self.start([*self.etcd, *self.nodes], pods.Pod.wait_started)
        for pod in self.nodes:
            pods.until("all nodes are members", lambda pod=pod: pods.members(pod) == len(self.nodes))
        self.follow_page("Start it")
        pods.together([*self.etcd, *self.nodes], pods.Pod.wait_ready)

    def replace(self, pod):
        """Stops and starts it; the page says to wait until its node is up again. What is up is told by another pod."""
        this = pods.status_of(pod)["this"]
        other = next(node for node in self.nodes if node is not pod)
        alive = lambda: (pods.status_of(other) or {"alive": []})["alive"]
        pod.stop()
        pods.until("its node is down", lambda: this not in alive())
        pod.start()
        pod.wait_started()
        pods.until("its node is up", lambda: this in alive())

    def follow_page(self, heading):
        commands = commands_of_page(heading)
        self.assertGreater(len(commands), 1)
        # The page's n_3 is the node of stave-2, which may have joined as another one.
        nodes = {"n_3": pods.node_of(self.nodes[2])}
        for verb, name, words in commands:
            pod = self.kubelet.pods[name]
            if verb == "delete pod":
                self.replace(pod)
            else:
                pod.execute(*[nodes.get(word, word) for word in words])

    def test_a_cluster_outlives_its_pods(self):
        self.found()
        self.http("/pools/default/buckets", name="orders", ramQuotaMB="100", replicaNumber="1")
        pods.together(self.nodes, pods.Pod.wait_ready)
        for number in range(20):
            self.stave(self.nodes[number % 3], "set", f"order-{number}", f'{{"n":{number}}}')
        # Each pod is replaced, the last one first, and gets another address.
        for pod in reversed(self.nodes):
            pod.stop()
            pod.start()
            pod.wait_ready()
            self.check_documents(pod, 20)
        self.follow_page("Changing it while it runs")
        pods.together(self.nodes, pods.Pod.wait_ready)
        self.check_documents(self.nodes[2], 20)
        # Without etcd the nodes serve, and no probe has them started again.
        for pod in self.etcd:
            pod.kill()
        self.check_documents(self.nodes[0], 20)
        pods.together(self.nodes, lambda pod: pod.wait_for("livenessProbe"))
        # All of them lose their machines at once.
        for pod in [*self.nodes, *self.etcd]:
            pod.kill()
        self.start([*self.etcd, *self.nodes], pods.Pod.wait_ready)
        self.check_documents(self.nodes[1], 20)
        self.lose_a_volume()
        for pod in [*self.nodes, *self.etcd]:
            pod.stop()

    def lose_a_volume(self):
        """The page's cure: the node comes back as another one, and the one that it was leaves."""
        lost, other = self.nodes[1], self.nodes[0]
        was = pods.node_of(lost)
        lost.kill()
        lost.lose_volumes()
        lost.start()
        pods.until("it is another node", lambda: pods.members(other) == len(self.nodes) + 1)
        # Copies that were built again a moment ago may have to catch up first.
        pods.until("the node that it was is failed over", lambda: pods.accepts(other, "failover", was))
        pods.stave_cluster(other, "rebalance")
        lost.wait_ready()
        self.assertNotEqual(pods.node_of(lost), was)
        self.check_documents(lost, 20)


if __name__ == "__main__":
    unittest.main(verbosity=2)
