# shellcheck shell=bash
# Sourced by tests/lab/lab: what a machine needs before guests can boot.
# shellcheck disable=SC2154,SC2034 # here, cache, say and die are the caller's; release, kernel,
# initramfs and accelerator are for it
#
# In $cache:
#   kernel-RELEASE/               vmlinux, and lib/modules/RELEASE
#   siw-pausing-RELEASE.ko        software iWARP, which Debian does not build, with a pause in its accept
#   initramfs-RELEASE-RECIPE.gz   what a guest starts from
#   accelerator-RELEASE           kvm or tcg
#   ready-RECIPE                  names the RELEASE; written last
#   newest/                       the same for the newest kernel, without siw; and apt's lists of where it is from
#   uml/                          the same for user-mode Linux, a kernel that is a process, without devices
# RECIPE is a digest of the files that made it, so that checkouts of different age share a cache.

# What the lab itself runs with, and what the guests find installed because the host has it.
host_packages=(qemu-system-x86 busybox-static cpio kmod xz-utils make)
guest_packages=(iproute2 iputils-ping rdma-core ibverbs-utils rdmacm-utils ibverbs-providers perftest nfs-kernel-server
    git gcc libc6-dev tcpdump tshark openssh-client dropbear-bin jq)
# What the workloads in user-mode Linux need, too.
uml_packages=(fio python3)

recipe() { cat "$here/setup.sh" "$here/guest/init" | sha256sum | cut -c1-12; }

# Sets release, kernel, initramfs and accelerator, or fails when setup has not been done.
find_kernel() {
    local recipe
    recipe=$(recipe)
    # shellcheck disable=SC2154 # set by the caller, like here
    release=$(cat "$cache/ready-$recipe" 2>/dev/null) || return
    kernel=$cache/kernel-$release
    initramfs=$cache/initramfs-$release-$recipe.gz
    accelerator=$(cat "$cache/accelerator-$release")
}

missing_packages() { # missing_packages PACKAGE...
    local package
    for package in "$@"; do
        dpkg-query -W -f='${db:Status-Status}\n' "$package" 2>/dev/null | grep -qx installed ||
            printf '%s ' "$package"
    done
}

# One at a time on the machine: ./check takes the same lock.
apt_get() { flock /var/lock/rpcrdma-apt apt-get "$@"; }

# Where kernels come from, as options of apt: none for the distribution that the machine has.
apt_source=()

# The newest kernel is that of Debian's development distribution. Lists of it are kept apart from the machine's.
choose_newest_kernel() {
    local archive
    archive=$(apt-get indextargets --format '$(REPO_URI)' 'Created-By: Packages' | grep -m 1 '/debian/*$') ||
        archive=http://deb.debian.org/debian
    cache=$cache/newest
    mkdir -p "$cache/lists/partial"
    echo "deb $archive sid main" >"$cache/sources.list"
    apt_source=(-o "Dir::Etc::SourceList=$cache/sources.list" -o Dir::Etc::SourceParts=/dev/null
        -o "Dir::State::Lists=$cache/lists" -o Dir::Cache::pkgcache= -o Dir::Cache::srcpkgcache=
        -o APT::Update::Error-Mode=any)
    lists_are_fresh=
}

