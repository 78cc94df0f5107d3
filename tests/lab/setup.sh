# shellcheck shell=bash
# Sourced by tests/lab/lab: what a machine needs before guests can boot.
# shellcheck disable=SC2154,SC2034 # here, cache, say and die are the caller's; release, kernel,
# initramfs and accelerator are for it
#
# In $cache:
#   kernel-RELEASE/               vmlinux, and lib/modules/RELEASE
#   initramfs-RELEASE-RECIPE.gz   what a guest starts from
#   accelerator-RELEASE           kvm or tcg
#   ready-RECIPE                  names the RELEASE; written last
# RECIPE is a digest of the files that made it, so that checkouts of different age share a cache.

# What the lab itself runs with, and what the guests find installed because the host has it.
host_packages=(qemu-system-x86 busybox-static cpio kmod xz-utils)
guest_packages=(iproute2 iputils-ping rdma-core ibverbs-utils rdmacm-utils ibverbs-providers perftest nfs-kernel-server
    git gcc libc6-dev tcpdump tshark)

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

missing_packages() {
    local package
    for package in "${host_packages[@]}" "${guest_packages[@]}"; do
        dpkg-query -W -f='${db:Status-Status}\n' "$package" 2>/dev/null | grep -qx installed ||
            printf '%s ' "$package"
    done
}

# One at a time on the machine: ./check takes the same lock.
apt_get() { flock /var/lock/rpcrdma-apt apt-get "$@"; }

# The package lists are fetched at most once, and only where something has to be fetched.
lists_are_fresh=
refresh_lists() {
    [ -z "$lists_are_fresh" ] || return 0
    lists_are_fresh=yes
    [ "$(id -u)" -eq 0 ] || return 0
    say "fetching the package lists"
    apt_get update -qq
}

install_packages() {
    local missing
    missing=$(missing_packages)
    [ -n "$missing" ] || return 0
    [ "$(id -u)" -eq 0 ] ||
        die 1 "packages are missing; as root: apt-get install --no-install-recommends $missing"
    refresh_lists || die 1 "the package lists could not be fetched: is there a network?"
    say "installing $missing"
    # shellcheck disable=SC2086 # a list of words
    DEBIAN_FRONTEND=noninteractive apt_get install -y -qq --no-install-recommends $missing \
        >"$cache/apt.log" 2>&1 || die 1 "apt-get failed: $(tail -n 5 "$cache/apt.log")"
    missing=$(missing_packages)
    [ -z "$missing" ] || die 1 "apt-get succeeded, and still these are missing: $missing"
}

# The kernel package that Debian's metapackage stands for today.
kernel_package() {
    apt-cache depends linux-image-amd64 2>/dev/null | awk '/Depends: linux-image/ { print $2; exit }'
}

download_kernel() { # download_kernel FOLDER: leaves one .deb there
    local package
    package=$(kernel_package)
    [ -n "$package" ] &&
        (cd "$1" && apt-get -o APT::Sandbox::User=root download -qq "$package") >"$cache/apt.log" 2>&1
}

# Sets release, and leaves kernel-RELEASE in the cache.
unpack_kernel() {
    local work=$cache/new
    rm -rf "$work"
    mkdir "$work"
    say "downloading Debian's kernel"
    # Lists that are out of date name a version that the mirror no longer has.
    if ! download_kernel "$work"; then
        refresh_lists || die 1 "the package lists could not be fetched: is there a network?"
        download_kernel "$work" ||
            die 1 "no kernel package could be downloaded: $(tail -n 3 "$cache/apt.log")"
    fi
    dpkg -x "$work"/linux-image-*.deb "$work/package"
    release=$(basename "$work"/package/lib/modules/*)
    mkdir -p "$work/kernel/lib"
    mv "$work/package/lib/modules" "$work/kernel/lib/"
    depmod -b "$work/kernel" "$release"
    extract_vmlinux "$work/package/boot/vmlinuz-$release" "$work/kernel/vmlinux"
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

build_initramfs() { # build_initramfs OUTPUT
    local root=$cache/initramfs order=100 module
    rm -rf "$root"
    mkdir -p "$root"/{bin,modules,proc,sys,dev,low,layer,new}
    cp /bin/busybox "$root/bin/busybox"
    cp "$here/guest/init" "$root/init"
    chmod 755 "$root/init"
    # The number in a name keeps the order in which the modules must be loaded.
    for module in $(for name in virtio_pci 9p 9pnet_virtio overlay virtio_net rdma_rxe rdma_ucm ib_uverbs; do
        modprobe -d "$cache/kernel-$release" -S "$release" --show-depends "$name"
    done | awk '$1 == "insmod" && !seen[$2]++ { print $2 }'); do
        cp "$module" "$root/modules/$order-$(basename "$module")"
        order=$((order + 1))
    done
    (cd "$root" && find . | cpio -o -H newc --quiet) | gzip -1 >"$1"
    rm -rf "$root"
}

# /dev/kvm may be there and yet not run an ordinary kernel (inside some virtual machines), so it is
# tried, where the processor says that it virtualizes.
choose_accelerator() { # choose_accelerator INITRAMFS
    if [ -w /dev/kvm ] && grep -qwE 'vmx|svm' /proc/cpuinfo &&
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

setup() {
    local release kernel initramfs accelerator recipe
    have_debian || die 1 "setup knows only Debian on x86-64; tests/lab/README.md says what else would do"
    mkdir -p "$cache" || die 1 "$cache cannot be made; set LAB_CACHE to a folder that can"
    recipe=$(recipe)
    # Of two setups at once the second waits, and then finds everything done.
    exec 9>"$cache/lock"
    flock 9
    install_packages
    if ! find_kernel; then
        find_unpacked_kernel || unpack_kernel
        build_initramfs "$cache/initramfs-$release-$recipe.gz"
        choose_accelerator "$cache/initramfs-$release-$recipe.gz" >"$cache/accelerator-$release"
        printf '%s\n' "$release" >"$cache/ready-$recipe"
        find_kernel
    fi
    exec 9>&-
    say "ready: kernel $release, accelerator $accelerator, in $cache"
}
