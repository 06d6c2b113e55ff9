#!/bin/sh
# What packages ask of systemctl, in a root without systemd: one service, started by its unit's command, as its user,
# with its credentials, folders, limits and mask. All but its folders is read-only for it, as the unit asks.
set -eu
unit=/usr/lib/systemd/system/stave.service
run=/run/stave-unit
mkdir -p "$run"
echo "$*" >>"$run/calls"

value() {
    sed -n "s/^$1=//p" "$unit"
}

runs() {
    [ -e "$run/pid" ] && kill -0 "$(cat "$run/pid")" 2>/dev/null
}

start() {
    ! runs || return 0
    user=$(value User) group=$(value Group) credentials=/run/credentials/stave.service
    install -d -o "$user" -g "$group" -m 0500 "$credentials"
    for credential in $(value LoadCredential); do
        install -o "$user" -g "$group" -m 0400 "${credential#*:}" "$credentials/${credential%%:*}"
    done
    state=/var/lib/$(value StateDirectory) logs=/var/log/$(value LogsDirectory)
    install -d -o "$user" -g "$group" -m "$(value StateDirectoryMode)" "$state"
    install -d -o "$user" -g "$group" -m "$(value LogsDirectoryMode)" "$logs"
    # A container may have less, and may not raise it.
    ulimit -n "$(value LimitNOFILE)" 2>/dev/null || ulimit -n "$(ulimit -H -n)"
    ulimit -c "$(value LimitCORE)"
    umask "$(value UMask)"
    [ ! -e "$run/log" ] || mv "$run/log" "$run/log.before"
    # Words of the unit are arguments and variables.
    # shellcheck disable=SC2046
    unshare --mount sh -c '
        mount --bind "$0" "$0"; mount --bind "$1" "$1"; shift
        mount -t tmpfs tmpfs /tmp; mount -o remount,bind,ro /
        exec "$@"' "$state" "$logs" \
        setpriv --reuid "$user" --regid "$group" --clear-groups --no-new-privs --bounding-set=-all --inh-caps=-all \
        env -i PATH=/usr/bin "CREDENTIALS_DIRECTORY=$credentials" $(value Environment | sed "s|%d|$credentials|g") \
        $(value ExecStart) >>"$run/log" 2>&1 </dev/null &
    echo $! >"$run/pid"
    # As Type=notify has it: done when it serves.
    tries=0
    until grep -qs '^ready ' "$run/log"; do
        tries=$((tries + 1))
        if [ "$tries" -gt 1500 ] || ! runs; then
            echo "stave.service does not serve; its log ends with:" >&2
            tail -n 15 "$run/log" >&2
            return 1
        fi
        sleep 0.02
    done
}

stop() {
    runs || return 0
    pid=$(cat "$run/pid")
    kill -TERM "$pid"
    tries=0
    while kill -0 "$pid" 2>/dev/null; do
        tries=$((tries + 1))
        [ "$tries" -le 1500 ] || { echo "stave.service does not end" >&2; return 1; }
        sleep 0.02
    done
    rm -f "$run/pid"
}

case "$*" in
daemon-reload) ;;
"enable --now stave.service") touch "$run/enabled" && start ;;
"disable --now stave.service") rm -f "$run/enabled" && stop ;;
"--quiet is-enabled stave.service") [ -e "$run/enabled" ] ;;
"restart stave.service") stop && start ;;
"stop stave.service") stop ;;
*) echo "systemctl of the trial does not know: $*" >&2 && exit 1 ;;
esac
