# shellcheck shell=bash
# Sourced by tests/lab/lab: boots guests and runs a command in them.
# shellcheck disable=SC2154,SC2034 # here, cache, say, die and find_kernel are the caller's

# Processes and files that must not outlive us.
guest_pids=()
helper_pids=()
scratch=

clean_up() {
    local pid
    for pid in ${guest_pids[@]+"${guest_pids[@]}"} ${helper_pids[@]+"${helper_pids[@]}"}; do
        kill -KILL "$pid" 2>/dev/null || true
    done
    wait 2>/dev/null || true
    [ -z "$scratch" ] || rm -rf "$scratch"
}

# A folder whose name leaves room for a Unix socket's path, which is at most 107 bytes long.
make_scratch() {
    local parent=${TMPDIR:-/tmp}
    [ ${#parent} -le 80 ] || parent=/tmp
    scratch=$(mktemp -d "$parent/lab.XXXXXXXX")
}

all_names=abcde

boot() { # boot NAME MAC NETDEV [OPTION...]: one guest in the background; its process is added to guest_pids
    local more=("${@:4}")
    # The second link is as the first; its addresses, on Ethernet and of the socket, have another number.
    [ -z "$second" ] || more+=(-netdev "$(sed 's/id=n0/id=n1/; s/path=.*/&2/' <<<"$3")"
        -device "virtio-net-pci,netdev=n1,mac=${2%00:0?}01:${2##*:},host_mtu=9000,romfile=")
    # Emulated, a string instruction is a loop over its steps. Without the features for fast byte strings, the kernel
    # and libc step by words. The translated code of the kernel and of large test programs fits 1 GiB.
    local machine=(-accel "tcg,thread=multi,tb-size=1024" -cpu max,-erms,-fsrm)
    [ "$accelerator" = tcg ] || machine=(-accel kvm -cpu host)
    # The guest dies with us even where we are killed and can clean nothing up.
    setpriv --pdeathsig KILL \
        qemu-system-x86_64 "${machine[@]}" -m "$memory" -smp "$cpus" -nodefaults \
        -display none -monitor none -serial "file:$lab/$1.console" -no-reboot \
        -kernel "$kernel/vmlinux" -initrd "$initramfs" \
        -append "$boot_options lab.name=$1 lab.device=$device lab.second=$second lab.mtu=$mtu lab.delay=$delay \
lab.hugepages=$hugepages lab.modules=$kernel/lib/modules" \
        -virtfs local,path=/,mount_tag=host,security_model=none,readonly=on,multidevs=remap \
        -virtfs "local,path=$out,mount_tag=out,security_model=none" \
        ${more[@]+"${more[@]}"} -netdev "$3" -device "virtio-net-pci,netdev=n0,mac=$2,host_mtu=9000,romfile=" \
        </dev/null >"$lab/$1.qemu" 2>&1 &
    guest_pids+=($!)
}

# User-mode Linux is a process of the host, and guest b is the host itself, behind a tap device. Both have separate
# namespaces for the network and for processes, which end with the shell that is the first process: those of the
# kernel outlive it, and a kernel that is the first process cannot abort itself when it panics.
boot_uml() {
    local namespace=(unshare --net --pid --fork --kill-child=KILL)
    [ "$(id -u)" -eq 0 ] || namespace+=(--map-root-user)
    # Its memory is a file in TMPDIR.
    LAB_OUT=$out TMPDIR=$scratch setpriv --pdeathsig KILL "${namespace[@]}" bash -c '
        lab=$1
        ip link set lo up && ip tuntap add dev tap0 mode tap && ip address add 10.9.0.2/24 dev tap0 &&
            ip link set tap0 mtu 9000 up || exit
        if [ -e "$lab/b.cmd" ]; then
            : >"$lab/b.booted"
            : >"$lab/b.up"
            LAB_NAME=b LAB_IP=10.9.0.2 LAB_PEER=10.9.0.1 setsid bash "$lab/b.cmd" >"$lab/b.log" 2>&1 &
        fi
        "${@:2}"
        exit' bash "$lab" \
        "$kernel/vmlinux" "mem=${memory}M" "initrd=$initramfs" "uml_dir=$scratch" loglevel=4 con=null con0=null,fd:1 \
        vec0:transport=tap,ifname=tap0,depth=128,gro=1,mtu=9000 lab.name=a lab.device=none "lab.out=$out" \
        lab.mtu="$mtu" lab.delay=0 lab.hugepages=0 "lab.modules=$kernel/lib/modules" \
        </dev/null >"$lab/a.console" 2>"$lab/a.qemu" &
    guest_pids+=($!)
}

# A panic ends the guest, and the console tells of it; nothing of the mitigations and watchdogs is
# wanted: they cost an emulated guest a lot.
boot_options="console=ttyS0 loglevel=4 panic=-1 oops=panic mitigations=off audit=0 \
apparmor=0 nowatchdog random.trust_cpu=on no_timer_check rcupdate.rcu_expedited=1"

boot_all() {
    if [ "$kernel_name" = uml ]; then
        boot_uml
        return
    fi
    if [ -z "$command_b" ]; then
        boot a 52:54:00:00:00:01 user,id=n0,restrict=on
        return
    fi
    local wire=$scratch/wire name tries hub=()
    if [ "$guests" = 2 ]; then
        boot b 52:54:00:00:00:02 "stream,id=n0,server=on,addr.type=unix,addr.path=$wire.a"
    else
        # A cable from each of the others ends in a hub within the process of b.
        for name in a "${names[@]:2}"; do
            hub+=(-netdev "stream,id=$name,server=on,addr.type=unix,addr.path=$wire.$name"
                -netdev "hubport,id=hub-$name,hubid=0,netdev=$name")
        done
        boot b 52:54:00:00:00:02 hubport,id=n0,hubid=0 "${hub[@]}"
    fi
    for name in "${names[@]:2}" a; do
        # TIME: on a busy host that takes some time, and two minutes are far longer. A guest b that has died is found by
        # `supervise`.
        for ((tries = 0; tries < 2400; tries++)); do
            { [ ! -S "$wire.$name" ] || { [ -n "$second" ] && [ ! -S "$wire.${name}2" ]; }; } && is_alive "${guest_pids[0]}" || break
            sleep 0.05
        done
        boot "$name" "52:54:00:00:00:0$(number_of "$name")" "stream,id=n0,server=off,addr.type=unix,addr.path=$wire.$name"
    done
}

number_of() { # number_of NAME: 1 for a
    local before=${all_names%%"$1"*}
    echo $((${#before} + 1))
}

is_alive() { kill -0 "$1" 2>/dev/null; }

# Milliseconds on a clock that does not jump.
now_ms() {
    local uptime
    read -r uptime _ </proc/uptime
    echo $((10#${uptime/./} * 10))
}

show_console() { # show_console NAME
    say "console of guest $1:"
    tail -n 40 "$lab/$1.qemu" "$lab/$1.console" 2>/dev/null | sed "s/^/$1# /" >&2
}

# TIME: guests boot in ten seconds, and in a minute on a busy host. Then guest a waits six minutes for each of the others. Without these
# limits, a guest that hangs while it boots is ended by --timeout alone, which may be hours.
boot_limit_s=240
up_limit_s() { echo $((boot_limit_s + 360 * (${#names[@]} - 1))); }

have_booted() {
    local name
    for name in "${names[@]}"; do [ -e "$lab/$name.booted" ] || return 1; done
}

# Returns when guest a has powered off (0), time is over (124), a guest died (125), or one did not come up (126).
supervise() {
    local start now deadline boot_deadline up_deadline is_booted="" is_up="" pid
    start=$(now_ms)
    deadline=""
    boot_deadline=$((start + boot_limit_s * 1000))
    up_deadline=$((start + $(up_limit_s) * 1000))
    local pid_a=${guest_pids[-1]}
    while is_alive "$pid_a"; do
        if [ -z "$is_up" ] && [ -e "$lab/a.up" ]; then
            is_up=yes
            deadline=$(($(now_ms) + timeout_s * 1000))
            say "up after $((($(now_ms) - start) / 1000)).$(((($(now_ms) - start) % 1000) / 100)) s"
        fi
        now=$(now_ms)
        if [ -n "$is_up" ]; then
            [ "$now" -lt "$deadline" ] || return 124
        else
            [ -n "$is_booted" ] || ! have_booted || is_booted=yes
            [ -n "$is_booted" ] || [ "$now" -lt "$boot_deadline" ] || return 126
            [ "$now" -lt "$up_deadline" ] || return 126
        fi
        for pid in "${guest_pids[@]}"; do
            is_alive "$pid" || [ -e "$lab/a.rc" ] || return 125
        done
        sleep 0.05
    done
    [ -e "$lab/a.rc" ] || return 125
}

parse_options() {
    while [ $# -gt 0 ]; do
        case $1 in
            --)
                shift
                break
                ;;
            --b | --guests | --device | --second | --kernel | --mtu | --delay | --memory | --cpus | --hugepages | --timeout | --out | --accel)
                [ $# -ge 2 ] || die 2 "$1 needs a value"
                ;;&
            --b) command_b=$2 ;;
            --guests) guests=$2 ;;
            --device) device=$2 ;;
            --second) second=$2 ;;
            --kernel) kernel_name=$2 ;;
            --mtu) mtu=$2 ;;
            --delay) delay=$2 ;;
            --memory) memory=$2 ;;
            --cpus) cpus=$2 ;;
            --hugepages) hugepages=$2 ;;
            --timeout) timeout_s=$2 ;;
            --out) out=$2 ;;
            --accel) accel=$2 ;;
            *) die 2 "there is no option $1; the command stands behind --; see tests/lab/lab --help" ;;
        esac
        shift 2
    done
    [ $# -gt 0 ] || die 2 "there is no command; it stands behind --"
    command_a=$1
    [ $# -eq 1 ] || command_a=$(printf '%q ' "$@")
    local number
    for number in "$mtu" "$memory" "$cpus" "$hugepages" "$timeout_s"; do
        [[ $number =~ ^[0-9]{1,6}$ ]] || die 2 "$number is not a number"
    done
    [[ $guests =~ ^[2-${#all_names}]$ ]] || die 2 "--guests is 2 to ${#all_names}"
    [ -n "$command_b" ] || [ "$guests" = 2 ] || die 2 "--guests needs --b: what the others run"
    [ "$device" = rxe ] || [ "$device" = siw ] || die 2 "--device is rxe or siw"
    [[ $second =~ ^(|rxe|siw)$ ]] || die 2 "--second is rxe or siw"
    [ -z "$second" ] || [ "$guests$kernel_name" = 2stock ] || die 2 "--second is for one or two guests of the stock kernel"
    [[ $kernel_name =~ ^(stock|newest|uml)$ ]] || die 2 "--kernel is stock, newest or uml"
    [ "$kernel_name" != uml ] || [ "$guests" = 2 ] || die 2 "--guests is not for user-mode Linux"
    [ "$kernel_name$device" != newestsiw ] || die 2 "the newest kernel has no software iWARP here"
    [[ $delay =~ ^[0-9.]+(us|ms|s)?$ ]] || die 2 "$delay is not a time such as 50us"
    [ -n "$accel" ] || accel=${LAB_ACCEL:-}
    [ -z "$accel" ] || [ "$accel" = kvm ] || [ "$accel" = tcg ] || die 2 "--accel and \$LAB_ACCEL are kvm or tcg"
}

# Forwards what the command of guest a writes, until the guest has ended and all of it is read.
forward() {
    touch "$lab/a.log"
    tail -n +1 -s 0.1 --pid="${guest_pids[-1]}" -f "$lab/a.log" 2>/dev/null &
    forwarder=$!
    helper_pids+=("$forwarder")
    # The shell is not to report its end.
    disown
}

run() {
    local device=rxe second="" kernel_name=stock mtu=9000 delay=0 memory=2048 cpus=2 hugepages=0 timeout_s=300 out="" accel=""
    local command_a="" command_b="" guests=2 name names=(a)
    parse_options "$@"
    [ -z "$command_b" ] || read -ra names <<<"$(sed 's/./& /g' <<<"${all_names:0:guests}")"
    local release kernel initramfs accelerator
    if [ "$kernel_name" != stock ]; then
        cache=$cache/$kernel_name
        find_kernel || die 2 "the kernel $kernel_name is not ready; do this first: tests/lab/lab setup --kernel $kernel_name"
    else
        find_kernel || die 2 "no kernel is ready; do this first: tests/lab/lab setup"
    fi
    accelerator=${accel:-$accelerator}

    trap clean_up EXIT
    trap 'exit 130' INT
    trap 'exit 143' TERM
    trap 'exit 129' HUP
    make_scratch
    [ -n "$out" ] || out=$scratch/out
    mkdir -p "$out"
    out=$(cd "$out" && pwd)
    local lab=$out/.lab
    rm -rf "$lab"
    mkdir "$lab"
    cp "$here/guest/session" "$lab/session"
    pwd >"$lab/cwd"
    printf '%s\n' "$command_a" >"$lab/a.cmd"
    for name in "${names[@]:1}"; do printf '%s\n' "$command_b" >"$lab/$name.cmd"; done

    local outcome attempt
    for attempt in 1 2 3; do
        boot_all
        forward
        outcome=0
        supervise || outcome=$?
        { [ "$outcome" = 126 ] || is_unmet; } && [ "$attempt" -lt 3 ] || break
        say "a guest does not come up; all are booted again"
        for name in "${names[@]}"; do show_console "$name"; done
        end_guests
    done
    finish "$outcome"
}

# An emulated guest seldom hangs while it boots. If it is another one, guest a gives up, before any test.
is_unmet() { grep -q "another guest cannot be reached" "$lab/a.console" 2>/dev/null; }

# Ends all guests, and forgets what they said.
end_guests() {
    local pid
    for pid in "${guest_pids[@]}"; do
        kill -KILL "$pid" 2>/dev/null || true
        wait "$pid" 2>/dev/null || true
    done
    guest_pids=()
    rm -f "$scratch"/wire.* "$lab"/*.{console,qemu,log,booted,up,rc}
}

finish() { # finish OUTCOME: shows what is left to show, and exits
    local name tries
    # The forwarder ends when it has read the whole file, unless guest a still runs. TIME: that is a moment; on a host
    # that stands still it may be more, and never five minutes.
    for ((tries = 0; tries < 3000; tries++)); do
        is_alive "${guest_pids[-1]}" && [ "$tries" -ge 2 ] && break
        is_alive "$forwarder" || break
        sleep 0.1
    done
    for name in "${names[@]:1}"; do sed "s/^/$name| /" "$lab/$name.log" 2>/dev/null || true; done
    case $1 in
        0) exit "$(cat "$lab/a.rc")" ;;
        124) say "the command did not end within $timeout_s s" ;;
        126) say "a guest did not boot within $boot_limit_s s, or come up within $(up_limit_s) s" ;;
        *) say "a guest died" ;;
    esac
    for name in "${names[@]}"; do show_console "$name"; done
    exit "$1"
}
