#!/bin/sh
# In a clean root: a package is installed and serves, is upgraded under load, and removed. Its argument: deb or rpm.
set -eu
kind=$1
unit=/run/stave-unit
export DEBIAN_FRONTEND=noninteractive
begun=$(date +%s%N)

ms_since() {
    echo $((($(date +%s%N) - $1) / 1000000))
}

say() {
    echo "$kind $(ms_since "$begun") ms: $*"
}

fail() {
    say "FAIL $*"
    [ ! -e "$unit/log" ] || tail -n 20 "$unit/log"
    exit 1
}

# What packages print belongs to the log.
put_in() {
    case $kind in
    deb) dpkg --force-confold --install "$1" ;;
    # Debian has none of the packages that this one names.
    rpm) rpm --upgrade --nodeps --oldpackage --replacepkgs "$1" ;;
    esac || fail "$1 cannot be installed"
}

take_out() {
    case $kind in
    deb) dpkg --remove stave ;;
    rpm) rpm --erase stave ;;
    esac || fail "it cannot be removed"
}

is() { # is WHAT EXPECTED FOUND
    [ "$2" = "$3" ] || fail "$1: $3, where $2 was expected"
}

# Writes that were acknowledged by the server, until it is told to stop.
load() {
    number=0
    while [ ! -e /run/enough ]; do
        number=$((number + 1))
        if stave set "load-$number" "{\"n\":$number}" --timeout 2s >/dev/null 2>>/run/refusals; then
            echo "load-$number" >>/run/acknowledged
        fi
    done
}

# Waits until the load has so many acknowledged writes.
written() {
    tries=0
    while [ "$(cat /run/acknowledged 2>/dev/null | wc -l)" -lt "$1" ]; do
        tries=$((tries + 1))
        [ "$tries" -le 600 ] || fail "the load has no $1 writes: $(tail -n 3 /run/refusals)"
        sleep 0.1
    done
}

for tool in cargo rustc cc; do
    ! command -v "$tool" >/dev/null || fail "the root is not clean: it has $tool"
done

put_in "/packages/old.$kind"
installed=$(date +%s%N)
STAVE_PASSWORD=$(cat /etc/stave/password)
export STAVE_PASSWORD
stave set first '{"n":1}' >/dev/null || fail "the first document was refused"
is "the first document" '{"n":1}' "$(stave get first)"
say "the first document, $(ms_since "$installed") ms after the installation, by $(stave --version)"
is "owner and mode of /var/lib/stave" "stave 700" "$(stat -c '%U %a' /var/lib/stave)"
is "owner and mode of the password" "root 600" "$(stat -c '%U %a' /etc/stave/password)"
is "what the package asked of systemctl" "daemon-reload,enable --now stave.service," "$(tr '\n' , <"$unit/calls")"
pid=$(cat "$unit/pid")
is "whose process it is" stave "$(id -un "$(awk '/^Uid:/ { print $2 }' "/proc/$pid/status")")"
is "capabilities" 0000000000000000 "$(awk '/^CapBnd:/ { print $2 }' "/proc/$pid/status")"
is "its root" ro "$(awk '$5 == "/" { split($6, options, ","); print options[1]; exit }' "/proc/$pid/mountinfo")"
descriptors=$(ulimit -H -n)
[ "$descriptors" != unlimited ] && [ "$descriptors" -lt 262144 ] || descriptors=262144
is "its descriptors" "$descriptors" "$(awk '/^Max open files/ { print $4 }' "/proc/$pid/limits")"
stave serve --config /etc/stave/stave.toml --check >/dev/null || fail "its configuration is refused"
for file in /usr/share/bash-completion/completions/stave /usr/share/man/man1/stave.1.gz; do
    # Debian's images for containers leave manual pages out.
    [ -e "$file" ] || grep -qs path-exclude /etc/dpkg/dpkg.cfg.d/* || fail "$file is missing"
done

echo "# what the operator wrote" >>/etc/stave/stave.toml
password=$(cat /etc/stave/password)
load &
loader=$!
stave bench --seconds 10 --connections 4 --quiet >/dev/null 2>&1 &
written 30
before=$(wc -l </run/acknowledged)
upgrade=$(date +%s%N)
put_in "/packages/new.$kind"
say "upgraded within $(ms_since "$upgrade") ms, to $(stave --version)"
written "$(($(wc -l </run/acknowledged) + 30))"
touch /run/enough
wait "$loader"
wait
after=$(wc -l </run/acknowledged)
[ "$(cat "$unit/pid")" != "$pid" ] || fail "the service was not restarted"
is "the first document after the upgrade" '{"n":1}' "$(stave get first)"
is "the password after the upgrade" "$password" "$(cat /etc/stave/password)"
tail -n 1 /etc/stave/stave.toml | grep -q operator || fail "the configuration was replaced"
sleep 1
stave keys --prefix load- >/run/keys || fail "keys cannot be listed"
sort /run/keys >/run/there
sort /run/acknowledged | comm -23 - /run/there >/run/lost
say "$after writes were acknowledged, $before of them before the upgrade; $(wc -l </run/lost) are lost"
[ ! -s /run/lost ] || fail "acknowledged writes are lost: $(head -n 5 /run/lost | tr '\n' ' ')"

pid=$(cat "$unit/pid")
take_out
! kill -0 "$pid" 2>/dev/null || fail "it still runs after it was removed"
[ ! -e /usr/bin/stave ] || fail "the program is still there"
[ -e /etc/stave/password ] || fail "the password is gone"
[ -e /var/lib/stave/buckets ] || fail "the documents are gone: $(ls /var/lib/stave)"
say "removed; documents, configuration and password stay"
put_in "/packages/new.$kind"
is "the first document after it was installed again" '{"n":1}' "$(stave get first)"
if [ "$kind" = deb ]; then
    dpkg --purge stave || fail "it cannot be purged"
    [ ! -e /etc/stave/password ] || fail "the password outlived the purge"
    [ -e /var/lib/stave/buckets ] || fail "the documents did not outlive the purge"
else
    take_out
fi
say "passed"
