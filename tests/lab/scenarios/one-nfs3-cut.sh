#!/usr/bin/env bash
# The Linux client writes to the NFS server of bench-tool over RDMA, and the connection ends again and again while the
# server reads what a WRITE brings: by an RDMA Read that is refused, and by Sends that end it. Each WRITE of 1 MiB is
# several RDMA Reads. The client asks once more on another connection. What it reads in the end is what it wrote: no
# WRITE is executed with what stood in the server's buffers before.
. "$(dirname "$0")/common.sh"
. "$(dirname "$0")/nfs3.sh"
transport=rdma
host=$LAB_IP
megabytes=${MEGABYTES:-24}
rounds=${ROUNDS:-3}

# Each round writes other bytes over the file: old ones are seen.
written_and_read() {
    local round
    for round in $(seq "$rounds"); do
        head -c $((megabytes << 20)) /dev/urandom >"$work/cut" &&
            dd if="$work/cut" of="$files/cut" bs=1M conv=fsync,notrunc status=none &&
            forget && cmp "$work/cut" "$files/cut" || return 1
    done
}
struck() { # struck FAULT: the server's log counts it
    contains "$work/server" "fault_injected.*$1.*[1-9]"
}

check "the modules of the client are there" modprobe -a nfsv3 rpcrdma
# Completions of a connection are held back behind a message that comes late, and handed over together.
check "a server listens whose connections break" serve --space 256MiB --set reap_batch=64 \
    --fault fail-read:one-in=60 --fault disconnect:one-in=90 --fault delay-message:for=5ms,one-in=20 || exit 1
# TIME: the client gives a WRITE up after a minute, and asks once more on another connection. A shorter time would end
# connections by itself on a slow machine, again and again. That a connection ended, the client learns from its device.
check "it is mounted" mounted "$files" noacl,hard,timeo=600,wsize=1048576,rsize=1048576 || exit 1
check "what was written is read, round after round" written_and_read
ends
for fault in fail-read disconnect delay-message; do
    check "$fault struck" struck "$fault"
done
