#!/usr/bin/env bash
# The cable is away for less time than the device tries again. Calls wait, and none fails.
. "$(dirname "$0")/common.sh"

# Whatever keeps a guest from mending the cable, it is away for less time than the devices try again (half a minute), and
# than a peer may be silent.
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
