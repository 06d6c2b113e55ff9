#!/usr/bin/env bash
# Runs the conformance suites against a node and against a cluster of three with replicas, programs of three SDKs against a cluster whose nodes fail, and
# collections through two SDKs from their first document until their space is given back, and the own suites of the Go
# SDK and its core against one node and against a cluster; and the helpers for tests in five languages, with the example
# of each one's README.
# Backups go to an S3-compatible store from PyPI, and come back.
# `cbc` of libcouchbase is built from the sources in a package from npm, and is used with TLS and without.
# The manifests for Kubernetes are checked, and their pods run on this machine, if it is run as root.
# With TLS the suites of Python, Go, Rust, Java and Node.js are run once more. The console is driven in Chromium; screenshots are in $STAVE_PICTURES, or in
# tests/conformance/console/pictures.
#   run.sh --stave PATH_TO_BINARY [--prepare] [python|go|rust|java|node|cluster|collections|upstream|helpers|console|kubernetes|s3|cbc]...
# With --prepare it fetches and builds what the suites need, and runs none of them.
# In the table, `python` ran against `stave serve`, `python-3` against `stave dev --nodes 3 --replicas 1`.
set -uo pipefail

here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
usage="usage: $0 --stave PATH_TO_BINARY [--prepare] [python|go|rust|java|node|cluster|collections|upstream|helpers|console|kubernetes|s3|cbc]..."
stave=
prepare_only=
suites=()

while (($#)); do
  case $1 in
    --stave) stave=${2:?$usage}; shift 2 ;;
    --prepare) prepare_only=1; shift ;;
    python | go | rust | java | node | cluster | collections | upstream | helpers | console | kubernetes | s3 | cbc) suites+=("$1"); shift ;;
    *) echo "$usage" >&2; exit 2 ;;
  esac
