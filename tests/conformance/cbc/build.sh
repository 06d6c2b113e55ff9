#!/usr/bin/env bash
# Builds `cbc`, the command line of libcouchbase, into ./build, from the sources that the npm package `couchbase` carried until
# its version 3.2. Nothing is fetched or built if it is there.
#   build.sh
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")"

version=3.2.7
# What the registry names as the package's integrity, in hexadecimal.
sha512=072102b5fa57544fe1d1d5c7bff8606631329f8f560db5bd29b5cafbe442ebd8e9d9979db15db87a4c2533177d574628b7da4614ba1c934002de9f7fbcb24685

[[ -x build/bin/cbc ]] && exit 0
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
(cd "$work" && npm pack --silent "couchbase@$version" >/dev/null)
sha512sum --check --quiet <<<"$sha512  $work/couchbase-$version.tgz"
tar -xzf "$work/couchbase-$version.tgz" -C "$work" package/deps/lcb
# No plugins: it then needs no library for events. Not optimised: it runs for seconds.
cmake -S "$work/package/deps/lcb" -B "$work/build" -DCMAKE_BUILD_TYPE=None -DCMAKE_C_FLAGS=-O0 -DCMAKE_CXX_FLAGS="-O0 -w" \
  -DLCB_SKIP_GIT_VERSION=ON -DLCB_NO_TESTS=ON -DLCB_NO_MOCK=ON -DLCB_NO_PLUGINS=ON -DLCB_BUILD_DTRACE=OFF >"$work/log" 2>&1 &&
  cmake --build "$work/build" --target cbc --parallel 2 >>"$work/log" 2>&1 || { tail -n 30 "$work/log" >&2; exit 1; }
mkdir -p build
cp -a "$work/build/bin" "$work/build/lib" build/
