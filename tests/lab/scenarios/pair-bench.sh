#!/usr/bin/env bash
# bench-tool between two guests.
. "$(dirname "$0")/common.sh"

start_on_b "$bench serve --listen $address"
check "the server listens" within 60 contains "$answer.output" '^listening on '
run() { "$bench" run --connect "$address" "${patient[@]}" --warmup 0 "$@" </dev/null; }
check "null calls" run --op null --count 1000
check "null calls, 32 at a time over 4 connections" run --op null --depth 8 --connections 4 --count 5000
check "echoes of 64 KiB" run --op echo --size 64KiB --count 100
check "the server is told to end" on_b "kill -TERM $(cat "$answer.pid")"
check "it ends" within 120 test -e "$answer.status"
check "in good order" test "$(cat "$answer.status")" = 0
