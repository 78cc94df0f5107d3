#!/usr/bin/env bash
# The responder is killed under load, and nobody takes its place. The requester's calls fail, and it
# says so in bounded time: when the device of the other guest tells, or else when the peer was silent for two minutes.
. "$(dirname "$0")/common.sh"

start_responder
start_requester --depth 8
check "calls are answered" executes 200
check "the responder is killed" signal_responder KILL
check "the requester learns of it" prints_more 0 '^connection ended'
check "every call of the requester ended" requester_ends_well
check "no call was executed twice, answered twice or lost" books_agree
responder=
