#!/usr/bin/env bash
# The NFS server of bench-tool in guest b, by RPC-over-RDMA, mounted in both guests, and work on it all the time.
# The cable is cut and mended: no operation is lost or done twice, and every byte is there. The server is killed
# and started again: its files are gone, for they were in memory, and both go on with the mounts that they have.
. "$(dirname "$0")/common.sh"
. "$(dirname "$0")/nfs3.sh"
transport=rdma
host=$LAB_PEER

# Makes files, and changes names, until there is a file `end`; a failure ends it. What is made twice is one that
# was repeated after it was done: a directory is there already, a name is gone.
load() { # load NAME
    local here=$work/load/$1 there=$files/load-$1 count=0
    rm -rf "$here" && mkdir -p "$here" && mkdir "$there" || return 1
    until [ -e "$work/end" ]; do
        count=$((count + 1))
        head -c $((count * 79193 % 400000)) /dev/urandom >"$here/$count" &&
            cp "$here/$count" "$there/new" && ln "$there/new" "$there/$count" && rm "$there/new" &&
            mkdir "$there/folder" && mv "$there/$count" "$there/folder" && mv "$there/folder/$count" "$there" &&
            rmdir "$there/folder" || return 1
        echo $count >"$work/count-$1"
    done
}
# The same functions in guest b, for what is said in COMMAND.
told_to_b() { # told_to_b COMMAND
    declare -f load mounted forget same
    printf 'work=/tmp/nfs3 files=%q host=%q port=%q mount_port=%q transport=rdma\n' \
        "$files" "$host" "$port" "$mount_port"
    printf 'mkdir -p $work; cd $work || exit\n%s\n' "$1"
}
in_b() { on_b "$(told_to_b "$1")"; }

declare -A load_of
begin_load() { # begin_load NAME...: in this guest; and in b
    local name
    loads=()
    rm -f "$work/end" "$work/errors"
    in_b 'rm -f $work/end' || return 1
    for name in "$@"; do
        load "$name" 2>>"$work/errors" &
        loads+=($!)
        load_of[$name]=$!
    done
    ask "$(told_to_b 'load b')"
    load_b=$answer
}
made() { cat "$work/count-$1" 2>/dev/null || echo 0; }
made_in_b() { in_b 'cat $work/count-b 2>/dev/null || echo 0'; }
is_made() { [ "$(made "$1")" -ge "$2" ]; }
is_made_in_b() { [ "$(made_in_b)" -ge "$1" ]; }
# Whoever is under way does so many more. A load that ends before has failed.
goes_on() { # goes_on NAME
    eventually while_runs "${load_of[$1]}" is_made "$1" $(($(made "$1") + 3))
}
goes_on_in_b() { eventually while_runs "$load_b" is_made_in_b $(($(made_in_b) + 3)); }
end_load() {
    touch "$work/end" && in_b 'touch $work/end'
}
load_ended() {
    local pid
    for pid in "${loads[@]}"; do ! kill -0 "$pid" 2>/dev/null || return 1; done
    [ -e "$load_b.status" ]
}
load_ends_well() {
    local pid
    end_load && for pid in "${loads[@]}"; do wait "$pid" || return 1; done &&
        eventually load_ended && [ "$(cat "$load_b.status")" -eq 0 ]
}
all_is_there() {
    local name
    forget && for name in one two; do same "$work/load/$name" "$files/load-$name" || return 1; done &&
        in_b 'forget && same $work/load/b $files/load-b'
}

# How often the client connected (the third number of the transport's).
connects() {
    awk -v mount="$files" '$5 == mount { here = 1 } here && $1 == "xprt:" { print $5; exit }' /proc/self/mountstats
}
is_disconnected() { ! rdma resource show qp | grep 'type RC' | grep -q 'state RTS'; }
new_files_work() {
    head -c 100003 /dev/urandom >"$work/again" && cp "$work/again" "$files/again" && forget &&
        cmp "$work/again" "$files/again" && rm "$files/again"
}

check "the modules of the client are there" modprobe -a nfsv3 rpcrdma
check "and in the other guest" on_b "modprobe -a nfsv3 rpcrdma"
check "the server listens" serve_on_b || exit 1
check "the client mounts it" mounted || exit 1
check "another client mounts it" in_b mounted || exit 1
check "both work on it" begin_load one two
check "this one does" goes_on one
check "by a connection that is seen" eval '! is_disconnected'
check "the other does" goes_on_in_b
connects_before=$(connects)
check "the cable is cut" cut_cable
# A call whose reply alone is lost is given up after a minute.
check "the client learns of it" eventually is_disconnected
check "who does not need the cable goes on" goes_on_in_b
check "the cable is mended" mend_cable
check "the client goes on" goes_on one
check "in all that it does" goes_on two
check "by another connection" test "$(connects)" -gt "$connects_before"
check "no operation failed, or was done twice" load_ends_well || cat "$work/errors" "$load_b.output"
check "every byte is there" all_is_there

check "both work again" begin_load three four
check "this client does" goes_on three
check "the server is killed" signal_responder KILL
# TIME: the clients try in vain meanwhile. They have to connect again in any case.
sleep 3
check "and started again" serve_on_b
check "what was under way ends" eventually load_ended
check "new files are written and read, by the mount that was there" eventually new_files_work
check "in the other client too" in_b 'echo bytes >$files/mine && forget && grep -q bytes $files/mine && rm $files/mine'
check "it is unmounted, and mounted again" eval 'umount "$files" && mounted'
check "new files are written and read" new_files_work
check "the clients unmount it" eval 'umount "$files" && in_b "umount \$files"'
check "the server is asked to end" signal_responder TERM
check "it ends in good order" eventually test -e "$responder.status"
check "with success" test "$(cat "$responder.status")" = 0
responder=
