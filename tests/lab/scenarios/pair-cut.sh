#!/usr/bin/env bash
# The cable is cut under load, for longer than the device tries again, and mended. The connection
# ends with an error in bounded time, and a new one is made once the cable is there. Where all calls
# were received and only replies are on their way, no device of the requester's misses anything: then
# it is the keep-alive that tells, long before the time limit of a call.
# TIME: it tells after ten seconds here, and so may end a connection whose peer stands still for as long: what counts is
# what the requester prints after the cut. The time limit of a call is twice as long as the wait for it.
. "$(dirname "$0")/common.sh"

start_responder
start_requester "${reconnects[@]}" --silent-ms-max 10000 --call-timeout-ms $((2 * patience_s * 1000))
check "calls are answered" executes 200
ended=$(printed '^connection ended')
check "the cable is cut" cut_cable
check "the requester learns of it" prints_more "$ended" '^connection ended'
connected=$(printed '^connected again')
check "the cable is mended" mend_cable
check "it connects again" prints_more "$connected" '^connected again'
check "calls are answered again" executes 200
check "every call of the requester ended" requester_ends_well
check "no call was executed twice, answered twice or lost" books_agree
