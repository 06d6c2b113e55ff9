#!/usr/bin/env bash
# Writes the data directories of one version, which every later version must read (docs/compatibility.md):
#   make.sh PROGRAM [NAME TYPE]
# makes, in a folder of the version's name beside this script, or of the version's and NAME with a bucket of TYPE:
#   stopped.tar.gz   after SIGTERM
#   killed.tar.gz    after kill -9, when all documents were saved
#   expected.jsonl   what `stave export` says of both
# A folder that is there is left alone: what a version wrote does not change.
set -euo pipefail
stave=$(realpath "$1")
version=$("$stave" --version | cut -d' ' -f2)
version=$version${2:+-$2}
out=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)/$version
[[ ! -e $out ]] || { echo "$out is there already" >&2; exit 1; }
work=$(mktemp -d)
server=
trap '[[ -z $server ]] || kill -KILL "$server" 2>/dev/null || true; rm -rf "$work"' EXIT
export STAVE_PASSWORD=password
printf 'data = "%s"\nkv = "127.0.0.1:0"\nhttp = "127.0.0.1:0"\nvbuckets = 8\nbuckets = ["default:100MiB%s"]\n' \
  "$work/data" "${3:+:$3}" >"$work/stave.toml"

start() {
  coproc NODE { exec "$stave" serve --config "$work/stave.toml" 2>>"$work/log"; }
  server=$NODE_PID
  read -r ready <&"${NODE[0]}"
  kv=$(sed -E 's/.* kv=([^ ]+).*/\1/' <<<"$ready")
  http=$(sed -E 's/.* http=([^ ]+).*/\1/' <<<"$ready")
}

post() {
  curl -sS --fail -u "Administrator:$STAVE_PASSWORD" -o /dev/null "http://$http/$1" "${@:2}"
}

start
post pools/default/buckets/default/scopes -d name=app
post pools/default/buckets/default/scopes/app/collections -d name=users
post pools/default/buckets/default/scopes/app/collections -d name=sessions -d maxTTL=2000000000
echo reader1 | "$stave" user add reader --roles 'data_reader[default]' --new-password-file - --addr "$http" >/dev/null
{
  for at in $(seq 1 40); do echo "{\"key\":\"k$at\",\"value\":{\"n\":$at}}"; done
  for at in $(seq 1 20); do
    echo "{\"key\":\"u$at\",\"collection\":\"app.users\",\"flags\":33554432,\"value\":{\"name\":\"user $at\"}}"
  done
  echo '{"key":"binary","value_base64":"AAECAwT/"}'
  echo '{"key":"expires","expiry":4000000000,"value":1}'
  echo '{"key":"attributes","xattrs":{"_sync":{"rev":1},"note":"x"},"value":{"a":[1,2,3]}}'
  printf '{"key":"large","value":"%s"}\n' "$(printf 'abcdefgh%.0s' $(seq 1 4000))"
} >"$work/documents.jsonl"
"$stave" import lines "$work/documents.jsonl" --addr "$kv" >/dev/null
for at in $(seq 1 10); do "$stave" delete "k$at" --addr "$kv" >/dev/null; done
for at in $(seq 11 20); do "$stave" set "k$at" "{\"n\":$at,\"changed\":true}" --addr "$kv" >/dev/null; done
"$stave" export --to "$work/expected.jsonl" --addr "$kv" >/dev/null
kill -TERM "$server"
wait "$server"
mkdir -p "$work/$version"
pack() {
  tar -C "$work" --sort=name --owner=0 --group=0 --numeric-owner --mtime=@0 -cf - data | gzip -9n >"$work/$version/$1.tar.gz"
}
pack stopped
start
# One more revision of each user, so that there is something in the journal alone.
grep '"app.users"' "$work/documents.jsonl" | "$stave" import lines - --addr "$kv" >/dev/null
"$stave" export --to "$work/again.jsonl" --addr "$kv" >/dev/null
for _ in $(seq 1 500); do
  queued=$("$stave" stats --addr "$kv" | awk '$1 == "ep_queue_size" { print $2 }')
  [[ $queued != 0 ]] || break
done
[[ $queued == 0 ]] || { echo "documents are not saved after 500 looks" >&2; exit 1; }
kill -KILL "$server"
wait "$server" || true
pack killed
sort "$work/expected.jsonl" >"$work/$version/expected.jsonl"
cmp <(sort "$work/again.jsonl") "$work/$version/expected.jsonl"
mv "$work/$version" "$out"
ls -l "$out"