# The package lists are fetched at most once, and only where something has to be fetched.
lists_are_fresh=
refresh_lists() {
    [ -z "$lists_are_fresh" ] || return 0
    lists_are_fresh=yes
    [ "$(id -u)" -eq 0 ] || [ ${#apt_source[@]} -gt 0 ] || return 0
    say "fetching the package lists"
    apt_get "${apt_source[@]}" update -qq
}

install_packages() { # install_packages PACKAGE...
    local missing
    missing=$(missing_packages "$@")
    [ -n "$missing" ] || return 0
    [ "$(id -u)" -eq 0 ] ||
        die 1 "packages are missing; as root: apt-get install --no-install-recommends $missing"
    refresh_lists || die 1 "the package lists could not be fetched: is there a network?"
    say "installing $missing"
    # shellcheck disable=SC2086 # a list of words
    DEBIAN_FRONTEND=noninteractive apt_get install -y -qq --no-install-recommends $missing \
        >"$cache/apt.log" 2>&1 || die 1 "apt-get failed: $(tail -n 5 "$cache/apt.log")"
    missing=$(missing_packages "$@")
    [ -z "$missing" ] || die 1 "apt-get succeeded, and still these are missing: $missing"
}

depends() { apt-cache "${apt_source[@]}" depends "$1" 2>/dev/null; }

# The kernel package that Debian's metapackage stands for today.
kernel_package() { [ "$kernel_name" != uml ] || { echo user-mode-linux; return; }; depends linux-image-amd64 | awk '/Depends: linux-image/ { print $2; exit }'; }

# Newer ones have the kernel, its modules and lists of them in packages beside it.
kernel_parts() { depends "$1" | awk '/Depends: linux-(base|binary|modules)-[0-9]/ { print $2 }'; }

download() { # download FOLDER PACKAGE...: leaves their .deb there
    [ -n "$2" ] &&
        (cd "$1" && shift && apt-get "${apt_source[@]}" -o APT::Sandbox::User=root download -qq "$@") >"$cache/apt.log" 2>&1
}

download_kernel() { # download_kernel FOLDER
    local package
    package=$(kernel_package)
    # shellcheck disable=SC2046 # a list of words
    download "$1" "$package" $(kernel_parts "$package")
}

# Sets release, and leaves kernel-RELEASE in the cache.
unpack_kernel() {
    local work=$cache/new package folder image
    rm -rf "$work"
    mkdir "$work"
    say "downloading Debian's kernel"
    # Lists that are out of date name a version that the mirror no longer has.
    if ! download_kernel "$work"; then
        refresh_lists || die 1 "the package lists could not be fetched: is there a network?"
        download_kernel "$work" || die 1 "no kernel package could be downloaded: $(tail -n 3 "$cache/apt.log")"
    fi
    for package in "$work"/*.deb; do dpkg -x "$package" "$work/package"; done
    mkdir -p "$work/kernel/lib"
    # Newer ones have all under /usr, the kernel beside its modules, and modules that are compressed, which busybox
    # does not load.
    for folder in lib usr/lib usr/lib/uml; do
        [ ! -d "$work/package/$folder/modules" ] || mv "$work/package/$folder/modules" "$work/kernel/lib/"
    done
    release=$(basename "$work"/kernel/lib/modules/*)
    find "$work/kernel/lib" -name '*.ko.xz' -exec xz -d {} +
    depmod -b "$work/kernel" "$release"
    image=$work/package/boot/vmlinuz-$release
    [ -e "$image" ] || image=$work/kernel/lib/modules/$release/vmlinuz
    if [ "$kernel_name" = uml ]; then
        cp "$work/package/usr/bin/linux.uml" "$work/kernel/vmlinux"
    else
        extract_vmlinux "$image" "$work/kernel/vmlinux"
    fi
    # A kernel of the same release is the same kernel, and guests may be using it.
    [ -d "$cache/kernel-$release" ] || mv "$work/kernel" "$cache/kernel-$release"
    rm -rf "$work"
}

# Sets release to the newest kernel in the cache, for an initramfs of another recipe.
find_unpacked_kernel() {
    release=$(cd "$cache" && printf '%s\n' kernel-*/vmlinux | sort -V | tail -n 1)
    release=${release#kernel-} release=${release%/vmlinux}
    [ "$release" != '*' ]
}

# Unpacks the kernel that a boot image carries, which takes an emulated guest seconds. Where the
# image is not what we expect it is used as it is: QEMU boots either.
extract_vmlinux() { # extract_vmlinux IMAGE OUTPUT
    local offset
    offset=$(LC_ALL=C grep -aobP -m1 '\xfd7zXZ\x00' "$1" | head -n 1 | cut -d: -f1) || true
    if [ -n "$offset" ]; then
        # xz complains of the bytes that follow the compressed kernel.
        tail -c +"$((offset + 1))" "$1" | xz -dc --single-stream >"$2" 2>/dev/null || true
    fi
    [ "$(head -c 4 "$2" 2>/dev/null | tail -c 3)" = ELF ] || cp "$1" "$2"
}

# Whether the headers of the unpacked kernel can be had: a mirror keeps those of the newest kernels alone.
has_headers() {
    apt-cache show "linux-headers-$release" >/dev/null 2>&1 ||
        { refresh_lists && apt-cache show "linux-headers-$release" >/dev/null 2>&1; }
}

# Debian leaves software iWARP out of its kernel, and has the source: siw-pausing-RELEASE.ko is built of it, in seconds.
# The module gets a parameter that Linux does not have: accept_pause_ms, which is 0, makes it wait between two steps of an
# accept. What arrives between them is not read, which scenarios/iwarp-bench.sh tries.
build_siw() {
    local work=$cache/new-siw source=drivers/infiniband/sw/siw version
    [ ! -e "$cache/siw-pausing-$release.ko" ] || return 0
    say "building software iWARP for kernel $release"
    install_packages gcc make "linux-headers-$release"
    # 6.1.0-56-amd64 is of linux-source-6.1.
    version=$(sed -E 's/^([0-9]+\.[0-9]+).*/\1/' <<<"$release")
    rm -rf "$work"
    mkdir "$work"
    download "$work" "linux-source-$version" ||
        die 1 "the source of the kernel could not be downloaded: $(tail -n 3 "$cache/apt.log")"
    # Of the source, which is large, nothing else is unpacked.
    dpkg --fsys-tarfile "$work"/linux-source-*.deb | tar -xO --wildcards './usr/src/linux-source-*.tar.xz' |
        tar -xJ -C "$work" --strip-components=1 --wildcards "linux-source-$version/$source/*" ||
        die 1 "the source of the kernel has no $source"
    sed -i -e '/^#include "siw_cm.h"/a #include <linux/delay.h>\nstatic uint accept_pause_ms;' \
        -e '/^#include "siw_cm.h"/a module_param(accept_pause_ms, uint, 0644);' \
        -e '/^\tif (wait_for_peer_rts) {/i \\tif (accept_pause_ms)\n\t\tmsleep(accept_pause_ms);' "$work/$source/siw_cm.c"
    [ "$(grep -c accept_pause_ms "$work/$source/siw_cm.c")" = 4 ] ||
        die 1 "the source of software iWARP has changed: accept_pause_ms has no place in siw_cm.c"
    make -C "/lib/modules/$release/build" M="$work/$source" CONFIG_RDMA_SIW=m modules >"$cache/siw.log" 2>&1 ||
        die 1 "software iWARP could not be built: $(tail -n 5 "$cache/siw.log")"
    strip --strip-debug -o "$work/siw.ko" "$work/$source/siw.ko"
    mv "$work/siw.ko" "$cache/siw-pausing-$release.ko"
    rm -rf "$work"
}

# The modules that carry NAME..., in the order in which they must be loaded.
modules_of() { # modules_of NAME...
    local name
    for name in "$@"; do
        modprobe -d "$cache/kernel-$release" -S "$release" --show-depends "$name"
    done | awk '$1 == "insmod" && !seen[$2]++ { print $2 }'
}

modules_of_device() { # modules_of_device rxe|siw
    if [ "$1" = rxe ]; then
        modules_of rdma_rxe
    else
        # It looks for the checksum as it is loaded, and names no module for it.
        modules_of iw_cm crc32c_generic libcrc32c
        echo "$cache/siw-pausing-$release.ko"
    fi
}

build_initramfs() { # build_initramfs OUTPUT
    local root=$cache/initramfs order=100 module device wanted=(overlay) devices=()
    declare -A common=()
    if [ "$kernel_name" != uml ]; then
        wanted=(virtio_pci 9p 9pnet_virtio overlay virtio_net ib_uverbs rdma_ucm) devices=(rxe siw)
    fi
    rm -rf "$root"
    mkdir -p "$root"/{bin,modules,proc,sys,dev,low,layer,new}
    cp /bin/busybox "$root/bin/busybox"
    cp "$here/guest/init" "$root/init"
    chmod 755 "$root/init"
    # The number in a name keeps the order in which the modules must be loaded. Those of the two devices stand
    # apart: a guest has one of them. ib_uverbs comes before rdma_cm: modules let go of a device in the reverse order,
    # and ib_uverbs waits until processes have left soft-RoCE, of whose removal only rdma_cm tells them.
    for module in $(modules_of "${wanted[@]}"); do
        common[$module]=yes
        cp "$module" "$root/modules/$order-$(basename "$module")"
        order=$((order + 1))
    done
    for device in ${devices[@]+"${devices[@]}"}; do
        [ $device = rxe ] || [ -e "$cache/siw-pausing-$release.ko" ] || continue
        mkdir "$root/modules/$device"
        for module in $(modules_of_device $device); do
            [ -z "${common[$module]:-}" ] || continue
            cp "$module" "$root/modules/$device/$order-$(basename "$module")"
            order=$((order + 1))
        done
    done
    (cd "$root" && find . | cpio -o -H newc --quiet) | gzip -1 >"$1"
    rm -rf "$root"
}

# /dev/kvm may be there and yet not run an ordinary kernel (inside some virtual machines), so it is
# tried, where the processor says that it virtualizes.
choose_accelerator() { # choose_accelerator INITRAMFS
    if [ "$kernel_name" = uml ]; then
        echo none
    elif [ -w /dev/kvm ] && grep -qwE 'vmx|svm' /proc/cpuinfo &&
        timeout --kill-after=5 30 qemu-system-x86_64 -accel kvm -cpu host -m 512 -display none \
            -monitor none -serial stdio -no-reboot -kernel "$cache/kernel-$release/vmlinux" \
            -initrd "$1" -append "console=ttyS0 panic=-1 lab.probe" </dev/null 2>/dev/null |
        grep -q lab-probe-ok; then
        echo kvm
    else
        echo tcg
    fi
}

have_debian() {
    command -v apt-get >/dev/null && command -v dpkg >/dev/null &&
        [ "$(dpkg --print-architecture)" = amd64 ]
}

setup() { # setup [newest|uml]
    local release kernel initramfs accelerator recipe newest="" kernel_name=${1:-stock}
    have_debian || die 1 "setup knows only Debian on x86-64; tests/lab/README.md says what else would do"
    mkdir -p "$cache" || die 1 "$cache cannot be made; set LAB_CACHE to a folder that can"
    recipe=$(recipe)
    # Of two setups at once the second waits, and then finds everything done.
    exec 9>"$cache/lock"
    flock 9
    install_packages "${host_packages[@]}" "${guest_packages[@]}" "${uml_packages[@]}"
    if [ "$kernel_name" = uml ]; then
        cache=$cache/uml
        mkdir -p "$cache"
    elif [ "$kernel_name" = newest ]; then
        choose_newest_kernel
        # Which one that is is asked each time.
        refresh_lists || die 1 "the package lists of the newest kernel could not be fetched: is there a network?"
        newest=$(kernel_package)
        newest=${newest#linux-image-}
        [ -n "$newest" ] || die 1 "the package lists name no newest kernel"
    fi
    if ! find_kernel || [ "${newest:-$release}" != "$release" ]; then
        prepare_kernel "$newest"
        printf '%s\n' "$release" >"$cache/ready-$recipe"
        find_kernel
    fi
    exec 9>&-
    if [ "$kernel_name" = uml ]; then
        say "ready: user-mode Linux $release, in $cache"
    else
        say "ready: kernel $release, accelerator $accelerator, in $cache"
    fi
}

# Sets release: to that of the newest kernel if it is given, which has no software iWARP.
prepare_kernel() { # prepare_kernel NEWEST
    if [ -n "$1" ]; then
        release=$1
        [ -e "$cache/kernel-$release/vmlinux" ] || unpack_kernel
        [ "$release" = "$1" ] || die 1 "the package of kernel $1 holds $release"
    elif [ "$kernel_name" = uml ]; then
        find_unpacked_kernel || unpack_kernel
    else
        find_unpacked_kernel || unpack_kernel
        [ -e "$cache/siw-pausing-$release.ko" ] || has_headers || unpack_kernel
        build_siw
    fi
    build_initramfs "$cache/initramfs-$release-$recipe.gz"
    choose_accelerator "$cache/initramfs-$release-$recipe.gz" >"$cache/accelerator-$release"
}
