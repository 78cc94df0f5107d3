#!/usr/bin/env bash
# What goes over the wire is captured: version 1 between our requester and the Linux NFS server, and between the Linux
# NFS client and our responder; version 2 between two of ours. It stays in /out/captured, where the host reads it
# (tests/wireshark/check), which an emulated guest would take minutes for. The captures of tests/corpus were made here.
. "$(dirname "$0")/common.sh"
. "$(dirname "$0")/knfsd.sh"

captures=/out/captured
files=/mnt/captured
mkdir -p $captures

capture() { # capture NAME: from now on, all RoCEv2 traffic of this guest
    captured=$captures/$1.pcap
    # The usual buffer of 2 MiB overflows where tcpdump is kept from its processor.
    rm -f "$work/tcpdump"
    tcpdump -i "$LAB_NETDEV" -B 65536 -U -w "$work/capture" udp port 4791 2>"$work/tcpdump" &
    capturing=$!
    eventually while_runs $capturing contains "$work/tcpdump" '^tcpdump: listening' &&
        eventually while_runs $capturing has_counted && others=$(($(received) - $(written)))
}

# tcpdump tells, when it is asked, how many packets it has written, and how many the kernel has for it, written or not:
# "N packets captured, N packets received by filter, ...". Before the filter was there the kernel took others as well.
has_counted() {
    lines=$(wc -l <"$work/tcpdump")
    kill -USR1 $capturing && eventually while_runs $capturing has_lines_beyond "$lines" &&
        tail -n 1 "$work/tcpdump" | grep -q ' packets captured, [0-9]* packets received by filter, '
}
has_lines_beyond() { [ "$(wc -l <"$work/tcpdump")" -gt "$1" ]; }
written() { tail -n 1 "$work/tcpdump" | sed 's/.* \([0-9]*\) packets captured.*/\1/'; }
received() { tail -n 1 "$work/tcpdump" | sed 's/.* \([0-9]*\) packets received.*/\1/'; }
has_all_packets() { has_counted && [ $(($(received) - $(written))) -le "$others" ]; }
# What was sent is with the kernel when the programs have ended that sent it.
end_capture() {
    eventually while_runs $capturing has_all_packets || { cat "$work/tcpdump"; return 1; }
    kill -TERM $capturing && wait $capturing && contains "$work/tcpdump" '^0 packets dropped' &&
        cp "$work/capture" "$captured"
}

# --- Our requester and the Linux server --------------------------------------------------------------

nfs() { # nfs ARGUMENT...
    on_b "$bench nfs --connect rdma:$LAB_IP:20049 ${patient[*]} --export $export_path --mount-port $mount_port --quiet \
        --warmup 0 --protocol v1 --files 1 --file-size 5000 --size 5000 $*"
}

check "the Linux NFS server starts" start_knfsd || exit 1
check "it listens for RDMA" listen_for_rdma
check "a capture begins" capture requester-knfsd
check "writes to the Linux server" nfs --op write --count 2 --verify
check "reads" nfs --op read --count 2 --verify
check "the capture ends" end_capture

# --- The Linux client and our responder --------------------------------------------------------------

serve_nfs3() {
    listens_on b "$bench serve --service nfs3 --listen rdma:$LAB_PEER:$port --mount-listen $LAB_PEER:$mount_port \
        ${patient[*]} --space 64MiB --max-files 1000"
}

mounted() {
    local options=proto=rdma,port=$port,mountproto=tcp,mountport=$mount_port,mountaddr=$LAB_PEER
    mkdir -p $files && mount -t nfs -o "vers=3,$options,nolock,noacl" "$LAB_PEER:/export" $files
}

# Calls and replies that are short, have Read and Write chunks, or are long: the link's target makes a long call, the
# directory a long reply.
worked() (
    cd $files && head -c 6000 /dev/zero | tr '\0' r >data && ln -s "$(printf 'x%.0s' $(seq 4000))" long &&
        mkdir folder && seq -f folder/a-name-that-is-not-short-%.0f 8 | xargs touch && sync &&
        echo 3 >/proc/sys/vm/drop_caches &&
        cat data >/dev/null && readlink long >/dev/null && ls -l folder >/dev/null &&
        rm -r data long folder
)

check "the modules of the client are there" modprobe -a nfsv3 rpcrdma
check "our server listens" serve_nfs3
check "a capture begins" capture client-responder
check "the Linux client mounts it" mounted
check "and works on it" worked
check "and unmounts it" umount $files
check "the capture ends" end_capture

# --- Version 2, between two of ours ------------------------------------------------------------------

# TIME: nothing is sent again because a guest stood still: 17 s pass before an acknowledgement is missed.
patient+=(--set ack_timeout_exponent=22)
serve_own() {
    listens_on b "$bench serve --listen $own ${patient[*]}"
}
own=rdma:$LAB_PEER:$((port + 1))
run() {
    "$bench" run --connect "$own" "${patient[@]}" --warmup 0 --protocol v2 --quiet "$@" </dev/null
}
placed() { # placed PLACEMENT: bulk data both ways
    run --op write --size 5000 --count 1 --placement "$1" && run --op read --size 5000 --count 1 --placement "$1"
}

check "our other server listens" serve_own
check "a capture begins" capture version-2
check "null calls" run --op null --count 2
check "a call and a reply in several Sends" run --op echo --size 5000 --count 1
for placement in send rdma; do check "payloads placed: $placement" placed $placement; done
check "a group of several transmissions" run --op mix --operations 3 --size 3000 --count 1 --placement send
check "the capture ends" end_capture
