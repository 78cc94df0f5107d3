#!/usr/bin/env bash
# 500 connections are asked for at once. All are accepted, each carries a call, and afterwards the
# responder has nothing left of them.
. "$(dirname "$0")/common.sh"

queue_pairs_of_b() { on_b "rdma resource show qp link $LAB_DEV" | grep -c 'comm ledger'; }

no_queue_pairs() { [ "$(queue_pairs_of_b)" -eq 0 ]; }

connections=500
# TIME: the limits of the ledger are minutes: on a busy machine, 500 connections keep a guest for one.
start_responder
start_requester --connections $connections --count 5000 --depth 500
check "every call of the requester ended" requester_ends_well
check "500 connections were accepted" contains "$work/requester" ': 500 of 500 after'
check "no call failed" contains "$work/requester" '5000 answered, 0 failed'
check "no call was executed twice, answered twice or lost" books_agree
check "nothing is left of the connections" eventually no_queue_pairs
