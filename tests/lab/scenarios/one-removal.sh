#!/usr/bin/env bash
# The device is removed while calls go over it, between two processes of one guest: the calls end in
# an error that says so, the server goes on without the device, and what was on it is let go of, so
# that the removal ends and the device can be made anew.
. "$(dirname "$0")/common.sh"

serve() {
    "$bench" serve --listen "rdma:0.0.0.0:$port" </dev/null >"$work/server" 2>&1 &
    server=$!
    within 60 contains "$work/server" '^listening on '
}

calls() { "$bench" run --connect "rdma:$LAB_IP:$port" "${patient[@]}" --warmup 0 "$@" </dev/null; }

ended() { ! kill -0 "$1" 2>/dev/null; }
# What the device has sent. Queue pairs that are up say too little: a connection is made in several
# messages after that, and a client whose device goes in their midst has not lost a connection.
sent() { cat "/sys/class/infiniband/$LAB_DEV/ports/1/hw_counters/sent_pkts"; }
busy() { [ "$(sent)" -ge $((idle + 400)) ]; }

check "the server listens" serve
idle=$(sent)
calls --duration 120s >"$work/run" 2>&1 &
run=$!
check "calls go over the device" within 60 busy

# Soft-RoCE cannot take itself from a process: the removal ends when the processes have.
rdma link delete "$LAB_DEV" &
removal=$!
check "the calls end" within 100 ended "$run"
sed 's/^/    /' "$work/run"
check "with a word of the lost connection" contains "$work/run" 'connections to .* were lost'
check "the server goes on" kill -0 "$server"
check "it is told to end" kill -TERM "$server"
check "it ends in good order" wait "$server"
check "the removal ends" within 100 ended "$removal"
check "the device is gone" lacks <(rdma link) "$LAB_DEV"
check "the device is made anew" rdma link add "$LAB_DEV" type rxe netdev "$LAB_NETDEV"
check "a server on it" serve
check "calls over it" calls --count 200
