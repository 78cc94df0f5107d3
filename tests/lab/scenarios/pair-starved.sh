#!/usr/bin/env bash
# The responder is stopped (SIGSTOP) under load, so that nobody takes what its device receives: first
# for less, then for longer than calls wait. Then it goes on, and executes what it has.
. "$(dirname "$0")/common.sh"

start_responder
start_requester --depth 64
check "calls are answered" executes 200
check "the responder is stopped" signal_responder STOP
# TIME: calls wait for five minutes, and a peer may be silent for two.
sleep 2
check "it goes on" signal_responder CONT
check "calls are answered again" executes 200
check "every call of the requester ended" requester_ends_well
check "no connection ended" lacks "$work/requester" '^connection ended'
check "no call failed" contains "$work/requester" ' 0 failed'
check "no call was executed twice, answered twice or lost" books_agree

# TIME: where a guest stands still, calls run out of time before the responder is stopped. What counts is what the
# requester prints after that.
start_requester --depth 64 --call-timeout-ms 5000 "${reconnects[@]}"
check "calls are answered" executes 200
check "the responder is stopped" signal_responder STOP
failed_before=$(printed '^call .* failed: no reply came in time')
check "calls run out of time" prints_more "$failed_before" '^call .* failed: no reply came in time'
check "it goes on" signal_responder CONT
check "calls are answered again" executes 200
check "every call of the requester ended" requester_ends_well
check "no call was executed twice, answered twice or lost" books_agree
