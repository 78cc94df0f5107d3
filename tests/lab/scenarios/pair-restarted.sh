#!/usr/bin/env bash
# The responder is killed and started again under load, three times. The requester connects again
# each time, and its calls go on where they were.
. "$(dirname "$0")/common.sh"

start_responder
start_requester --reconnect-within 60
for _ in 1 2 3; do
    check "calls are answered" executes 200
    check "the responder is killed" kill_responder
    start_responder
done
check "calls are answered" executes 200
check "every call of the requester ended" requester_ends_well
check "it connected three times again" \
    test "$(grep -c '^connected again' "$work/requester")" -eq 3
check "no call was executed twice, answered twice or lost" books_agree