done
[[ -n $stave ]] || { echo "$usage" >&2; exit 2; }
[[ -x $stave ]] || { echo "$stave is not an executable file" >&2; exit 2; }
# Suites run in folders of their own.
stave=$(realpath "$stave")
((${#suites[@]})) || suites=(python go rust java node cluster collections upstream helpers console kubernetes s3 cbc)

work=$(mktemp -d)
server=
cleanup() {
  [[ -n $server ]] && kill -KILL "$server" 2>/dev/null
  rm -rf "$work"
}
trap cleanup EXIT

# need TOOL PACKAGE TEST...: installs PACKAGE if TEST fails, or says what to install.
need() {
  local tool=$1 package=$2
  shift 2
  "$@" >/dev/null 2>&1 && return 0
  if [[ $(id -u) == 0 ]] && command -v apt-get >/dev/null; then
    echo "installing $package"
    apt-get update -q >/dev/null && DEBIAN_FRONTEND=noninteractive apt-get install -qy "$package" >/dev/null
    "$@" >/dev/null 2>&1 && return 0
  fi
  echo "$tool is missing: install the package $package" >&2
  return 1
}

prepare_python() {
  # A venv needs ensurepip, which Debian keeps in a package of its own.
  need "python3 with venv" python3-venv python3 -c 'import ensurepip, venv' || return 1
  local venv=$here/python/.venv
  [[ -x $venv/bin/pip ]] || python3 -m venv "$venv" || return 1
  "$venv/bin/pip" install --quiet --disable-pip-version-check --requirement "$here/python/requirements.txt"
}

prepare_go() {
  # Any go since 1.21 fetches the toolchain that go.mod asks for; older ones cannot read it.
  need "go 1.21 or later" golang-go env -C "$here/go" go list -m || return 1
  (cd "$here/go" && go mod download && go vet ./...)
}

prepare_rust() {
  command -v cargo >/dev/null || { echo "cargo is missing: install Rust from https://rustup.rs" >&2; return 1; }
  (cd "$here/rust" && cargo test --locked --no-run)
}

prepare_java() {
  need "a JDK of 17 or later" default-jdk-headless javac --version || return 1
  need maven maven mvn --version || return 1
  # What the tests need is fetched here, so that the run itself needs no network.
  (cd "$here/java" && mvn -B -q -ntp test-compile surefire:help >/dev/null)
}

prepare_node() {
  need "Node.js 18 or later" nodejs node -e 'require("node:test")' || return 1
  need npm npm npm --version || return 1
  (cd "$here/node" && npm ci --silent --no-audit --no-fund)
}

prepare_cluster() {
  prepare_python && prepare_go && prepare_rust && prepare_java || return 1
  (cd "$here/java" && mvn -B -q -ntp dependency:build-classpath -Dmdep.outputFile="$work/java-classpath") || return 1
  (cd "$here/go" && go build -o "$work/cluster-go" ../cluster/cluster.go)
}

prepare_collections() {
  prepare_python && prepare_go && (cd "$here/go" && go build -o "$work/stream" ../collections/stream.go)
}

prepare_upstream() {
  need "go 1.21 or later" golang-go env -C "$here/go" go list -m || return 1
  (cd "$here/go" && go mod download) || return 1
  # The modules as the proxy has them, in the versions that go.mod pins; their tests need their own go.mod.
  local module name dir
  for module in github.com/couchbase/gocbcore/v10 github.com/couchbase/gocb/v2; do
    name=$(basename "$(dirname "$module")")
    dir=$(cd "$here/go" && go list -m -f '{{.Dir}}' "$module") || return 1
    cp -r "$dir" "$work/$name" && chmod -R u+w "$work/$name" || return 1
    (cd "$work/$name" && go test -c -o "$work/$name.test" .) || return 1
  done
}

helpers=$here/../../helpers

prepare_helpers() {
  prepare_python && prepare_node || return 1
  need "go 1.21 or later" golang-go env -C "$here/go" go list -m || return 1
  (cd "$helpers/go" && go vet . && go test -c -o "$work/helpers-go.test" .) || return 1
  # The README's example is a module of its own, with the SDK as the Go suite pins it.
  mkdir -p "$work/example-go" && cp "$here/go/go.mod" "$here/go/go.sum" "$work/example-go" || return 1
  example "$helpers/go/README.md" go >"$work/example-go/orders_test.go"
  (cd "$work/example-go" && go mod edit -require stavedev@v0.1.0 -replace "stavedev=$(realpath "$helpers/go")" &&
    go test -mod=mod -c -o "$work/example-go.test" .) || return 1
  command -v cargo >/dev/null || { echo "cargo is missing: install Rust from https://rustup.rs" >&2; return 1; }
  (cd "$helpers/rust" && cargo test --locked --no-run && cargo build --locked --examples) || return 1
  need "a JDK of 17 or later" default-jdk-headless javac --version || return 1
  need maven maven mvn --version || return 1
  (cd "$helpers/java" && mvn -B -q -ntp test-compile surefire:help >/dev/null) || return 1
  (cd "$helpers/java/testcontainers" && mvn -B -q -ntp test-compile surefire:help >/dev/null)
}

prepare_console() {
  need python3 python3 python3 --version || return 1
  need Chromium chromium chromium --version || return 1
  need "the driver of Chromium" chromium-driver chromedriver --version
}

prepare_kubernetes() {
  need "python3 with venv" python3-venv python3 -c 'import ensurepip, venv' || return 1
  need etcd etcd-server etcd --version || return 1
  need ip iproute2 ip -V || return 1
  local venv=$here/kubernetes/.venv
  [[ -x $venv/bin/pip ]] || python3 -m venv "$venv" || return 1
  "$venv/bin/pip" install --quiet --disable-pip-version-check --requirement "$here/kubernetes/requirements.txt"
}

prepare_s3() {
  need "python3 with venv" python3-venv python3 -c 'import ensurepip, venv' || return 1
  local venv=$here/s3/.venv
  [[ -x $venv/bin/pip ]] || python3 -m venv "$venv" || return 1
  "$venv/bin/pip" install --quiet --disable-pip-version-check --requirement "$here/s3/requirements.txt"
}

prepare_cbc() {
  need python3 python3 python3 --version || return 1
  need npm npm npm --version || return 1
  need cmake cmake cmake --version || return 1
  need "a C++ compiler" g++ c++ --version || return 1
  need "OpenSSL with its headers" libssl-dev test -e /usr/include/openssl/ssl.h || return 1
  "$here/cbc/build.sh"
}

# The first block of a README in a language, as it is written.
example() {
  awk -v begin="\`\`\`$2" '$0 == begin && !done { on = 1; next } /^```$/ && on { on = 0; done = 1 } on' "$1"
}

# Each suite writes to the terminal and to $1, and returns the status of its test tool.
run_python() {
  (cd "$here/python" && .venv/bin/python -m pytest -v --junit-xml="$1.xml" 2>&1) | tee "$1"
  return "${PIPESTATUS[0]}"
}

run_go() {
  (cd "$here/go" && go test -v -count=1 -timeout 15m ${STAVE_GO_SKIP:+-skip "$STAVE_GO_SKIP"} ./... 2>&1) | tee "$1"
  return "${PIPESTATUS[0]}"
}

run_rust() {
  (cd "$here/rust" && cargo test --locked -- --show-output 2>&1) | tee "$1"
  return "${PIPESTATUS[0]}"
}

run_java() {
  (cd "$here/java" && mvn -B -ntp test 2>&1) | tee "$1"
  return "${PIPESTATUS[0]}"
}

run_node() {
  (cd "$here/node" && node --test --test-reporter=tap tests 2>&1) | tee "$1"
  return "${PIPESTATUS[0]}"
}

# "PASSED FAILED", from the output of the test tool.
totals_python() {
  local passed failed errors
  local last
  last=$(grep -E '^=+ .* in [0-9.]+s' "$1" | tail -n 1)
  passed=$(grep -oE '[0-9]+ passed' <<<"$last" | cut -d' ' -f1)
  failed=$(grep -oE '[0-9]+ failed' <<<"$last" | cut -d' ' -f1)
  errors=$(grep -oE '[0-9]+ errors?' <<<"$last" | cut -d' ' -f1)
  echo "${passed:-0} $((${failed:-0} + ${errors:-0}))"
}

totals_go() {
  # A test that is made of subtests counts as those.
  awk '
    /^ *--- (PASS|FAIL): / {
      result[$3] = $2
      if (sub(/\/.*/, "", $3)) parent[$3] = 1
    }
    END {
      for (name in result) if (!(name in parent)) count[result[name]]++
      print count["PASS:"] + 0, count["FAIL:"] + 0
    }' "$1"
}

totals_rust() {
  sed -nE 's/^test result: .* ([0-9]+) passed; ([0-9]+) failed;.*/\1 \2/p' "$1" |
    awk '{ passed += $1; failed += $2 } END { print passed + 0, failed + 0 }'
}

totals_java() {
  sed -nE 's/^\[.*Tests run: ([0-9]+), Failures: ([0-9]+), Errors: ([0-9]+), Skipped: ([0-9]+)$/\1 \2 \3 \4/p' "$1" |
    awk '{ failed += $2 + $3; passed += $1 - $2 - $3 - $4 } END { print passed + 0, failed + 0 }'
}

totals_node() {
  sed -nE 's/^# (pass|fail) ([0-9]+)$/\2/p' "$1" | xargs
}

# Durable writes that were honoured and refused; a refusal is the documented error, and both are conformant.
durability_of() {
  local answer
  for answer in honoured refused; do
    cat "$1" "$1.xml" 2>/dev/null |
      grep -oE "durability( [A-Za-z]+)?: $answer|\"durability\" value=\"$answer\"" | wc -l
  done | xargs
}

# start_server COMMAND ARGUMENT...: starts it on free ports, and waits until it is ready.
start_server() {
  rm -f "$work/stdout"
  mkfifo "$work/stdout"
  "$stave" "$@" --kv 127.0.0.1:0 --http 127.0.0.1:0 \
    --username Administrator --password password >"$work/stdout" 2>"$work/stderr" &
  server=$!
  local line
  exec 3<"$work/stdout"
  while IFS= read -r line <&3; do
    if [[ $line =~ ^ready\ kv=([^ ]+)\ http=([^ ]+)\  ]]; then
      export STAVE_CONN=couchbase://${BASH_REMATCH[1]} STAVE_HTTP=http://${BASH_REMATCH[2]}
      export STAVE_USER=Administrator STAVE_PASSWORD=password STAVE_BUCKET=default
      [[ -n ${STAVE_CA:-} && $line =~ \ kvs=([^ ]+) ]] && export STAVE_CONN=couchbases://${BASH_REMATCH[1]}
      [[ $line =~ \ control=([^ ]+) ]] && export STAVE_CONTROL=http://${BASH_REMATCH[1]}
      # Whatever else it prints is read, so that it never blocks on a full pipe.
      cat <&3 >"$work/rest" &
      return 0
    fi
    echo "$line"
  done
  echo "the server ended before it was ready:" >&2
  cat "$work/stderr" >&2
  return 1
}

# SIGTERM must be answered by a clean exit.
stop_server() {
  kill -TERM "$server" 2>/dev/null
  wait "$server"
  local status=$?
  server=
  ((status == 0)) && return 0
  echo "the server ended with status $status instead of 0:" >&2
  tail -n 50 "$work/stderr" >&2
  return 1
}

# Programs that write while nodes fail, each with a cluster of its own; each takes some 20 seconds. While the one of Rust, whose
# SDK does not scan, has nodes fail, the Java SDK scans.
run_cluster() {
  local sdk log program scans result=0
  for sdk in python go rust; do
    case $sdk in
      python) program=("$here/python/.venv/bin/python" "$here/cluster/cluster.py") ;;
      go) program=("$work/cluster-go") ;;
      rust) program=("$here/rust/target/debug/examples/cluster") ;;
    esac
    log=$work/cluster-$sdk.log
    echo "== cluster $sdk"
    start_server dev --nodes 3 --replicas 1 || return 1
    scans=
    if [[ $sdk == rust ]]; then
      mkfifo "$work/scans-end"
      timeout 240 java -cp "$here/java/target/test-classes:$(<"$work/java-classpath")" stave.ClusterScans \
        <"$work/scans-end" >"$work/scans.log" 2>&1 &
      scans=$!
      exec 4>"$work/scans-end"
    fi
    timeout 120 "${program[@]}" 2>&1 | tee "$log"
    local status=${PIPESTATUS[0]} counts
    if [[ -n $scans ]]; then
      # The end of its input: it scans once more, and ends.
      exec 4>&-
      wait "$scans" || status=1
      tail -n 5 "$work/scans.log"
    fi
    stop_server || status=1
    counts=$(sed -nE 's/^summary ok ([0-9]+) .* impossible ([0-9]+) .*/\1 \/ \2/p' "$log")
    if ((status == 0)) && [[ -n $counts ]]; then
      printf 'cluster-%s\t1\t0\t%s\tpassed\n' "$sdk" "$counts" >>"$table"
    else
      printf 'cluster-%s\t0\t1\t%s\tFAILED\n' "$sdk" "${counts:--}" >>"$table"
      result=1
    fi
  done
  return $result
}

