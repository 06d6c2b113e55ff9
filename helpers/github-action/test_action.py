#!/usr/bin/env python3
"""Runs the script of the action as a runner would: inputs in the environment, outputs in files. STAVE_BIN is the program."""

import os
import re
import signal
import subprocess
import tempfile
import time
import unittest
from pathlib import Path

HERE = Path(__file__).resolve().parent
BINARY = os.environ["STAVE_BIN"]


class Action(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = Path(folder.name)

    def run_action(self, **inputs):
        """Starts it with the defaults of action.yml; returns the step, its outputs and the variables for later ones."""
        text = (HERE / "action.yml").read_text()
        defaults = re.findall(r"^  ([a-z-]+):\n    description: .*\n    default: \"?([^\"\n]*)\"?$", text, re.M)
        variables = {name: dict(defaults)[key] for name, key in re.findall(
            r"^        (\w+): \$\{\{ inputs\.([a-z-]+) \}\}$", text, re.M)}
        self.assertEqual(len(variables), 6)
        output, env = self.folder / "output", self.folder / "env"
        step = subprocess.run([HERE / "start.sh"], capture_output=True, text=True, timeout=180, cwd=self.folder, env={
            "PATH": os.environ["PATH"], "RUNNER_TEMP": str(self.folder), "GITHUB_OUTPUT": str(output),
            "GITHUB_ENV": str(env), **variables, "INPUT_BINARY": BINARY, **inputs})
        read = lambda path: dict(line.split("=", 1) for line in path.read_text().splitlines()) if path.exists() else {}
        outputs = read(output)
        if "pid" in outputs:
            self.addCleanup(self.end, int(outputs["pid"]))
        return step, outputs, read(env)

    def end(self, pid):
        """SIGTERM ends it; the process is not a child of this one."""
        os.kill(pid, signal.SIGTERM)
        give_up = time.monotonic() + 60
        while Path(f"/proc/{pid}").exists() and Path(f"/proc/{pid}/stat").read_text().split()[2] != "Z":
            self.assertLess(time.monotonic(), give_up, "it does not end")
            time.sleep(0.05)

    def stave(self, variables, *words):
        addr = variables["STAVE_CONNECTION_STRING"].removeprefix("couchbase://").split(",")[0]
        done = subprocess.run([BINARY, *words, "--addr", addr], capture_output=True, text=True, timeout=60,
                              env={"PATH": os.environ["PATH"], **variables})
        self.assertEqual(done.returncode, 0, done.stderr)
        return done.stdout.strip()

    def test_later_steps_reach_the_cluster(self):
        step, outputs, variables = self.run_action(INPUT_NODES="3", INPUT_REPLICAS="1",
                                                   INPUT_BUCKETS="orders sessions:100MiB:ephemeral")
        self.assertEqual(step.returncode, 0, step.stdout + step.stderr)
        self.assertEqual(outputs["connection-string"].count(","), 2)
        self.assertEqual(variables["STAVE_CONNECTION_STRING"], outputs["connection-string"])
        self.assertIn(f"::add-mask::{variables['STAVE_PASSWORD']}\n", step.stdout)
        for bucket in ("orders", "sessions"):
            self.stave(variables, "set", "k", "1", "--bucket", bucket)
            self.assertEqual(self.stave(variables, "get", "k", "--bucket", bucket), "1")

    def test_documents_to_begin_with_are_there(self):
        (self.folder / "seed.jsonl").write_text('{"key":"k","value":{"n":1}}\n')
        step, _, variables = self.run_action(INPUT_SEED_FILE="seed.jsonl")
        self.assertEqual(step.returncode, 0, step.stdout + step.stderr)
        self.assertEqual(self.stave(variables, "get", "k"), '{"n":1}')

    def test_what_is_wrong_fails_the_step(self):
        for inputs, what in [({"INPUT_NODES": "many"}, "did not become ready"), ({"INPUT_BINARY": "/none"}, "/none")]:
            step, outputs, _ = self.run_action(**inputs)
            self.assertNotEqual(step.returncode, 0)
            self.assertIn("::error::", step.stdout)
            self.assertIn(what, step.stdout)
            self.assertEqual(outputs, {})


if __name__ == "__main__":
    unittest.main(verbosity=2)
