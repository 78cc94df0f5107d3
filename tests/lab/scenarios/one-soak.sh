#!/usr/bin/env bash
# Connects, calls and disconnects in a loop, for SOAK_SECONDS (120), and then for a third as long with
# bulk data by RDMA. What the responders hold after the first rounds they hold after the last: memory,
# descriptors, and what the device counts. Every memory window that was bound is invalidated.
. "$(dirname "$0")/common.sh"

# TIME: how long rounds are made. Where the machine is slow they are fewer, and every one is checked.
seconds=${SOAK_SECONDS:-120}
address=rdma:$LAB_IP:$port
bulk_address=rdma:$LAB_IP:$((port + 1))

# The kernel makes large pages of memory that a process has reserved and not touched, a little every ten seconds. That
# is no growth of the process.
check "memory grows where it is touched alone" \
    sh -c 'echo madvise >/sys/kernel/mm/transparent_hugepage/enabled'

check "the responder listens" listens "$work/responder" "$ledger" serve "$address" --book "$work/book"
process=$started

# Without the pages of programs and libraries, which the kernel drops and reads in again as it likes.
memory_kib() { awk '/^Rss(Anon|Shmem):/ { sum += $2 } END { print sum }' "/proc/$process/status"; }
descriptors() { find "/proc/$process/fd" -mindepth 1 | wc -l; }
threads() { find "/proc/$process/task" -mindepth 1 -maxdepth 1 | wc -l; }
# What `rdma resource` counts: "pd 3 cq 2 qp 1 ..." of the device.
resources() { rdma resource show "$LAB_DEV" | sed 's/^[^:]*: *[^:]*: *//; s/ *$//'; }
resources_are() { [ "$(resources)" = "$1" ]; }
# Some of those that were counted may have been about to go.
descriptors_are() { [ "$(descriptors)" -le "$1" ]; }
threads_are() { [ "$(threads)" -le "$1" ]; }

holds() {
    held=$(resources) memory=$(memory_kib) files=$(descriptors) tasks=$(threads)
    echo "    warm: $memory KiB, $files descriptors, $tasks threads, $held"
}

# What leaks grows with every round. What an allocator keeps for later comes once: so a period in which the process grows by less than a MiB settles it,
# and three are enough for anything but a leak.
grows_no_more() { # grows_no_more COMMAND...: a period of rounds; it is given a number as well
    local tries before=$memory
    for tries in 1 2 3; do
        [ "$(memory_kib)" -gt $((before + 1024)) ] || return 0
        before=$(memory_kib)
        echo "    grown to $before KiB"
        [ "$tries" = 3 ] || "$@" "$tries" || return 1
    done
    return 1
}

holds_still() { # holds_still COMMAND...: another period of rounds, if one is needed
    check "the device holds what it held: $held" eventually while_runs $process resources_are "$held"
    echo "    then: $(memory_kib) KiB, $(descriptors) descriptors, $(threads) threads, $(resources)"
    check "no more descriptors" eventually descriptors_are "$files"
    check "no more threads" eventually threads_are "$tasks"
    check "the process grows no more" grows_no_more "$@"
}

rounds() { # rounds SECONDS LOG [NUMBER]: the number is appended to the log's name
    "$ledger" call "$address" --log "$2${3:-}" --seconds "$1" --rounds 1000000 --connections 8 --count 64
}

idle=$(resources)
check "rounds to grow warm" rounds 15 "$work/warm"
check "the device holds nothing of the requesters: $idle" eventually while_runs $process resources_are "$idle"
holds
check "rounds for $seconds s" rounds "$seconds" "$work/log"
holds_still rounds 30 "$work/log-more"
logs=(--log "$work/warm")
for log in "$work"/log*; do
    logs+=(--log "$log")
done
check "no call was executed twice, answered twice or lost" \
    "$ledger" check --book "$work/book" "${logs[@]}"

# --- Bulk data -----------------------------------------------------------------------------------

# A command line that makes calls of so many operations, with a window for each.
mix=("$bench" run --connect "$bulk_address" --op mix --placement rdma --size 48KiB --depth 4
    --connections 4 --warmup 0 "${patient[@]}" --operations)

# Totals of a run: "BOUND INVALIDATED".
windows() { # windows REPORT
    awk '{ gsub(/[",:]/, "") }
        $1 == "per_call" { inside = 1 }
        inside && $1 == "calls" { calls = $2; inside = 0 }
        $1 == "registrations" && each == "" { each = $2 }
        $1 ~ /^windows_invalidated_/ && !server { invalidated += $2 }
        $1 == "server_counters" { server = 1 }
        END { print calls * each, invalidated }' "$1"
}

bulk_rounds() { # bulk_rounds SECONDS
    local end=$((SECONDS + $1)) operations=1 bound invalidated bound_total=0 invalidated_total=0
    while [ $SECONDS -lt $end ]; do
        # With one window in a call the peer invalidates it, with more the client itself.
        operations=$((5 - operations))
        if ! "${mix[@]}" "$operations" --count 200 --json "$work/report" >"$work/table" 2>&1; then
            cat "$work/table"
            return 1
        fi
        read -r bound invalidated <<<"$(windows "$work/report")"
        bound_total=$((bound_total + bound)) invalidated_total=$((invalidated_total + invalidated))
    done
    echo "    $bound_total windows bound, $invalidated_total invalidated"
    [ "$bound_total" -gt 0 ] && [ "$bound_total" -eq "$invalidated_total" ]
}

check "a server of bulk data listens" listens "$work/server" "$bench" serve --listen "$bulk_address" "${patient[@]}"
process=$started
idle=$(resources)
check "rounds of bulk data to grow warm" bulk_rounds 15
check "the device holds nothing of the clients: $idle" eventually while_runs $process resources_are "$idle"
holds
check "rounds of bulk data for $((seconds / 3)) s: every window ends" bulk_rounds $((seconds / 3))
holds_still bulk_rounds 30