# Python makes, writes and drops, Go streams.
run_collections() {
  local log=$work/collections.log
  echo "== collections"
  # Of a few vBuckets, so that files are compacted in little time.
  echo 'vbuckets = 64' >"$work/collections.toml"
  mkdir "$work/collections-data"
  start_server serve --config "$work/collections.toml" --data "$work/collections-data" || return 1
  STAVE_DATA=$work/collections-data STAVE_BINARY=$stave \
    timeout 120 "$here/python/.venv/bin/python" "$here/collections/drive.py" "$work/stream" 2>&1 | tee "$log"
  local status=${PIPESTATUS[0]}
  stop_server || status=1
  if ((status == 0)) && grep -q '^summary' "$log"; then
    printf 'collections\t1\t0\t-\tpassed\n' >>"$table"
  else
    printf 'collections\t0\t1\t-\tFAILED\n' >>"$table"
    return 1
  fi
}

# The tests of a list that are not run, as -test.skip has them.
skips_of() {
  awk -v suite="$2" '
    !/^#/ && NF { split($1, part, "/"); if (part[1] == suite) names = names (names ? "|" : "") part[2] }
    END { print suite "/^(" (names ? names : "NONE") ")$" }' "$1"
}

# Runs a suite of an SDK's own tests: upstream MODULE SUITE FEATURES ARGUMENT...
upstream() {
  local module=$1 suite=$2 features=$3 skips
  shift 3
  skips=$(skips_of "$here/upstream/$module.skip" "$suite")
  (cd "$work/$module" && timeout 150 "$work/$module.test" -test.v -test.run "^$suite\$" -test.skip "$skips" \
    -user Administrator -pass password -bucket default -features="$features" "$@" 2>&1)
}

