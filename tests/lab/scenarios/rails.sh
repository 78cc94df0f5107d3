# shellcheck shell=bash
# shellcheck disable=SC2154 # of common.sh
# Sourced by scenarios in which one of two paths to the servers ends under load: what calls, and what must hold then. Calls go
# on by the other device, on the same core. A call that may have run is repeated there, and runs once.
. "$(dirname "$0")/common.sh"

# The path that ends has the first address, at which a client begins.
both=rdma:$LAB_PEER2:$port,rdma:$LAB_PEER:$port
procedure="536870913 1"
entered() { [ "$(wc -l <"$work/client")" -ge "$1" ]; }
enters() { # enters MORE: waits until the client has got so many more answers
    eventually while_runs "$client" entered $(($(wc -l <"$work/client") + $1))
}

# Each number that the client has an answer to was entered once, and none was entered twice.
entered_once() {
    local answered
    answered=$(wc -l <"$work/client")
    on_b "cat $entries.output" | grep -v listening >"$work/entries"
    seq 0 $((answered - 1)) | cmp - "$work/client" && [ -z "$(sort "$work/entries" | uniq -d)" ] &&
        [ "$(sort -n "$work/entries" | head -n "$answered" | sha256sum)" = "$(sha256sum <"$work/client")" ]
}

run_ends_well() { wait "$run" && contains "$work/run" "no errors"; }
# Once, and COUNTER says why.
was_moved() { # was_moved COUNTER
    [ "$(jq '[.. | .reconnects? // empty] | max' "$work/run.json")" = 1 ] && contains "$work/run" "$1 1"
}

# TIME: paths are judged by their own limits, as repeating-client has them: longer than a guest pauses.
watch=(--set path_suspect_ms=10000 --set path_probe_ms=10000)

# A device of soft-RoCE whose link was down makes no new connection: each scenario begins with new ones.
renew_second() {
    local again='ip link set "$LAB_NETDEV2" up; rdma link delete "$LAB_DEV2" && rdma link add "$LAB_DEV2" type rxe netdev "$LAB_NETDEV2"'
    on_b "$again" && eval "$again"
}
check "the second device of each guest is made anew" renew_second

calls_are_made() {
    check "the servers listen at both addresses" listens_on b "$PROGRAMS/entry-server $both $procedure"
    entries=$answer
    bench_at=rdma:$LAB_PEER2:$((port + 1)),rdma:$LAB_PEER:$((port + 1))
    check "and that of bench-tool" listens_on b "$bench serve --listen $bench_at ${patient[*]}"
    "$PROGRAMS/repeating-client" "$both" $procedure 0 >"$work/client" 2>"$work/client.moves" &
    client=$!
    check "calls are answered" enters 50
    "$bench" run --connect "$bench_at" "${patient[@]}" "${watch[@]}" --retry 5m --warmup 0 --duration 60m --json "$work/run.json" \
        --metrics "127.0.0.1:$port" >"$work/run" 2>&1 </dev/null &
    run=$!
    check "calls of bench-tool are answered" eventually while_runs $run has_made "127.0.0.1:$port" 20
}

# By the other path.
calls_go_on() {
    check "calls go on by the other link" enters 50
    # What is counted now may have been answered before the cut.
    has_made "127.0.0.1:$port" 0
    check "and those of bench-tool" eventually while_runs $run has_made "127.0.0.1:$port" $((calls_made + 50))
    check "the run gets a signal" kill -INT $run
    check "no call of bench-tool failed" run_ends_well
}

none_is_lost() {
    kill -KILL $client
    check "no call was lost, and none ran twice" entered_once
}
