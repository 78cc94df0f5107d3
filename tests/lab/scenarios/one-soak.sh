#!/usr/bin/env bash
# Connects, calls and disconnects in a loop, for SOAK_SECONDS (120). What the responder holds after
# the first rounds it holds after the last: memory, descriptors, and what the device counts.
. "$(dirname "$0")/common.sh"

seconds=${SOAK_SECONDS:-120}
address=rdma:$LAB_IP:$port

"$ledger" serve "$address" --book "$work/book" </dev/null >"$work/responder" 2>&1 &
process=$!
check "the responder listens" within 60 contains "$work/responder" '^listening on '

memory_kib() { awk '/^VmRSS:/ { print $2 }' "/proc/$process/status"; }
descriptors() { find "/proc/$process/fd" -mindepth 1 | wc -l; }
threads() { find "/proc/$process/task" -mindepth 1 -maxdepth 1 | wc -l; }
# What `rdma resource` counts: "pd 3 cq 2 qp 1 ..." of the device.
resources() { rdma resource show "$LAB_DEV" | sed 's/^[^:]*: *[^:]*: *//; s/ *$//'; }

rounds() { # rounds SECONDS LOG
    "$ledger" call "$address" --log "$2" --seconds "$1" --rounds 1000000 --connections 8 --count 64
}

resources_are() { [ "$(resources)" = "$1" ]; }

check "rounds to grow warm" rounds 15 "$work/warm"
sleep 2
held=$(resources) memory=$(memory_kib) files=$(descriptors) tasks=$(threads)
echo "    warm: $memory KiB, $files descriptors, $tasks threads, $held"
check "rounds for $seconds s" rounds "$seconds" "$work/log"
check "the device holds what it held: $held" within 30 resources_are "$held"
echo "    then: $(memory_kib) KiB, $(descriptors) descriptors, $(threads) threads, $(resources)"
check "as many descriptors" test "$(descriptors)" -eq "$files"
check "as many threads" test "$(threads)" -eq "$tasks"
# What an allocator keeps for later varies by less than this.
check "no more than a MiB more memory" test "$(memory_kib)" -le $((memory + 1024))
check "no call was executed twice, answered twice or lost" \
    "$ledger" check --book "$work/book" --log "$work/warm" --log "$work/log"
