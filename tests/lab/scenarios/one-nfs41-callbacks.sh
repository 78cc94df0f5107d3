#!/usr/bin/env bash
# A read delegation of the Linux NFS server, version 4.1, that is recalled by a call in the reverse direction of our
# RDMA connection (examples/src/bin/nfs41-recall), and no connection is made for that.
. "$(dirname "$0")/common.sh"
. "$(dirname "$0")/knfsd.sh"

# The root of a guest is an overlay, and cannot be exported as that of version 4.
export_id=0

# With version 4, whose server gives no delegation before its grace period is over: that is ended.
# TIME: a client whose guest stands still loses its lease after ten minutes.
start_nfsd() {
    echo 600 >/proc/fs/nfsd/nfsv4leasetime && rpc.nfsd 8 && echo Y >/proc/fs/nfsd/v4_end_grace
}

# What it prints goes to $work/NAME as well.
recall() { # recall NAME [ARGUMENT...]
    local status
    "$PROGRAMS/nfs41-recall" --connect "rdma:$LAB_IP:20049" --file "/$1" "${@:2}" >"$work/$1" 2>&1
    status=$?
    sed 's/^/    /' "$work/$1"
    return $status
}

tcp_connects() { awk '/^Tcp: [0-9]/ { print $6 }' /proc/net/snmp; }
# How often the server executed DELEGRETURN, its operation 8, by its own count.
delegations_returned() { awk '$1 == "proc4ops" { print $11 }' /proc/net/rpc/nfsd; }

check "the NFS server of Linux $(uname -r) starts, with version 4" start_knfsd || exit 1
check "it listens for RDMA" listen_for_rdma
for name in one two open; do echo "$name" >$export_path/$name; done

connects=$(tcp_connects) returned=$(delegations_returned)
for name in one two; do
    check "a delegation of file $name is given, recalled and returned" recall $name
    check "the recall came in the reverse direction" contains "$work/$name" 'CB_RECALL came in the reverse direction'
    check "the core counted the server's calls" contains "$work/$name" 'reverse_calls=[1-9]'
    check "by version 1" contains "$work/$name" 'RPC-over-RDMA version 1$'
done
check "the server counted both returns" test "$(delegations_returned)" -eq $((returned + 2))
check "nobody made a TCP connection" test "$(tcp_connects)" -eq "$connects"
: <>/dev/tcp/127.0.0.1/111
check "which would have been counted" test "$(tcp_connects)" -eq $((connects + 1))

# Who writes keeps the server from giving a delegation: the program then ends with an error.
# TIME: the limit is tried. A server that has not answered by then has given no delegation either.
exec 5>>$export_path/open
recall open --timeout-s 3 </dev/null
check "without a delegation it fails" test $? -eq 1
check "and says why" contains "$work/open" 'the server gives no read delegation, for 3 s'
exec 5>&-
