#!/usr/bin/env python3
"""Runs check.py over the recorded scenarios that are in a list, or over those that are not.

  dcp.py listed|others LISTS CHECK_ARGUMENTS...

LISTS are files of `group/name  reason`, separated by commas. What is listed is expected to fail, so it is waited for
less."""
import sys

import check

which, lists = sys.argv[1], sys.argv[2].split(",")
del sys.argv[1:3]
listed = {line.split()[0] for path in lists for line in open(path) if line.strip() and not line.startswith("#")}
load = check.load
check.load = lambda folder, only: [(name, s) for name, s in load(folder, only) if (name in listed) == (which == "listed")]
if which == "listed":
    check.PATIENCE, check.RESP = 0.5, 1.5
check.main()
