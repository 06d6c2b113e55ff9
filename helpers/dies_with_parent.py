#!/usr/bin/env python3
"""Runs a program that starts a cluster and prints the cluster's process id, kills the program with SIGKILL, and waits
until the cluster has ended: `dies_with_parent.py COMMAND...`."""

import os
import select
import subprocess
import sys

PATIENCE_MS = 30_000

with subprocess.Popen(sys.argv[1:], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as program:
    # Runtimes may print something before.
    lines = (line.strip() for line in program.stdout)
    pid = next((int(line) for line in lines if line.isdigit()), None)
    if pid is None:
        sys.exit(f"{sys.argv[1:]} ended without the id of its cluster")
    cluster = os.pidfd_open(pid)
    program.kill()
    program.wait()
    ends = select.poll()
    ends.register(cluster, select.POLLIN)
    if not ends.poll(PATIENCE_MS):
        os.kill(pid, 9)
        sys.exit(f"the cluster {pid} still runs {PATIENCE_MS} ms after the program that started it was killed")
