# shellcheck shell=bash
# shellcheck disable=SC2154,SC2034 # work, port and bench are set by common.sh; scenarios use what is set here
# Sourced by the scenarios that mount the NFS server of bench-tool with the Linux client, behind common.sh.
# A scenario sets `host`, the server's address, and `transport`, tcp or rdma.

fsx=$PROGRAMS/fsx
files=/mnt/nfs3
mount_port=$((port + 5000))
# The processors of a guest are the server's and the client's: a core that sleeps is three times as fast here.
park=$(dirname "${BASH_SOURCE[0]}")/park.toml

# What the server is started with; where MOUNT is is told by `mounted`.
server_line() { # server_line [OPTION...]
    case $transport in
        tcp) echo "$bench serve --service nfs3 --listen tcp:0.0.0.0:$port $*" ;;
        rdma)
            echo "$bench serve --service nfs3 --listen rdma:0.0.0.0:$port \
                --mount-listen 0.0.0.0:$mount_port --profile $park ${patient[*]} $*"
            ;;
    esac
}

serve() { # serve [OPTION...]: in this guest
    # shellcheck disable=SC2046 # words
    listens "$work/server" $(server_line "$@")
    local status=$?
    server=$started
    return $status
}

serve_on_b() { # serve_on_b [OPTION...]
    local status=0
    listens_on b "$(server_line --space 256MiB --max-files 20000 "$@")" || status=$?
    responder=$answer
    return $status
}

mounted() { # mounted [FOLDER [OPTIONS]]
    local folder=${1:-$files} of_mount=$mount_port
    [ "$transport" = rdma ] || of_mount=$port
    mkdir -p "$folder" &&
        mount -t nfs -o "vers=3,proto=$transport,port=$port,mountport=$of_mount,mountproto=tcp,nolock,${2:-noacl}" \
            "$host:/export" "$folder"
}

# What is read next comes from the server: files forget their pages, directories their names.
forget() { sync && echo 3 >/proc/sys/vm/drop_caches; }

# Sizes around those of pages, of a READ, and of words.
sizes="0 1 2 3 4 5 1023 1024 1025 3500 4095 4096 4097 65535 65536 65537 1048575 1048576 1048577 3000001"
copied() {
    local size
    mkdir -p "$work/sizes" "$files/sizes"
    for size in $sizes; do
        head -c "$size" /dev/urandom >"$work/sizes/$size"
        cp "$work/sizes/$size" "$files/sizes/$size" || return 1
    done
}
same() { diff -r "$1" "$2"; }

# A file of 64 MiB; then pieces of odd lengths at odd places, the last across its end.
large_bytes=$((64 << 20))
written_oddly() {
    local at length file
    head -c $large_bytes /dev/urandom >"$work/large" && cp "$work/large" "$files/large" || return 1
    while read -r at length; do
        head -c "$length" /dev/urandom >"$work/piece"
        for file in "$work/large" "$files/large"; do
            dd if="$work/piece" of="$file" bs="$length" seek="$at" oflag=seek_bytes conv=notrunc status=none || return 1
        done
    done <<END
1 1
4095 2
65535 70001
1048577 1048575
20000003 4097
33554431 3000017
$((large_bytes - 3)) 10
END
}
large_is_same() { cmp "$work/large" "$files/large" && rm "$files/large" "$work/large"; }

many=${MANY:-10000}
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
# A repository with a program in C, of two files.
repository() {
    mkdir "$work/repository" && cp -r tests/lab "$work/repository" && cd "$work/repository" &&
        printf 'int twice(int a) { return 2 * a; }\n' >twice.c &&
        printf '#include <stdio.h>\nint twice(int);\nint main(void) { return printf("%%d\\n", twice(21)) < 0; }\n' >main.c &&
        git init -q . && git add . && git -c user.name=x -c user.email=x@localhost commit -q -m all
}
cloned() {
    (repository) && git clone -q --no-local "$work/repository" "$files/clone" && forget &&
        git -C "$files/clone" fsck --strict 2>&1 && [ -z "$(git -C "$files/clone" status --porcelain)" ]
}
# By what the compilers and the linker write, and read of each other, on the mount.
built() (
    cd "$files/clone" && TMPDIR=$files/clone && export TMPDIR &&
        for one in twice main; do cc -c "$one.c" -o "$one.o" || return 1; done &&
        ar rc libtwice.a twice.o && cc main.o -L. -ltwice -o program && forget && [ "$(./program)" = 42 ] &&
        rm program libtwice.a ./*.o
)
empty() { rm -rf "${files:?}"/* && [ "$(df --output=used "$files" | tail -1)" -eq 0 ]; }

# All that a file system is asked for, on what is mounted.
works() {
    check "files of odd sizes are written" copied
    check "what is cached is forgotten" forget
    check "and read again" same "$work/sizes" "$files/sizes"
    check "a file of 64 MiB is written at odd places" written_oddly
    check "what is cached is forgotten" forget
    check "and read again" large_is_same
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
    check "a repository is cloned, and whole" cloned
    check "and built" built
    check "random operations" "$fsx" "$files/fsx" --operations "${OPERATIONS:-5000}" --seed $RANDOM
    check "all of it is taken away again" empty
}

ends() {
    check "the client unmounts it" umount "$files"
    check "the server is asked to end" kill -TERM "$server"
    check "it ends in good order" wait "$server"
}