# The own suites of the Go SDK and of its core, against one node and a cluster, each with a server of its own: those about
# streams count every document that there is. Features that Stave does not have are off.
run_upstream() {
  local core=-n1ql,-n1qlreasons,-cbas,-fts,-views,-memd,-ssl
  local gocb=-query,-clusterQuery,-queryindex,-collectionsquery,-enhancedpreparedstatements,-queryimprovederrors
  gocb+=,-mb57673,-search,-searchindex,-searchanalyze,-analytics,-analyticsindex,-analyticspending,-analyticsindexlinks
  gocb+=,-analyticsindexscopeslinks,-collectionsanalytics,-pinganalytics,-view,-eventingmanagement
  gocb+=,-transactionsquery,-transactionssinglequeryexists
  gocb+=,-memcachedbucket,-historyretention,-customconflictresolution,-storagebackend,-ratelimits
  local alone=,-replicas,-subdocreplicas
  local where suite log status more passes failures result=0
  for where in one dev; do
    for suite in TestStandardSuite TestDCPSuite TestIntegration; do
      log=$work/upstream-$where-$suite.txt
      echo "== upstream $where $suite"
      more=
      if [[ $where == one ]]; then
        more=$alone
        start_server serve --data "$work/upstream-$suite" || return 1
      else
        start_server dev --nodes 3 --replicas 1 || return 1
      fi
      case $suite in
        TestStandardSuite)
          upstream gocbcore $suite "$core$more" -test-suite 1 -connstr "$STAVE_CONN" -cluster-version 7.6.2 ;;
        TestDCPSuite)
          upstream gocbcore $suite "$core$more" -test-suite 2 -connstr "$STAVE_CONN" -cluster-version 7.6.2 ;;
        TestIntegration)
          upstream gocb $suite "$gocb$more" -server "$STAVE_CONN" -version 7.6.2 -disable-logger ;;
      esac >"$log"
      status=$?
      grep -E '^ *--- FAIL' "$log"
      stop_server || status=1
      read -r passes failures < <(totals_go "$log")
      if ((status == 0 && passes > 0 && failures == 0)); then
        printf 'upstream-%s\t%s\t0\t-\tpassed\n' "$where" "$passes" >>"$table"
      else
        tail -n 30 "$log"
        printf 'upstream-%s\t%s\t%s\t-\tFAILED\n' "$where" "$passes" "$((failures > 0 ? failures : 1))" >>"$table"
        result=1
      fi
    done
  done
  return $result
}

