#!/usr/bin/env bash
# The cable is cut under load, for longer than the device tries again, and mended. The connection
# ends with an error in bounded time, and a new one is made once the cable is there. Where all calls
# were received and only replies are on their way, no device of the requester's misses anything: then
# it is the keep-alive that tells, long before the time limit of a call.
. "$(dirname "$0")/common.sh"

start_responder
start_requester --reconnect-within 120 --call-timeout-ms 300000
check "calls are answered" executes 200
check "the cable is cut" cut_cable
check "the requester learns of it" within 120 contains "$work/requester" '^connection ended'
check "the cable is mended" mend_cable
check "it connects again" within 120 contains "$work/requester" '^connected again'
check "calls are answered again" executes 200
check "every call of the requester ended" requester_ends_well
check "no call was executed twice, answered twice or lost" books_agree
