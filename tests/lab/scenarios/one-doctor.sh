#!/usr/bin/env bash
# bench-tool doctor in a guest: what it says of the device is what the programs of rdma-core say of it, and
# the command that it prints for what is wrong mends that. Each thing is made wrong first.
. "$(dirname "$0")/common.sh"

pages=/proc/sys/vm/nr_hugepages
transparent=/sys/kernel/mm/transparent_hugepage/enabled
mtu=/sys/class/net/$LAB_NETDEV/mtu
had=("$(cat $pages)" "$(sed 's/.*\[\(.*\)\].*/\1/' $transparent)" "$(cat "$mtu")")
marks=/sys/kernel/config/rdma_cm/$LAB_DEV

# The guest is the next scenario's as well.
at_end() {
    echo "${had[0]}" >$pages
    echo "${had[1]}" >$transparent
    ip link set dev "$LAB_NETDEV" mtu "${had[2]}"
    [ ! -d "$marks" ] || rmdir "$marks"
}

# The doctor judges a process that may not lock memory at will, as a user's may not.
examined() {
    setpriv --bounding-set -ipc_lock "$bench" doctor >"$work/said" 2>&1
    contains "$work/said" '^clock$'
}
says() { examined && contains "$work/said" "^  $1 +.*$2"; } # says SEVERITY REGEX
says_no_more() { examined && lacks "$work/said" "^  $1 +.*$2"; }

# The command that stands below what was found.
command_for() { sed -nE "/^  $1 +.*$2/,/ what to do: /s/^ +what to do: //p" "$work/said" | head -n 1; }

is_mended() { # is_mended SEVERITY REGEX: it is found, its command is run, and it is found no more
    local command
    check "found: $2" says "$1" "$2" || cat "$work/said"
    command=$(command_for "$1" "$2")
    check "a command for it: ${command:-none}" test -n "$command"
    check "the command succeeds" eval "$command"
    check "gone: $2" says_no_more "$1" "$2" || cat "$work/said"
}

of_device() { ibv_devinfo -v -d "$LAB_DEV" | sed -nE "s/^\s*$1:\s+([0-9]+).*/\1/p" | head -n 1; }

check "queue pairs and their work requests are those of the device" \
    says ok "$LAB_DEV has $(of_device max_qp) queue pairs of $(of_device max_qp_wr) work requests"
check "shared receive queues and windows are as well" \
    contains "$work/said" "$(of_device max_srq) shared receive queues, $(of_device max_mw) memory windows"
check "so is the size of packets" contains "$work/said" \
    "$LAB_DEV port 1 is active, Ethernet, .* with MTU $(cat "$mtu"), $(of_device active_mtu) octets a packet"
check "rdma: addresses are carried by it" contains "$work/said" "rdma:HOST:PORT is carried by verbs: $LAB_DEV is the first device"

echo 0 >$pages
is_mended warning "hugepages: 0 of 2 MiB are free"

echo never >$transparent
is_mended hint "transparent hugepages are off"

ulimit -l 8192
is_mended problem "this process may lock 8 MiB"

ip link set dev "$LAB_NETDEV" mtu 1500
is_mended hint "$LAB_NETDEV has an MTU of 1500 octets"
check "packets are large again" contains "$work/said" "with MTU 4200, 4096 octets a packet"

[ -d /sys/kernel/config/rdma_cm ] || mount -t configfs configfs /sys/kernel/config
check "the marks of connections are shown" mkdir "$marks"
is_mended hint "RDMA-CM marks packets with DSCP 0"
check "they have another mark" contains "$work/said" "RDMA-CM marks packets with DSCP 26"
rmdir "$marks"

# TIME: the limit is for a removal that hangs: nothing of it is left in a process.
check "the device is taken away" timeout $patience_s rdma link delete "$LAB_DEV"
is_mended hint "no RDMA device"
