#!/usr/bin/env bash
# Requesters are killed under load. The responder goes on with the others, and keeps nothing of those
# that are gone.
. "$(dirname "$0")/common.sh"

queue_pairs_of_b() { on_b "rdma resource show qp link $LAB_DEV" | grep -c 'comm ledger'; }

queue_pairs_reach() { [ "$(queue_pairs_of_b)" -le "$1" ]; }

start_responder
start_requester --depth 8
check "calls are answered" executes 200
before=$(queue_pairs_of_b)
for _ in 1 2 3; do
    rm -f "$work/victim"
    # TIME: it makes calls for far longer than it lives.
    "$ledger" call "$address" --log /dev/null --seconds 3600 --connections 4 </dev/null >"$work/victim" 2>&1 3>&- &
    victim=$!
    check "another requester connects" eventually while_runs $victim contains "$work/victim" '^connected to' ||
        cat "$work/victim"
    check "calls of both are answered" executes 200
    kill -KILL $victim
    wait $victim 2>/dev/null
done
check "the responder keeps no queue pair of theirs" eventually queue_pairs_reach "$before"
check "calls are answered" executes 200
check "every call of the requester ended" requester_ends_well
check "none of them failed" contains "$work/requester" ' 0 failed'
check "no call was executed twice, answered twice or lost" books_agree