helpers_python() {
  example "$helpers/python/README.md" python >"$work/example.py"
  local python=$here/python/.venv/bin/python
  (cd "$helpers/python" && "$python" -m pytest -v -p stave.pytest_plugin) &&
    "$python" "$work/example.py" && "$helpers/dies_with_parent.py" "$python" "$helpers/python/tests/test_dev.py"
}

helpers_node() {
  mkdir -p "$work/node_modules" && ln -sfn "$(realpath "$helpers/node")" "$work/node_modules/stave-dev"
  example "$helpers/node/README.md" js >"$work/example.js"
  (cd "$helpers/node" && node --test --test-reporter=tap test/dev.test.js) &&
    node "$work/example.js" && "$helpers/dies_with_parent.py" node "$helpers/node/test/waits.js"
}

helpers_go() {
  (cd "$helpers/go" && "$work/helpers-go.test" -test.v) && "$work/example-go.test" -test.v &&
    STAVE_WAIT=1 "$helpers/dies_with_parent.py" "$work/helpers-go.test"
}

# The example is among the tests.
helpers_java() {
  (cd "$helpers/java" && mvn -B -ntp test) &&
    "$helpers/dies_with_parent.py" java -cp "$helpers/java/target/classes:$helpers/java/target/test-classes" dev.stave.Waits
}

# The calls that containers make at their start, without Docker.
helpers_containers() {
  (cd "$helpers/java/testcontainers" && mvn -B -ntp test)
}

totals_containers() {
  totals_java "$1"
}

# The example is the test of the documentation.
helpers_rust() {
  (cd "$helpers/rust" && cargo test --locked) && "$helpers/dies_with_parent.py" "$helpers/rust/target/debug/examples/waits"
}

# The script of the action, as a runner starts it.
helpers_action() {
  PYTHONDONTWRITEBYTECODE=1 timeout 300 python3 "$helpers/github-action/test_action.py"
}

totals_action() {
  local failures
  failures=$(grep -cE '^(FAIL|ERROR): ' "$1")
  echo "$(($(sed -nE 's/^Ran ([0-9]+) tests? in .*/\1/p' "$1") - failures)) $failures"
}

