#!/usr/bin/env bash
# The Linux client of user-mode Linux works on the NFS server of bench-tool on the host, over TCP and through two mounts.
# The Linux server in the guest shows what is right where the RFC leaves a choice. OPERATIONS is how many the checker makes.
. "$(dirname "$0")/common.sh"
. "$(dirname "$0")/nfs3.sh"
. "$(dirname "$0")/knfsd.sh"
raw=$(dirname "$(realpath "$0")")/nfs3-raw.py
transport=tcp
host=$LAB_PEER
second=/mnt/second
many=10000

# Opens that must not both make the file, through two mounts, most of them within a jiffy: the client makes the same verifier
# for them.
exclusive() { # exclusive FOLDER SAME_FOLDER
    python3 - "$@" <<'END'
import os, sys
both = 0
for number in range(200):
    for folder in sys.argv[1:]:
        try:
            os.close(os.open(f"{folder}/exclusive-{number}", os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600))
            both += folder == sys.argv[2]
        except FileExistsError:
            assert folder == sys.argv[2], folder
sys.exit(f"{both} of 200 files were made twice" if both else 0)
END
}

written_at_random() {
    fio --name=random --filename="$files/fio" --rw=randwrite --bsrange=512-256k --bs_unaligned=1 --size=16m \
        --ioengine=psync --fallocate=none --verify=crc32c --verify_fatal=1 --invalidate=1 --minimal >"$work/fio" &&
        rm "$files/fio"
}

database() { # database STEP
    python3 - "$files/database" "$1" <<'END'
import sqlite3, sys
path, step = sys.argv[1:]
rows = [(number, bytes([number % 251]) * number) for number in range(2000)]
with sqlite3.connect(path) as database:
    if step == "make":
        database.execute("create table data (number integer primary key, octets blob)")
        for first in range(0, 2000, 100):
            with database:
                database.executemany("insert into data values (?, ?)", rows[first : first + 100])
        with database:
            database.execute("delete from data where number % 3 = 0")
    else:
        assert database.execute("pragma integrity_check").fetchall() == [("ok",)]
        found = database.execute("select * from data order by number").fetchall()
        assert found == [row for row in rows if row[0] % 3]
END
}

ended_well() { [ "$(cat "$responder.status" 2>/dev/null)" = 0 ]; }

# The Linux server, with the same two mounts.
mounted_of_linux() {
    mkdir -p "$work/linux" "$work/linux-again"
    local options=vers=3,proto=tcp,port=2049,mountport=20048,mountproto=tcp,nolock,noacl,nosharecache folder
    for folder in linux linux-again; do
        mount -t nfs -o $options "127.0.0.1:$export_path" "$work/$folder" || return
    done
}
answers_alike() {
    python3 "$raw" 127.0.0.1 2049 20048 $export_path >"$work/of-linux" &&
        python3 "$raw" "$host" "$port" "$port" /export >"$work/of-ours" && cat "$work/of-ours" &&
        diff "$work/of-linux" "$work/of-ours"
}

check "the modules of the client are there" modprobe nfsv3
check "the server listens" serve_on_b || exit 1
check "the client mounts it" mounted || exit 1
check "and once more, as another file system" mounted $second noacl,nosharecache
check "no file is made by two exclusive opens" exclusive "$files" $second
check "the Linux server starts" start_knfsd
check "the client mounts it twice" mounted_of_linux
check "no file is made by two exclusive opens there" exclusive "$work/linux" "$work/linux-again"
check "rare calls are answered as by the Linux server" answers_alike
check "the Linux server is left" umount "$work/linux" "$work/linux-again"
check "the second mount ends" umount $second
check "what is there is taken away" empty
check "random writes are read as they were written" written_at_random
check "a database is made" database make
check "what is cached is forgotten" forget
check "and the database is whole" database check
works
check "the client unmounts it" umount "$files"
check "the server is asked to end" signal_responder TERM
check "it ends in good order" eventually ended_well
responder=
