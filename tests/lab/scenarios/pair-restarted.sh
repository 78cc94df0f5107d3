#!/usr/bin/env bash
# The responder is killed and started again under load, three times. The requester connects again
# each time, and its calls go on where they were.
. "$(dirname "$0")/common.sh"

start_responder
start_requester "${reconnects[@]}"
for _ in 1 2 3; do
    check "calls are answered" executes 200
    connected=$(printed '^connected again')
    check "the responder is killed" kill_responder
    start_responder
    # More often where a guest is slow: a new connection may be lost as well.
    check "the requester connects again" prints_more "$connected" '^connected again'
done
check "calls are answered" executes 200
check "every call of the requester ended" requester_ends_well
check "no call was executed twice, answered twice or lost" books_agree
