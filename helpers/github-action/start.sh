#!/usr/bin/env bash
# Starts `stave dev`, which goes on when this script has ended, and says where it is in $GITHUB_OUTPUT and $GITHUB_ENV.
set -euo pipefail

here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
fail() {
  echo "::error::$1"
  exit 1
}

command -v jq >/dev/null || fail "jq is missing: install it before this step"
root=$here/../..
binary=${INPUT_BINARY:-}
if [[ -z $binary ]]; then
  binary=$(command -v stave || true)
fi
if [[ -z $binary ]]; then
  command -v cargo >/dev/null || fail "there is no stave on the PATH and no cargo to build it: give the input binary"
  (cd "$root" && cargo build --release --locked --package stave) || fail "stave cannot be built"
  binary=$root/target/release/stave
fi
[[ -x $binary ]] || fail "$binary is not a program: check the input binary"

work=$(mktemp -d "${RUNNER_TEMP:-/tmp}/stave.XXXXXX")
arguments=(dev --json --outlive-parent --kv 127.0.0.1:0 --http 127.0.0.1:0)
arguments+=(--nodes "${INPUT_NODES:-1}" --replicas "${INPUT_REPLICAS:-0}")
read -ra buckets <<<"${INPUT_BUCKETS:-default}"
for bucket in "${buckets[@]}"; do
  arguments+=(--bucket "$bucket")
done
if [[ -n ${INPUT_SEED_FILE:-} ]]; then
  arguments+=(--seed-file "$INPUT_SEED_FILE")
fi

# In a session of its own: it stays when the step's processes are ended. The runner ends it with the job.
# A file, not a pipe: the process may print after this script has ended.
setsid "$binary" "${arguments[@]}" >"$work/ready" 2>"$work/log" </dev/null &
pid=$!
line=
for ((tries = 0; tries < 1200; tries++)); do
  IFS= read -r line <"$work/ready" && break
  line=
  kill -0 "$pid" 2>/dev/null || break
  sleep 0.1
done
if [[ -z $line ]]; then
  kill -KILL "$pid" 2>/dev/null || true
  cat "$work/log"
  fail "stave dev did not become ready; its log is above"
fi

connection=couchbase://$(jq -r '[.nodes[].kv] | join(",")' <<<"$line")
http=http://$(jq -r '.nodes[0].http' <<<"$line")
control=http://$(jq -r .control <<<"$line")
username=$(jq -r .username <<<"$line")
echo "::add-mask::$STAVE_PASSWORD"
{
  echo "connection-string=$connection"
  echo "username=$username"
  echo "http=$http"
  echo "control=$control"
  echo "pid=$pid"
} >>"$GITHUB_OUTPUT"
{
  echo "STAVE_CONNECTION_STRING=$connection"
  echo "STAVE_USERNAME=$username"
  echo "STAVE_PASSWORD=$STAVE_PASSWORD"
} >>"$GITHUB_ENV"
echo "stave serves at $connection, its log is $work/log"
