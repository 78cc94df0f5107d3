#!/usr/bin/env bash
# The Linux client mounts the NFS server of bench-tool, in the same guest, and works on it: what is
# written is read, also after everything cached was forgotten. OPERATIONS is how many the checker makes;
# TRANSPORT is tcp, or rdma for the kernel's own RPC-over-RDMA.
. "$(dirname "$0")/common.sh"

fsx=$PROGRAMS/fsx
files=/mnt/nfs3
case ${TRANSPORT:-tcp} in
    tcp)
        listen="tcp:127.0.0.1:$port"
        options=proto=tcp,port=$port,mountport=$port
        host=127.0.0.1
        module=nfsv3
        ;;
    rdma)
        listen="rdma:0.0.0.0:$port --mount-listen 127.0.0.1:20048"
        options=proto=rdma,port=$port,mountport=20048,mountaddr=127.0.0.1
        host=$LAB_IP
        module=rpcrdma
        ;;
esac

serve() {
    # shellcheck disable=SC2086 # options
    "$bench" serve --service nfs3 --listen $listen --space 256MiB --max-files 20000 \
        </dev/null >"$work/server" 2>&1 &
    server=$!
    within 60 contains "$work/server" '^listening on '
}

mounted() {
    mkdir -p "$files" &&
        mount -t nfs -o "vers=3,$options,mountproto=tcp,nolock,noacl" "$host:/export" "$files"
}

# What is read next comes from the server: files forget their pages, directories their names.
forget() { sync && echo 3 >/proc/sys/vm/drop_caches; }

# Sizes around those of pages, of a READ, and of words.
sizes="0 1 2 3 4 5 4095 4096 4097 65535 65536 65537 1048575 1048576 1048577 3000001"
copied() {
    local size
    mkdir -p "$work/sizes" "$files/sizes"
    for size in $sizes; do
        head -c "$size" /dev/urandom >"$work/sizes/$size"
        cp "$work/sizes/$size" "$files/sizes/$size" || return 1
    done
}
same() { diff -r "$1" "$2"; }

many=10000
made_many() {
    mkdir "$files/many" && (cd "$files/many" && seq -f 'name-%.0f' $many | xargs touch)
}
listed() { # listed COUNT: names, each once
    [ "$(find "$files/many" -type f | sort -u | wc -l)" -eq "$1" ] &&
        [ "$(ls -U "$files/many" | wc -l)" -eq "$1" ]
}
# Names are taken away while they are listed.
removed_while_listed() {
    ls -U "$files/many" | grep '5$' | sed "s|^|$files/many/|" | xargs rm
}

linked() (
    cd "$files" && echo bytes >one && ln one two && [ "$(stat -c %h two)" -eq 2 ] &&
        rm one && grep -q bytes two
)
target=$(printf 'x%.0s' $(seq 4095))
long_symlink() {
    ln -s "$target" "$files/long" && forget && [ "$(readlink "$files/long")" = "$target" ]
}

renamed() (
    cd "$files" && mkdir -p a/b c && echo 1 >a/b/file && echo 2 >other &&
        mv a/b c/d && mv -T c/d/file other && grep -q 1 other && rmdir c/d a c
)

# The file is longer than the server's space, and takes four pages of it at most.
sparse() {
    local at=999999999
    truncate -s 1T "$files/sparse" &&
        printf x | dd of="$files/sparse" bs=1 seek=$at conv=notrunc status=none && forget &&
        [ "$(stat -c %s "$files/sparse")" -eq $((1 << 40)) ] &&
        [ "$(stat -c %b "$files/sparse")" -le 32 ] &&
        [ "$(tail -c +$at "$files/sparse" | head -c 3 | od -An -tx1)" = ' 00 78 00' ]
}
cut_short() {
    local file=sizes/1048577
    truncate -s 7 "$files/$file" && forget && [ "$(stat -c %s "$files/$file")" -eq 7 ] &&
        cmp -n 7 "$files/$file" "$work/$file"
}

kinds() {
    mkfifo "$files/pipe" && mknod "$files/null" c 1 3 && forget &&
        [ -p "$files/pipe" ] && [ "$(stat -c '%t %T' "$files/null")" = '1 3' ]
}
fills_up() {
    ! dd if=/dev/zero of="$files/full" bs=1M count=400 conv=fsync 2>"$work/full" &&
        contains "$work/full" 'No space left on device' && rm "$files/full" &&
        dd if=/dev/zero of="$files/full" bs=1M count=100 conv=fsync 2>/dev/null && rm "$files/full"
}
# As a user without rights, whose id is in no group of the file's.
as_nobody() { setpriv --reuid 65534 --regid 65534 --clear-groups "$@"; }
forbidden() {
    echo secret >"$files/secret" && chmod 600 "$files/secret" &&
        ! as_nobody cat "$files/secret" 2>/dev/null && ! as_nobody rm -f "$files/secret" 2>/dev/null &&
        as_nobody touch "$files/mine" && [ "$(stat -c %u "$files/mine")" -eq 65534 ]
}
cloned() {
    git init -q "$work/repository" &&
        (cd "$work/repository" && cp -r "$OLDPWD"/tests/lab . && git add . &&
            git -c user.name=x -c user.email=x@localhost commit -q -m all) &&
        git clone -q --no-local "$work/repository" "$files/clone" && forget &&
        git -C "$files/clone" fsck --strict 2>&1 && [ -z "$(git -C "$files/clone" status --porcelain)" ]
}
empty() { rm -rf "${files:?}"/* && [ "$(df --output=used "$files" | tail -1)" -eq 0 ]; }

check "the modules of the client are there" modprobe -a nfsv3 $module
check "the server listens" serve
check "the client mounts it" mounted
check "files of odd sizes are written" copied
check "what is cached is forgotten" forget
check "and read again" same "$work/sizes" "$files/sizes"
check "a file is cut short" cut_short
check "a file has two names" linked
check "a symbolic link of 4095 octets" long_symlink
check "directories and files move" renamed
check "a sparse file of a tebibyte" sparse
check "pipes and devices" kinds
check "permissions hold" forbidden
check "a full server says so, and goes on" fills_up
check "a directory of $many" made_many
check "what is cached is forgotten" forget
check "lists each once" listed $many
check "names go while they are listed" removed_while_listed
check "the others stay" listed $((many - many / 10))
if command -v git >/dev/null; then
    check "a repository is cloned, and whole" cloned
else
    echo "    this machine has no git: no repository is cloned"
fi
check "random operations" "$fsx" "$files/fsx" --operations "${OPERATIONS:-5000}" --seed $RANDOM
check "all of it is taken away again" empty
check "the client unmounts it" umount "$files"
check "the server is told to end" kill -TERM "$server"
check "it ends in good order" wait "$server"
