#!/usr/bin/env bash
# As rails-cut, and no link goes down: what the server sends by one of them is lost. No device tells of that (soft-RoCE sends
# again without end), and keep-alives would tell after minutes, as they are set here: the client finds its path dead.
. "$(dirname "$0")/rails.sh"

at_end() { on_b 'tc qdisc del dev $LAB_NETDEV2 root'; }

calls_are_made
check "what the server sends by one link is lost" on_b 'tc qdisc add dev $LAB_NETDEV2 root netem loss 100%'
calls_go_on
check "its connection was made again once, because its path was dead" was_moved paths_dead
none_is_lost
