#!/usr/bin/env bash
# Two guests with two links and a device on each: a node of each end uses both. One link of the client goes down under load.
#
# There is one cut: a device of soft-RoCE whose link was down makes no new connection (see pair-link-down).
. "$(dirname "$0")/rails.sh"

calls_are_made
check "the link goes down" ip link set "$LAB_NETDEV2" down
calls_go_on
# By whom is a race: the connection is abandoned after a moment, or a Send of it fails before.
check "its connection was made again once, and the report tells of the link" was_moved links_down
none_is_lost
