#!/usr/bin/env bash
# The NFS server of bench-tool in guest b, at both addresses. The Linux client mounts its export by each of them, with four
# connections a mount (nconnect), and sees one file system. What passes by one link is lost, under fio and fsx, until the
# client connects again; then the link carries again. Every byte is there, and no operation fails.
#
# It comes before rails-cut, after which one of the devices connects no more.
. "$(dirname "$0")/common.sh"
. "$(dirname "$0")/nfs3.sh"
transport=rdma
other=/mnt/nfs3-other
# A call without a reply makes the client connect again after ten seconds. One operation at a time uses one connection.
options=noacl,nconnect=4,timeo=100

at_end() {
    on_both 'tc qdisc del dev $LAB_NETDEV2 root 2>/dev/null'
    umount -f "$files" "$other" 2>/dev/null
}
on_both() { on_b "$1" && eval "$1"; }

listen_at_both() {
    local status=0
    listens_on b "$bench serve --service nfs3 --listen rdma:$LAB_PEER:$port,$LAB_PEER2:$port \
        --mount-listen 0.0.0.0:$mount_port --space 256MiB --max-files 20000 --profile $park ${patient[*]}" || status=$?
    responder=$answer
    return $status
}
mounted_by_both() {
    host=$LAB_PEER mounted "$files" $options && host=$LAB_PEER2 mounted "$other" $options
}
# Each mount has four connections, by its own device.
has_connections() {
    local device
    for device in "$LAB_DEV" "$LAB_DEV2"; do
        [ "$(connections_of "$device")" -ge 4 ] || return 1
    done
}
connections_of() { rdma resource show qp link "$1" | grep 'type RC' | grep -c 'state RTS'; }
is_one() { # is_one WORD: by which what was there before is no answer
    echo "one $1" >"$files/one-$1" && echo "two $1" >"$other/two-$1" && forget &&
        [ "$(cat "$other/one-$1" "$files/two-$1")" = "one $1"$'\n'"two $1" ] &&
        [ "$(stat -c %i "$files/one-$1")" = "$(stat -c %i "$other/one-$1")" ]
}

# Writes and reads until there is a file `end`; counts its rounds.
verified() { # verified NAME FOLDER
    local count=0
    until [ -e "$work/end" ]; do
        fio --name="$1" --filename="$2/$1" --rw=randwrite --bsrange=512-64k --bs_unaligned=1 --size=2m --ioengine=psync \
            --fallocate=none --verify=crc32c --verify_fatal=1 --invalidate=1 --minimal >"$work/$1" &&
            "$fsx" "$2/$1-fsx" --operations 100 --seed $RANDOM >>"$work/$1" || return 1
        count=$((count + 1))
        echo $count >"$work/count-$1"
    done
}
begin_both() {
    verified one "$files" &
    one=$!
    verified two "$other" &
    two=$!
}
rounds() { cat "$work/count-$1" 2>/dev/null || echo 0; }
is_at() { [ "$(rounds "$1")" -ge "$2" ]; }
goes_on() { # goes_on NAME PROCESS
    eventually while_runs "$2" is_at "$1" $(($(rounds "$1") + 2))
}
# A connection by which no call waits is not missed.
has_lost() { [ "$(connections_of "$LAB_DEV2")" -lt 4 ]; }
have_ended() { ! kill -0 $one 2>/dev/null && ! kill -0 $two 2>/dev/null; }
end_both() { touch "$work/end" && eventually have_ended && wait $one && wait $two; }

check "the modules of the client are there" modprobe -a nfsv3 rpcrdma
check "and in the other guest" on_b "modprobe -a rpcrdma"
check "the server listens at both addresses" listen_at_both || exit 1
check "the client mounts the export by both" mounted_by_both || exit 1
check "both are one file system" is_one before
begin_both
check "files are written by one" goes_on one $one
check "and by the other" goes_on two $two
check "each has its connections" has_connections
check "what passes by one link is lost" on_both 'tc qdisc add dev $LAB_NETDEV2 root netem loss 100%'
check "the client learns of it" eventually has_lost
check "who uses the other link goes on" goes_on one $one
check "the link carries again" on_both 'tc qdisc del dev $LAB_NETDEV2 root'
check "who uses it goes on" goes_on two $two
check "no operation failed, and every byte is there" end_both
check "both are one file system still" is_one after
check "the client unmounts them" umount "$files" "$other"
check "the server is asked to end" signal_responder TERM
check "it ends in good order" eventually test -e "$responder.status"
check "with success" test "$(cat "$responder.status")" = 0
responder=
