#!/usr/bin/env bash
# Paths to a server die again and again, under calls that must not run twice, with data and without: what the server sends is lost, what
# the client sends, both, on one link, on the other, and for a moment on both. At the end the server's own link goes down.
#
# DEATHS in the environment is how many there are. It prints the times of the calls that were in progress.
. "$(dirname "$0")/rails.sh"

deaths=${DEATHS:-7}
# TIME: the default limits, as users have them. A path that is left without need would cost time, and no call.
knobs=(path_suspect_ms=200 path_probe_ms=200)

at_end() {
    heal LAB_NETDEV2
    heal LAB_NETDEV
}

# Each client starts at another address, and only one of them sends data.
starts_clients() {
    "$PROGRAMS/repeating-client" "$both" $procedure 0 0 "${knobs[@]}" >"$work/first" 2>"$work/first.moves" &
    first=$!
    "$PROGRAMS/repeating-client" "$turned" $procedure 1000000000 20000 "${knobs[@]}" >"$work/second" 2>"$work/second.moves" &
    second=$!
}
answered() { wc -l <"$work/$1"; }
has_answered() { [ "$(answered "$1")" -ge "$2" ]; }
# New calls of both clients, made after what happened before.
goes_on() {
    local before_first before_second
    before_first=$(answered first) before_second=$(answered second)
    eventually while_runs $first has_answered first $((before_first + 10)) &&
        eventually while_runs $second has_answered second $((before_second + 10))
}
# Where a client is: at the address of its last move, or where it started.
is_at() { # is_at CLIENT ADDRESS
    local at=$LAB_PEER2
    [ "$1" = first ] || at=$LAB_PEER
    at=rdma:$at:$port
    [ ! -s "$work/$1.moves" ] || at=$(tail -n 1 "$work/$1.moves" | cut -d ' ' -f 3)
    [ "$at" = "$2" ]
}
is_elsewhere() { ! is_at "$@"; }

# Of which packets are lost on a link: those of the server, of the client, or of both.
lose() { # lose NETDEV_VARIABLE WHOSE
    case $2 in server | both) on_b "tc qdisc add dev \$$1 root netem loss 100%" ;; esac &&
        case $2 in client | both) tc qdisc add dev "${!1}" root netem loss 100% ;; esac
}
heal() { # heal NETDEV_VARIABLE
    on_b "tc qdisc del dev \$$1 root 2>/dev/null; true"
    tc qdisc del dev "${!1}" root 2>/dev/null
    true
}

# The path dies that a client uses now. If it goes back at that very moment, nothing has died for it.
loses_its_path() { # loses_its_path CLIENT WHOSE
    local client=$1 netdev=LAB_NETDEV2 at=rdma:$LAB_PEER2:$port moves
    is_at "$client" "$at" || netdev=LAB_NETDEV at=rdma:$LAB_PEER:$port
    moves=$(wc -l <"$work/$client.moves")
    lose $netdev "$2" && eventually while_runs "${!client}" is_elsewhere "$client" "$at" && heal $netdev || return
    # The call that was in progress, and not one at a later way back.
    tail -n +$((moves + 1)) "$work/$client.moves" | head -n 1 | cut -d ' ' -f 2 >>"$work/times"
}
# Nothing works for a second.
lose_everything() {
    lose LAB_NETDEV2 both && lose LAB_NETDEV both && sleep 1 && heal LAB_NETDEV2 && heal LAB_NETDEV
}
all_die() {
    local number
    for ((number = 0; number < deaths; number++)); do
        case $((number % 7)) in
            0) loses_its_path first server ;;
            1) loses_its_path second server ;;
            2) loses_its_path first client ;;
            3) loses_its_path second client ;;
            4) loses_its_path first both ;;
            5) loses_its_path second both ;;
            6) lose_everything ;;
        esac && goes_on || { echo "    death $number"; return 1; }
    done
}

# Each number that was answered was entered once, and none was entered twice.
entered_once() {
    on_b "cat $entries.output" | grep -v listening | sort >"$work/entries"
    [ -z "$(uniq -d "$work/entries")" ] &&
        [ -z "$(cat "$work/first" "$work/second" | sort | comm -23 - "$work/entries")" ] &&
        seq 0 $(($(answered first) - 1)) | cmp - "$work/first" &&
        seq 1000000000 $((1000000000 + $(answered second) - 1)) | cmp - "$work/second"
}

prints_times() {
    sort -n "$work/times" | awk '{ all[NR] = $1 } END { printf "    %d paths left, calls in progress: median %d ms, longest %d ms\n",
        NR, all[int((NR + 1) / 2)], all[NR] }'
    [ -s "$work/times" ]
}

turned=rdma:$LAB_PEER:$port,rdma:$LAB_PEER2:$port
check "the server listens at both addresses" listens_on b "$PROGRAMS/entry-server $both $procedure"
entries=$answer
starts_clients
check "calls are answered" goes_on
check "calls go on after each of $deaths deaths of a path" all_die
check "no call failed" kill -0 $first $second
check "the server's own link goes down" on_b 'ip link set "$LAB_NETDEV2" down'
check "calls go on" goes_on
check "the times are printed" prints_times
kill -KILL $first $second
check "no call was lost, and none ran twice" entered_once
