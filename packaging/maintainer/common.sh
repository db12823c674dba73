# shellcheck shell=sh
# What the maintainer scripts of both package formats share.
watching=evenkeel-serve.service
acting=evenkeel.service
restoring=evenkeel-restore.service

# Debian's own way, within dpkg only.
has_helper() { [ -n "${DPKG_MAINTSCRIPT_PACKAGE:-}" ] && command -v deb-systemd-helper >/dev/null 2>&1; }

booted() { [ -d /run/systemd/system ] && command -v systemctl >/dev/null 2>&1; }

# Whether the administrator of a Debian host lets no package start this service (policy-rc.d).
forbidden() {
    [ -n "${DPKG_MAINTSCRIPT_PACKAGE:-}" ] && [ -x /usr/sbin/policy-rc.d ] || return 1
    policy=0
    /usr/sbin/policy-rc.d "$1" restart >/dev/null 2>&1 || policy=$?
    [ "$policy" = 101 ]
}

# Enables the agent that only watches, at a first installation only: what an administrator switched off stays off.
enable_watching() {
    if has_helper; then
        deb-systemd-helper enable "$watching" >/dev/null || true
    elif command -v systemctl >/dev/null 2>&1; then
        systemctl --no-reload enable "$watching" >/dev/null 2>&1 || true
    fi
}

# Runs what is enabled with the program that is there now. A stop of the acting agent would restore the host; the successor of a
# killed one goes on with what that had proved.
start() {
    booted || return 0
    systemctl daemon-reload || true
    if ! forbidden "$watching" && systemctl --quiet is-enabled "$watching"; then
        systemctl restart "$watching" || echo "evenkeel: $watching did not start: see systemctl status $watching" >&2
    fi
    if forbidden "$acting"; then return 0; fi
    # Also one that just starts, or is about to: it would go on with the old program.
    case "$(systemctl show --value --property ActiveState "$acting")" in
        active | activating | reloading) ;;
        *) return 0 ;;
    esac
    systemctl kill --kill-who=main --signal=KILL "$acting" || true
    # A start that comes before systemd has seen the end would be none.
    for _ in 1 2 3 4 5 6 7 8 9 10; do
        systemctl --quiet is-active "$acting" || break
        sleep 0.5
    done
    systemctl start "$acting" || echo "evenkeel: $acting did not start again: see systemctl status $acting" >&2
}

# Stops the agents and restores the host. Fails where something is left: without the program nothing could undo it.
stop_and_restore() {
    if booted; then
        systemctl stop "$watching" "$acting" || true
        # What it would restore is restored here.
        systemctl stop "$restoring" || true
    fi
    # A second look: what somebody else changed meanwhile is told once and is theirs from then on.
    if [ ! -d /var/lib/evenkeel ] || /usr/bin/evenkeel restore --stop >&2 || /usr/bin/evenkeel restore --stop >&2; then
        :
    elif [ -n "${EVENKEEL_REMOVE_ANYWAY:-}" ]; then
        echo "evenkeel: not everything was restored (see above); removed all the same, as asked" >&2
    else
        echo "evenkeel: not everything was restored (see above), so nothing is removed; try again, or set EVENKEEL_REMOVE_ANYWAY=1" >&2
        # It stays installed: what is enabled watches on, and what acts waits until it is started.
        if booted && systemctl --quiet is-enabled "$watching"; then systemctl start "$watching" || true; fi
        return 1
    fi
    # A failure of a unit would be listed for as long as the host runs.
    if booted; then systemctl reset-failed "$watching" "$acting" "$restoring" 2>/dev/null || true; fi
}

forget_units() {
    if has_helper; then
        deb-systemd-helper purge "$watching" "$acting" >/dev/null || true
    elif command -v systemctl >/dev/null 2>&1; then
        systemctl --no-reload disable "$watching" "$acting" >/dev/null 2>&1 || true
    fi
}
