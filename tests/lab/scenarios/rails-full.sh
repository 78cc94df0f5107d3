#!/usr/bin/env bash
# A server has no room for more connections than its clients have. Its own link goes down, under half of them: they come again by its
# other link, and find the places that they had. By what these are free is a race: a Send of the server fails, or it gives them away when
# it has rejected a client.
. "$(dirname "$0")/rails.sh"

metrics=$LAB_PEER:$((port + 2))
# What the server shows of itself.
shows() { scrape "$metrics" 2>/dev/null | grep -qE "^$1 $2\$"; } # shows SAMPLE VALUE
device() { printf 'rpcrdma_device_connections\\{device="%s"\\}' "$1"; }

check "the server listens, with room for four connections" listens_on b \
    "$bench serve --listen $both --max-connections 4 --metrics 0.0.0.0:$((port + 2)) ${patient[*]}"
# TIME: an attempt at the address that is away takes half of this limit, and the other one is tried only after it.
"$bench" run --connect "$both" "${patient[@]}" --set connect_timeout_ms=5000 --connections 4 --retry 5m --warmup 0 --duration 60m --metrics "127.0.0.1:$port" \
    >"$work/run" 2>&1 </dev/null &
run=$!
check "calls are answered" eventually while_runs $run has_made "127.0.0.1:$port" 20
check "half of the connections are on each device" eventually while_runs $run shows "$(device "$LAB_DEV2")" 2
check "and its links are up" shows "rpcrdma_device_links_up\\{device=\"$LAB_DEV2\"\\}" 1
check "the server's own link goes down" on_b 'ip link set "$LAB_NETDEV2" down'
check "all connections are on the other device" eventually while_runs $run shows "$(device "$LAB_DEV")" 4
check "it shows that the link is down" shows "rpcrdma_device_links_up\\{device=\"$LAB_DEV2\"\\}" 0
has_made "127.0.0.1:$port" 0
check "calls go on" eventually while_runs $run has_made "127.0.0.1:$port" $((calls_made + 50))
check "the run gets a signal" kill -INT $run
check "no call failed" run_ends_well
