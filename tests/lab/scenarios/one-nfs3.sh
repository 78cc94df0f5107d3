#!/usr/bin/env bash
# The Linux client mounts the NFS server of bench-tool over TCP, in the same guest, and works on it: what is
# written is read, also after everything cached was forgotten. OPERATIONS is how many the checker makes, MANY how
# many names a directory has.
. "$(dirname "$0")/common.sh"
. "$(dirname "$0")/nfs3.sh"
transport=tcp
host=127.0.0.1
many=${MANY:-2000}

check "the modules of the client are there" modprobe nfsv3
check "the server listens" serve --space 256MiB --max-files 20000 || exit 1
check "the client mounts it" mounted || exit 1
works
ends
