#!/usr/bin/env bash
# The cable is away for less time than the device tries again. Calls wait, and none fails.
. "$(dirname "$0")/common.sh"

# The devices send again for half a minute, and a peer may be silent for two. So a guest that is slow to mend the cable
# breaks no connection.
patient=(--ack-timeout-exponent 20 --silent-ms-max 120000)
start_responder "${patient[@]}"
start_requester --depth 8 "${patient[@]}" --call-timeout-ms 120000
check "calls are answered" executes 200
for _ in 1 2 3; do
    check "the cable is cut" cut_cable
    sleep 0.3
    check "the cable is mended" mend_cable
    check "calls are answered again" executes 200
done
check "every call of the requester ended" requester_ends_well
check "none of them failed" contains "$work/requester" ' 0 failed'
check "no call was executed twice, answered twice or lost" books_agree
