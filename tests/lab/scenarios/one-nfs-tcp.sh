#!/usr/bin/env bash
# `bench-tool nfs` against the Linux NFS server, over TCP: every procedure, odd sizes, every byte checked, a
# restart of the server in the middle, and nothing left behind.
. "$(dirname "$0")/common.sh"
. "$(dirname "$0")/knfsd.sh"

nfs() { # nfs ARGUMENT...
    "$bench" nfs --connect "tcp:$LAB_IP:2049" --export "${path:-$export_path}" --warmup 0 "$@" </dev/null
}

refused() { # refused WORDS ARGUMENT...
    local words=$1
    shift
    ! nfs "$@" >"$work/refused" 2>&1 && contains "$work/refused" "$words"
}

check "the Linux NFS server starts" start_knfsd || exit 1
check "null calls, mountd found by the port mapper" nfs --op null --count 500 --depth 4
check "null calls, mountd at a given port" nfs --op null --count 10 --mount-port $mount_port
check "attributes of files" nfs --op getattr --count 500 --depth 4
check "attributes of the export" nfs --op getattr --files 0 --count 100
for size in 1 7 511 4096 4097 65535 1000003 1MiB; do
    check "reads of $size" nfs --op read --size $size --file-size 3MiB --files 2 --count 60 --depth 4 --verify
    check "writes of $size" nfs --op write --size $size --file-size 3MiB --files 2 --count 60 --depth 4 --verify
done
check "stable writes" nfs --op write --stable file --size 8KiB --count 100 --verify
check "a mix on four connections" nfs --op mix --size 12345 --file-size 1MiB --access random --count 2000 \
    --connections 4 --depth 8 --verify --json "$work/mix.json"
check "its report has both procedures" contains "$work/mix.json" '"read": \{'
check "an open loop" nfs --op read --rate 200 --count 400 --depth 16
check "what is larger than the server takes is refused" refused 'give --size' --op read --size 8MiB
path=/nowhere check "what is not exported is refused" refused MNT3ERR --op null
check "another user may not write" refused NFS3ERR_ACCES --op write --uid 4711 --gid 4711

metrics=127.0.0.1:9465
# TIME: it makes calls for far longer than the scenario takes, and tries again for as long.
"$bench" nfs --connect "tcp:$LAB_IP:2049" --export $export_path --op write --stable file --size 4KiB --warmup 0 \
    --duration 60m --verify --retry 30m --json "$work/restart.json" --metrics $metrics </dev/null >"$work/restart" 2>&1 &
writer=$!
check "writes are made" eventually while_runs $writer has_made $metrics 100
check "the server is stopped" stop_nfsd
# TIME: the run tries in vain meanwhile. It connects again in any case.
sleep 2
check "and started again" start_nfsd
# The calls that are counted when the server is there again may be answered already when it was stopped.
has_made $metrics 0
check "writes go on" eventually while_runs $writer has_made $metrics $((calls_made + 100))
check "the run gets a signal" kill -INT $writer
check "none that was acknowledged is lost" wait $writer
cat "$work/restart"
check "the report tells of the restart" contains "$work/restart.json" '"reconnects": [1-9]'
"$bench" nfs --connect "tcp:$LAB_IP:2049" --export $export_path --op write --warmup 0 --duration 60m \
    --metrics $metrics </dev/null >"$work/signal" 2>&1 &
writer=$!
has_files() { [ -n "$(find $export_path -name file-0003)" ]; }
check "a run makes its files" eventually while_runs $writer has_files
check "and calls" eventually while_runs $writer has_made $metrics 0
check "it is asked to end" kill -INT $writer
check "it ends in good order" wait $writer
check "nothing is left on the server" is_empty $export_path
