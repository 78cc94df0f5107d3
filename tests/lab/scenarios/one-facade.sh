#!/usr/bin/env bash
# Programs that embed the library by its facade, over a device: a call, blocks with bulk data both ways, blocks in
# memory of the program, and a client that names a server that is not there. The device and the profile of its family are found by the address.
# TIME: so the limits are those of the profile. The shortest one is ten seconds of silence of a peer. A guest that pauses for
# longer pauses both processes, and a process does not count its own pause as the silence of its peer.
. "$(dirname "$0")/common.sh"

serve() {
    listens "$work/server" "$PROGRAMS/echo" serve "rdma:$LAB_IP:$port" &&
        server=$started && contains "$work/server" "^listening on rdma:$LAB_IP:$port"
}

call() {
    "$PROGRAMS/echo" call "rdma:$LAB_IP:$port" "$1" >"$work/answer" && [ "$(cat "$work/answer")" = "$1" ]
}

blocks() {
    "$PROGRAMS/block_store" "rdma:$LAB_IP:$((port + 1))" >"$work/blocks" &&
        contains "$work/blocks" "^1000 blocks are what was written"
}

memory() {
    "$PROGRAMS/memory_store" "rdma:$LAB_IP:$((port + 3))" >"$work/memory" &&
        contains "$work/memory" "^16 blocks are what was written"
}

nobody() {
    ! "$PROGRAMS/echo" call "rdma:$LAB_IP:$((port + 2))" hello >/dev/null 2>"$work/error" &&
        contains "$work/error" "rdma:$LAB_IP:$((port + 2))"
}

check "the server listens" serve
check "a call is answered" call "hello over a device"
check "another client is answered" call "again"
check "blocks of 4 KiB come back as they were written" blocks
check "blocks of 64 KiB go from and into memory of the program" memory
check "a server that is not there is named" nobody
check "the server still answers" call "at the end"
check "the server is asked to end" kill -TERM "$server"
