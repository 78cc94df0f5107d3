#!/usr/bin/env bash
# `bench-tool nfs` against the Linux NFS server over RDMA, in version 1: every procedure, odd sizes, every byte
# checked, a restart of the server in the middle, few credits, broken chunk lists, and nothing left behind.
. "$(dirname "$0")/common.sh"
. "$(dirname "$0")/knfsd.sh"

nfs() { # nfs ARGUMENT...
    "$bench" nfs --connect "rdma:$LAB_IP:20049" "${patient[@]}" --export $export_path --warmup 0 "$@" </dev/null
}

check "the Linux NFS server starts" start_knfsd || exit 1
check "it listens for RDMA" listen_for_rdma
check "null calls, version 2 asked for first" nfs --op null --count 500 --depth 4 --json "$work/null.json"
check "the report says that version 1 is spoken" contains "$work/null.json" '"protocol": "v1"'
check "null calls, version 1 asked for" nfs --op null --count 500 --depth 4 --protocol v1
check "null calls, thread domains asked for" nfs --op null --count 500 --set thread_domains=prefer --json "$work/domains.json"
check "the report says that the device has none" contains "$work/domains.json" 'cores have no thread domain'
check "attributes of files" nfs --op getattr --count 500 --depth 4
for size in 1 7 511 4096 4097 65535 1000003 1MiB; do
    check "reads of $size" nfs --op read --size $size --file-size 3MiB --files 2 --count 40 --depth 4 --verify
    check "writes of $size" nfs --op write --size $size --file-size 3MiB --files 2 --count 40 --depth 4 --verify
done
check "a mix on four connections" nfs --op mix --size 12345 --file-size 1MiB --access random --count 1000 \
    --connections 4 --depth 8 --verify

check "broken headers are answered as they should" "$PROGRAMS/bad-headers" "rdma:$LAB_IP:20049"

metrics=127.0.0.1:9465
# Not by the function: the signal below is for the program.
# TIME: it makes calls for far longer than the scenario takes, and tries again for as long. A connect that the server loses as
# it stops is given up after 20 s, and a call after 30 s, and made again, which is sooner than anybody waits here for calls
# to go on; where a guest stands still for as long, one more is made again.
"$bench" nfs --connect "rdma:$LAB_IP:20049" "${patient[@]}" --set connect_timeout_ms=20000 --set call_timeout_ms=30000 \
    --export $export_path --warmup 0 --op mix --stable file \
    --size 64KiB --file-size 1MiB --depth 8 --connections 2 --duration 60m --verify --retry 30m \
    --json "$work/restart.json" --metrics $metrics </dev/null >"$work/restart" 2>&1 &
load=$!
has_files() { [ -n "$(find $export_path -name file-0003)" ]; }
check "a run makes its files" eventually while_runs $load has_files
check "and calls" eventually while_runs $load has_made $metrics 100
check "the server is stopped under load" stop_nfsd
# TIME: the run tries in vain meanwhile. It connects again in any case.
sleep 2
check "and started again" start_nfsd
check "and listens for RDMA again" listen_for_rdma
# The calls that are counted when the server is there again may be answered already when it was stopped.
has_made $metrics 0
check "calls go on" eventually while_runs $load has_made $metrics $((calls_made + 100))
# TIME: after a signal calls have 10 s. One that the server lost on one of the two connections is made again before, and so
# is a connect, whose calls wait for it while those of the other connection go on.
sleep 35
check "and still do" eventually while_runs $load has_made $metrics $((calls_made + 100))
check "the run gets a signal" kill -INT $load
check "they end in good order" wait $load
check "nothing that was acknowledged is lost" contains "$work/restart" 'blocks that were written, 0 of them wrong'
cat "$work/restart"
check "the report tells of the restart" contains "$work/restart.json" '"reconnects": [1-9]'

check "the server is to grant 4 credits" grant_credits 4
check "more calls than the server grants credits" nfs --op read --size 8KiB --file-size 1MiB --count 300 \
    --depth 16 --verify
check "nothing is left on the server" is_empty $export_path
