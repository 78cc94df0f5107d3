# shellcheck shell=bash
# shellcheck disable=SC2154 # work is set by common.sh
# Sourced by the scenarios that need the Linux NFS server, behind common.sh: knfsd on this guest, with a
# file system in memory for export.

export_path=/srv/lab
mount_port=20048
# 0 makes it the root of version 4.
export_id=1

start_knfsd() {
    mkdir -p $export_path /run/rpcbind
    mount -t tmpfs -o size=600m,mode=755 export $export_path &&
        { grep -qw nfsd /proc/filesystems || modprobe nfsd; } &&
        mount -t nfsd nfsd /proc/fs/nfsd &&
        # The default shrinks with the memory of the machine.
        echo $((1 << 20)) >/proc/fs/nfsd/max_block_size &&
        printf '%s *(rw,no_root_squash,insecure,fsid=%s,no_subtree_check)\n' $export_path $export_id \
            >/etc/exports &&
        rpcbind -w &&
        exportfs -r &&
        rpc.mountd --port $mount_port &&
        start_nfsd
}

# Version 3 alone: no state that a restart would have to wait for.
start_nfsd() { rpc.nfsd --no-nfs-version 4 8; }
stop_nfsd() { rpc.nfsd 0; }

# What listens ends with the server: a server that was started again is told again.
listen_for_rdma() { modprobe rpcrdma && echo 'rdma 20049' >/proc/fs/nfsd/portlist; }

# The server grants that many credits to each connection, from now on.
grant_credits() { # grant_credits NUMBER
    stop_nfsd && echo "$1" >/proc/sys/sunrpc/svc_rdma/max_requests && start_nfsd && listen_for_rdma
}

# Ends all of it, so that its ports and folders are free for the next scenario.
at_end() {
    stop_nfsd
    exportfs -ua
    pkill -x rpc.mountd
    pkill -x rpcbind
    # Their ports are the next scenario's.
    eventually no_process rpc.mountd
    eventually no_process rpcbind
    umount /proc/fs/nfsd
    umount -l $export_path
    eventually lacks /proc/net/tcp ":$(printf %04X $mount_port) .* 0A "
}
no_process() { ! pgrep -x "$1" >/dev/null; } # no_process NAME

is_empty() { [ -z "$(ls -A "$1")" ]; }
