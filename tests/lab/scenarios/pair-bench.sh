#!/usr/bin/env bash
# bench-tool between two guests.
. "$(dirname "$0")/common.sh"

check "the server listens" listens_on b "$bench serve --listen $address ${patient[*]}"
server=$answer
run() { "$bench" run --connect "$address" "${patient[@]}" --warmup 0 "$@" </dev/null; }
check "null calls" run --op null --count 1000
check "null calls, 32 at a time over 4 connections" run --op null --depth 8 --connections 4 --count 5000
check "echoes of 64 KiB" run --op echo --size 64KiB --count 100
check "the server is asked to end" on_b "kill -TERM $(cat "$server.pid")"
check "it ends" eventually test -e "$server.status"
check "in good order" test "$(cat "$server.status")" = 0
