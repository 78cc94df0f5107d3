#!/usr/bin/env bash
# A receive queue for each connection, as on devices without shared ones, and receive buffers of
# several segments: calls, many connections after one another, and what the report says.
. "$(dirname "$0")/common.sh"

cat >"$work/own.toml" <<'END'
[settings]
receive_queues = "own"
placement_segments = 1
placement_segment_bytes = 8192
connections_max = 16
credits_per_connection = 8
END

serve() {
    listens "$work/server" "$bench" serve --listen "rdma:$LAB_IP:$port" --profile "$work/own.toml" "${patient[@]}" &&
        server=$started
}

run() {
    "$bench" run --connect "rdma:$LAB_IP:$port" --profile "$work/own.toml" "${patient[@]}" --warmup 0 "$@" </dev/null
}

# Places of the server are given again and again.
rounds() {
    local round
    for round in 1 2 3 4 5; do run --op echo --size 3000 --connections 12 --depth 4 --count 240 || return; done
}

check "the server listens" serve
check "null calls" run --op null --count 2000 --json "$work/report.json"
check "the report says whose the receive queues are" \
    grep -q '"receive_queues": "own"' "$work/report.json"
check "echoes that lie in two segments" run --op echo --size 4000 --depth 8 --count 1000
check "echoes in several Sends" run --op echo --size 100k --connections 2 --count 100
check "places are given again" rounds
check "the server is asked to end" kill -TERM "$server"
check "it ends in good order" wait "$server"