# The helpers for tests: their own tests, their examples, and a process that is killed while its cluster runs.
run_helpers() {
  local language log passes failures result=0
  export STAVE_BIN NODE_PATH=$here/node/node_modules PYTHONPATH=$helpers/python
  STAVE_BIN=$stave
  for language in python node go java containers rust action; do
    log=$work/helpers-$language.log
    echo "== helpers $language"
    "helpers_$language" 2>&1 | tee "$log"
    local status=${PIPESTATUS[0]}
    read -r passes failures < <("totals_$language" "$log")
    if ((status == 0 && passes > 0 && failures == 0)); then
      # The process that was killed; a step of a workflow is not, and a container has none here.
      [[ $language == action || $language == containers ]] || passes=$((passes + 1))
      printf 'helpers-%s\t%s\t0\t-\tpassed\n' "$language" "$passes" >>"$table"
    else
      printf 'helpers-%s\t%s\t%s\t-\tFAILED\n' "$language" "${passes:-0}" "$((failures > 0 ? failures : 1))" >>"$table"
      result=1
    fi
  done
  unset STAVE_BIN NODE_PATH PYTHONPATH
  return $result
}

# unittest_row SUITE LOG STATUS: the row of a suite of Python's unittest; whether it passed.
unittest_row() {
  local failures passes skips
  failures=$(grep -cE '^(FAIL|ERROR): ' "$2")
  passes=$(sed -nE 's/^Ran ([0-9]+) tests? in .*/\1/p' "$2")
  skips=$(sed -nE 's/^OK \(skipped=([0-9]+)\)$/\1/p' "$2")
  passes=$((${passes:-0} - ${skips:-0} > failures ? passes - ${skips:-0} - failures : 0))
  if (($3 == 0 && passes > 0 && failures == 0)); then
    printf '%s\t%s\t0\t-\tpassed\n' "$1" "$passes" >>"$table"
  else
    printf '%s\t%s\t%s\t-\tFAILED\n' "$1" "$passes" "$((failures > 0 ? failures : 1))" >>"$table"
    return 1
  fi
}

# The console in a browser, against nodes of its own.
run_console() {
  local log=$work/console.log
  echo "== console"
  (cd "$here/console" && STAVE=$stave PICTURES=${STAVE_PICTURES:-$here/console/pictures} PYTHONDONTWRITEBYTECODE=1 \
    timeout 300 python3 test_console.py 2>&1) | tee "$log"
  unittest_row console "$log" "${PIPESTATUS[0]}"
}

# Backups in an S3-compatible store of its own, with nodes of its own.
run_s3() {
  local log=$work/s3.log
  echo "== s3"
  (cd "$here/s3" && STAVE=$stave PYTHONDONTWRITEBYTECODE=1 \
    timeout 300 .venv/bin/python test_s3.py 2>&1) | tee "$log"
  unittest_row s3 "$log" "${PIPESTATUS[0]}"
}

# The command line of libcouchbase, against a node of its own.
run_cbc() {
  local log=$work/cbc.log
  echo "== cbc"
  (cd "$here/cbc" && STAVE=$stave PYTHONDONTWRITEBYTECODE=1 timeout 120 python3 test_cbc.py 2>&1) | tee "$log"
  unittest_row cbc "$log" "${PIPESTATUS[0]}"
}

# The manifests, and their pods in namespaces of their own, where there can be some.
run_kubernetes() {
  local log=$work/kubernetes.log namespaces=() program
  program=$stave
  echo "== kubernetes"
  if [[ $(id -u) == 0 ]] && unshare --net --mount true 2>/dev/null; then
    namespaces=(env PODS=1 unshare --net --mount)
  else
    echo "passed over: pods need root and namespaces"
  fi
  (cd "$here/kubernetes" && STAVE=$program PYTHONDONTWRITEBYTECODE=1 \
    timeout 300 "${namespaces[@]}" .venv/bin/python test_kubernetes.py 2>&1) | tee "$log"
  unittest_row kubernetes "$log" "${PIPESTATUS[0]}"
}

failed=0
ready=()
# Those that start servers of their own.
own=()
table=$work/table
printf 'suite\tpassed\tfailed\tdurable writes honoured / refused\tresult\n' >"$table"

