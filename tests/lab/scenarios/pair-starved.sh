#!/usr/bin/env bash
# The responder is stopped (SIGSTOP) under load, so that nobody takes what its device receives: first
# for less, then for longer than calls wait. Then it goes on, and executes what it has.
. "$(dirname "$0")/common.sh"

start_responder
start_requester --depth 64 --call-timeout-ms 5000 --reconnect-within 60
check "calls are answered" executes 200
check "the responder is stopped" signal_responder STOP
sleep 2
check "it goes on" signal_responder CONT
check "calls are answered again" executes 200
check "no call failed" lacks "$work/requester" '^connection ended'
check "the responder is stopped" signal_responder STOP
sleep 8
check "it goes on" signal_responder CONT
check "calls are answered again" executes 200
check "every call of the requester ended" requester_ends_well
check "calls ran out of time" lacks "$work/requester" ' 0 failed'
check "no call was executed twice, answered twice or lost" books_agree
