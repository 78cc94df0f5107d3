#!/usr/bin/env bash
# As one-nfs3.sh, by the kernel's own RPC-over-RDMA; and what is of RDMA alone: two mounts at once, another
# after all were taken away, and a server with little memory.
. "$(dirname "$0")/common.sh"
. "$(dirname "$0")/nfs3.sh"
transport=rdma
host=$LAB_IP
other=/mnt/nfs3-other

# Some files by each of two mounts at the same time; each reads what the other wrote.
side_by_side() {
    local number folder
    mkdir "$work/side" && for number in 1 2 3 4; do head -c $((number * 300007)) /dev/urandom >"$work/side/$number"; done
    for folder in "$files" "$other"; do
        (for number in 1 2 3 4; do cp "$work/side/$number" "$folder/by-${folder##*/}-$number" || exit 1; done) &
        writers+=($!)
    done
    wait "${writers[@]}" && forget && for number in 1 2 3 4; do
        cmp "$work/side/$number" "$files/by-${other##*/}-$number" &&
            cmp "$work/side/$number" "$other/by-${files##*/}-$number" || return 1
    done
}
writers=()

# The server has buffers for one READ or WRITE at a time, and space for little more than is written.
in_need() {
    local number readers=() failed=0
    mkdir "$work/need" || return 1
    for number in 1 2 3 4 5 6; do
        head -c 2000003 /dev/urandom >"$work/need/$number"
        cp "$work/need/$number" "$files/need-$number" &
        readers+=($!)
    done
    wait "${readers[@]}" && forget || return 1
    readers=()
    for number in 1 2 3 4 5 6; do
        cmp "$work/need/$number" "$files/need-$number" &
        readers+=($!)
    done
    for number in "${readers[@]}"; do wait "$number" || failed=1; done
    return $failed
}
is_full() {
    ! dd if=/dev/zero of="$files/full" bs=1M count=16 conv=fsync 2>"$work/full" &&
        contains "$work/full" 'No space left on device' && rm "$files/full" && cmp "$work/need/1" "$files/need-1"
}
# How often the client was told to ask again later (the last but two of its counts of events).
told_to_wait() {
    awk -v mount="$files" '$5 == mount { here = 1 } here && $1 == "events:" { print $(NF - 2); exit }' /proc/self/mountstats
}

# MOUNT and NFS on one connection: the TCP port is not asked.
ours() {
    "$bench" nfs --connect "rdma:$LAB_IP:$port" "${patient[@]}" --export /export --warmup 0 --op mix --size 4097 \
        --file-size 100kB --count 100 --verify "$@" </dev/null
}

check "the modules of the client are there" modprobe -a nfsv3 rpcrdma
check "the server listens" serve --space 256MiB --max-files 20000 || exit 1
for version in v1 v2; do
    check "our client mounts by RDMA, version $version" ours --protocol $version
done
check "the client mounts it" mounted || exit 1
works
check "it is mounted a second time, with access control lists asked for" mounted "$other" acl,nosharecache || exit 1
check "both mounts work side by side" side_by_side
check "the first is taken away" umount "$files"
check "the second goes on" cmp "$work/side/1" "$other/by-${other##*/}-1"
check "the first is there again" mounted || exit 1
check "with all that was written" cmp "$work/side/4" "$files/by-${other##*/}-4"
check "the second is taken away" umount "$other"
ends

port=$((port + 1))
check "a server with little memory listens" serve --space 16MiB --max-files 20 --bulk-calls 1 || exit 1
check "it is mounted" mounted || exit 1
check "what many write and read at once is right" in_need
check "a full server says so, and goes on" is_full
echo "    the client was told to ask again $(told_to_wait) times"
ends
