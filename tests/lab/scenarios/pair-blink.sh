#!/usr/bin/env bash
# The cable is away for less time than a peer may be silent. Calls wait, and none fails. Soft-RoCE sends again without
# end.
. "$(dirname "$0")/common.sh"

start_responder
start_requester --depth 8
check "calls are answered" executes 200
for _ in 1 2 3; do
    check "the cable is cut" cut_cable
    # TIME: the device repeats what it sent in it. It is longer where a guest is slow, and the limit is two minutes.
    sleep 0.3
    check "the cable is mended" mend_cable
    check "calls are answered again" executes 200
done
check "every call of the requester ended" requester_ends_well
check "none of them failed" contains "$work/requester" ' 0 failed'
check "no call was executed twice, answered twice or lost" books_agree
