#!/usr/bin/env bash
# bench-tool on an RDMA device, between two processes of one guest: every operation, over IPv4 and
# IPv6, and a server that is asked to end.
. "$(dirname "$0")/common.sh"

serve() { # serve ADDRESS
    listens "$work/server" "$bench" serve --listen "$1" "${patient[@]}" && server=$started
}

listening_on() { sed -n 's/^listening on \([^ ]*\).*/\1/p' "$work/server"; }

run() { "$bench" run --connect "$(listening_on)" "${patient[@]}" --warmup 0 "$@" </dev/null; }

check "the server listens" serve "rdma:$LAB_IP:0"
check "null calls" run --op null --count 2000
check "echoes of 4 KiB" run --op echo --size 4KiB --count 500
check "echoes of 100 KB over two connections" run --op echo --size 100k --count 100 --connections 2
check "a report" run --op null --count 100 --json "$work/report.json"
check "it names the fabric and the device" grep -q "\"$LAB_DEV\"" "$work/report.json"
check "the server is asked to end" kill -TERM "$server"
check "it ends in good order" wait "$server"
check "a server on IPv6" serve "rdma:[$LAB_IP6]:0"
check "null calls over IPv6" run --count 500
check "a server of the run's own" "$bench" run --fabric rdma "${patient[@]}" --count 500 --warmup 0
for protocol in v1 v2; do
    check "calls of the server, in version ${protocol#v}" "$bench" run --fabric rdma "${patient[@]}" --reverse --protocol $protocol \
        --op echo --size 256 --depth 4 --connections 2 --count 500 --warmup 0
done