# Others may prepare the same suites in the same folders: one at a time.
exec 4<"$here"
flock 4
for suite in "${suites[@]}"; do
  if "prepare_$suite" 4<&-; then
    case $suite in
      cluster | collections | upstream | helpers | console | kubernetes | s3 | cbc) own+=("$suite") ;;
      *) ready+=("$suite") ;;
    esac
  else
    printf '%s\t-\t-\t-\tnot run\n' "$suite" >>"$table"
    failed=1
  fi
done

exec 4<&-
[[ -z $prepare_only ]] || exit $failed

# run_ready SUFFIX COMMAND ARGUMENT...: runs the suites against a server of their own; SUFFIX tells the runs apart.
run_ready() {
  local suffix=$1 suite log result passes failures honoured impossible
  shift
  start_server "$@" || return 1
  echo "server ready at $STAVE_CONN and $STAVE_HTTP"
  for suite in "${ready[@]}"; do
    echo "== $suite$suffix"
    log=$work/$suite$suffix.log
    result=passed
    "run_$suite" "$log" || { result=FAILED; failed=1; }
    read -r passes failures < <("totals_$suite" "$log")
    # A suite that found no test has not passed, whatever its tool says.
    ((passes > 0 && failures == 0)) || { result=FAILED; failed=1; }
    read -r honoured impossible < <(durability_of "$log")
    printf '%s\t%s\t%s\t%s / %s\t%s\n' \
      "$suite$suffix" "$passes" "$failures" "$honoured" "$impossible" "$result" >>"$table"
  done
  stop_server || return 1
  echo "server stopped with status 0"
}

if ((${#ready[@]})); then
  mkdir "$work/data"
  export STAVE_REPLICAS=0
  run_ready "" serve --data "$work/data" || failed=1
  export STAVE_REPLICAS=1
  run_ready "-3" dev --nodes 3 --replicas 1 || failed=1
fi

# expired FILE: a certificate that the CA of the node has signed, and that has ended, with its key.
expired() {
  openssl req -new -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -subj /CN=localhost \
    -keyout "$work/expired.key" -out "$work/expired.csr" 2>/dev/null &&
    openssl x509 -req -in "$work/expired.csr" -CA "$work/certs/ca.pem" -CAkey "$work/certs/ca.key" -days -1 \
      -extfile <(echo subjectAltName=DNS:localhost,IP:127.0.0.1) -out "$work/expired.pem" 2>/dev/null &&
    cat "$work/expired.pem" "$work/expired.key" >"$1"
}

encrypted=()
for suite in "${ready[@]}"; do
  [[ $suite == python || $suite == go || $suite == rust || $suite == java || $suite == node ]] && encrypted+=("$suite")
done
if ((${#encrypted[@]})); then
  # Certificates of the node's CA, and of another one, which clients must not trust.
  # They name no host, so that `localhost` is a wrong name.
  for ca in certs strange; do
    "$stave" certs init --out "$work/$ca" --name 127.0.0.1 &&
      "$stave" certs client --ca "$work/$ca" --out "$work/$ca-client" --user Administrator || failed=1
  done
  expired "$work/expired-both.pem" || { echo "openssl made no expired certificate" >&2; failed=1; }
  ready=("${encrypted[@]}")
  export STAVE_REPLICAS=0 STAVE_CA=$work/certs/ca.pem STAVE_STRANGE_CA=$work/strange/ca.pem
  export STAVE_CLIENT=$work/certs-client STAVE_STRANGE_CLIENT=$work/strange-client STAVE_EXPIRED=$work/expired-both.pem
  # Clients of the Go suite that are not the SDK's speak no TLS.
  export STAVE_GO_SKIP='Dcp|SyncWriteInProgress'
  run_ready "-tls" serve --data "$work/data-tls" --tls-cert "$work/certs/node.pem" --tls-key "$work/certs/node.key" \
    --tls-ca "$work/certs/ca.pem" --tls-client-auth optional || failed=1
  unset STAVE_CA STAVE_GO_SKIP
fi
for suite in "${own[@]}"; do
  "run_$suite" || failed=1
done
# What each of their programs saw, one line each.
for log in "$work"/cluster-*.log "$work/collections.log"; do
  [[ -e $log ]] || continue
  name=${log##*/}
  sed -nE "s/^summary/${name%.log}:/p" "$log"
done

echo
awk -F'\t' '{ printf "%-14s %7s %7s   %-34s %s\n", $1, $2, $3, $4, $5 }' "$table"
exit $failed
