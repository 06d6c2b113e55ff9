#!/usr/bin/env python3
"""Runs check.py over the recorded scenarios that are in a list, or over those that are not.

  dcp.py listed|others LISTS CHECK_ARGUMENTS...

LISTS are files of `group/name  reason`, separated by commas. What is listed is expected to fail, so it is waited for
less.

Scenarios count seqnos from the first event of a new vBucket, and were recorded on a bucket without collections: those
that somebody has left in the bucket's manifest are dropped first.

A document of a collection that is dropped by now may be sent or left out, as its end follows: what is in memory is sent
as it came, from disk it is left out, and how far the disk is when a stream begins no scenario says."""
import json
import sys

import check

which, lists = sys.argv[1], sys.argv[2].split(",")
del sys.argv[1:3]
listed = {line.split()[0] for path in lists for line in open(path) if line.strip() and not line.startswith("#")}
folders = check.load


def load(folder, only):
    """The recorded scenarios, and those that follow from documents."""
    return folders(folder, only) + folders(f"{folder}/../derived/dcp", only)


check.load = lambda folder, only: [(name, s) for name, s in load(folder, only) if (name in listed) == (which == "listed")]
if which == "listed":
    check.PATIENCE, check.RESP = 0.5, 1.5
begin = check.Runner.begin


def begin_without_collections(runner, head):
    begin(runner, head)
    manifest = json.loads(runner.adm.call(0xba)["val"])
    if sum(len(scope["collections"]) + 1 for scope in manifest["scopes"]) > 2:
        runner.push({})
        runner.read_manifest()


push, step = check.Runner.push, check.Runner.step


def push_and_note(runner, scopes):
    named = [name for collections in scopes.values() for name in collections]
    runner.open = {"_default"} | {name if isinstance(name, str) else name[0] for name in named}
    return push(runner, scopes)


def step_with_or_without_dropped(runner, do, expect=None):
    got = step(runner, do, expect)
    if isinstance(got.get("final"), dict) and isinstance((expect or {}).get("final"), dict):
        is_open = getattr(runner, "open", {"_default"})
        for name, change in expect["final"].items():
            if "/" in name and name.split("/")[0] not in is_open:
                got["final"].setdefault(name, change)
    return got


check.Runner.begin = begin_without_collections
check.Runner.push = push_and_note
check.Runner.step = step_with_or_without_dropped
check.main()
