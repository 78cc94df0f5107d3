#!/usr/bin/env bash
# The requester's own link goes down under load (`ip link set down`) and comes back. Its calls end
# with an error in bounded time.
#
# Linux 6.1's soft-RoCE cannot be asked for more: a message of the connection manager that it should
# have sent while the link was down ends its management queue pair for good, and no program on the
# device connects any more (rping neither). So the device is made anew, as its operator would, and
# then a new requester must be able to call.
. "$(dirname "$0")/common.sh"

renew_device() { rdma link delete "$LAB_DEV" && rdma link add "$LAB_DEV" type rxe netdev "$LAB_NETDEV"; }

# TIME: the silence of the peer tells, after ten seconds here, which a guest may stand still. So the requester connects
# again as long as it can, and what counts is what it prints after the link has gone down.
start_responder
start_requester --depth 8 "${reconnects[@]}" --silent-ms-max 10000
check "calls are answered" executes 200
ended=$(printed '^connection ended')
check "the link goes down" ip link set "$LAB_NETDEV" down
check "the requester learns of it" prints_more "$ended" '^connection ended'
check "every call of the requester ended" requester_ends_well
check "no call was executed twice, answered twice or lost" books_agree
check "the link comes back" ip link set "$LAB_NETDEV" up
check "the device is made anew" renew_device
check "the other guest is reached" eventually ping -q -c 1 "$LAB_PEER"
start_requester --count 1000
check "a new requester's calls are answered" requester_ends_well
check "no call was executed twice, answered twice or lost" books_agree
