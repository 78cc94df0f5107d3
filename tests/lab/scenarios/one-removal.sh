#!/usr/bin/env bash
# The device is removed while calls go over it, between two processes of one guest: the calls end in
# an error that says so, the server goes on without the device, and what was on it is let go of, so
# that the removal ends and the device can be made anew.
. "$(dirname "$0")/common.sh"

serve() {
    listens "$work/server" "$bench" serve --listen "rdma:0.0.0.0:$port" "${patient[@]}" && server=$started
}

calls() { "$bench" run --connect "rdma:$LAB_IP:$port" "${patient[@]}" --warmup 0 "$@" </dev/null; }

# What the device has sent. Queue pairs that are up say too little: a connection is made in several
# messages after that, and a client whose device goes in their midst has not lost a connection.
sent() { cat "/sys/class/infiniband/$LAB_DEV/ports/1/hw_counters/sent_pkts"; }
busy() { [ "$(sent)" -ge $((idle + 400)) ]; }

check "the server listens" serve
idle=$(sent)
# TIME: far longer than the scenario: the removal is to end them.
calls --duration 60m >"$work/run" 2>&1 &
run=$!
check "calls go over the device" eventually while_runs $run busy

# Soft-RoCE cannot take itself from a process: the removal ends when the processes have.
rdma link delete "$LAB_DEV" &
removal=$!
check "the calls end" eventually has_ended "$run"
sed 's/^/    /' "$work/run"
check "with a word of the lost connection" contains "$work/run" 'connections to .* were lost'
check "the server goes on" kill -0 "$server"
check "it is asked to end" kill -TERM "$server"
check "it ends in good order" wait "$server"
check "the removal ends" eventually has_ended "$removal"
check "the device is gone" lacks <(rdma link) "$LAB_DEV"
check "the device is made anew" rdma link add "$LAB_DEV" type rxe netdev "$LAB_NETDEV"
check "a server on it" serve
check "calls over it" calls --count 200
