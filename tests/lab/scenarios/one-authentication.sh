#!/usr/bin/env bash
# Host authentication on an RDMA device, between two processes of one guest: whom a server takes,
# and that its line says so.
. "$(dirname "$0")/common.sh"

serve() { # serve ARGUMENT...
    listens "$work/server" "$bench" serve --listen "rdma:$LAB_IP:0" "${patient[@]}" "$@" && server=$started
}

run() { # run ARGUMENT...
    local address
    address=$(sed -n 's/^listening on \([^ ]*\).*/\1/p' "$work/server")
    "$bench" run --connect "$address" "${patient[@]}" --count 500 --warmup 0 "$@" </dev/null
}

refused() { # refused WORDS ARGUMENT...
    local words=$1
    shift
    ! run "$@" >"$work/refused" 2>&1 && contains "$work/refused" "$words"
}

key() { (umask 077; printf 'lab %s\n' "$(printf "$2%.0s" {1..32})" >"$work/$1"); } # key FILE OCTET

check "a key" key right 5a
check "another one under the same name" key wrong 5b
check "a server without keys" serve
check "its line says that it takes anybody" contains "$work/server" 'anybody'
check "it takes a client without keys" run
check "a client with keys refuses it" refused 'offered no authentication' --psk-file "$work/right" --identity client
check "it is asked to end" kill -TERM "$server"
check "it ends in good order" wait "$server"
check "a server with keys" serve --psk-file "$work/right" --identity server
check "its line says whom it takes" contains "$work/server" '--psk-file'
check "it refuses a client without keys" refused 'requires authentication'
check "it refuses a client with another key" refused 'does not verify' --psk-file "$work/wrong" --identity client
check "it takes a client with its key" run --psk-file "$work/right" --identity client --json "$work/report.json"
check "which learns its identity" grep -q '"server_identity": *"server"' "$work/report.json"
check "it is asked to end as well" kill -TERM "$server"
check "and ends in good order" wait "$server"
