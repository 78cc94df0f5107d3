# shellcheck shell=bash
# Sourced by one-cards.sh and iwarp-cards.sh, which say what is to come of each card of tests/lab/as-card.
# A node with the default profile of the card carries null calls, and 4 KiB, 64 KiB and 1 MiB both ways: with the profile
# as it is, and where explicit RDMA is asked for. Of each kind of card, some cases of the fabric's suite run. With
# RPCRDMA_WHOLE, of each card all of them, and bench-tool; of each kind the engine's tests.
# TIME: the limits of carries are those of the profile, as in one-facade.sh: its server and its client are one process.
. "$(dirname "${BASH_SOURCE[0]}")/common.sh"
as_card=$(dirname "${BASH_SOURCE[0]}")/../as-card

# What it says is shown when it fails, so that no summary in it counts as one of ours.
as() { # as [--keep-name] CARD -- COMMAND...
    "$as_card" "$@" >"$work/said" 2>&1 || { sed 's/^/    /' "$work/said"; return 1; }
}

# Nothing is asked of the card by itself that it has not, and what is lost without windows is said.
carries() { # carries CARD PROFILE DEFAULT EXPLICIT
    as "$1" -- "$PROGRAMS/carries" "rdma:$LAB_IP:0" explicit without_windows=register send_placement_bytes_max=0 || return
    grep -E '^(default|explicit): ' "$work/said" | sed 's/^/    /'
    contains "$work/said" "^profile: $2\$" && contains "$work/said" "^default: $3\$" &&
        contains "$work/said" "^explicit: $4\$" && lacks "$work/said" 'is beyond what' || return
    [[ $3 == *rdma* ]] || contains "$work/said" '^warning: .* has no memory windows'
}

conforms() { # conforms CARD CASES [FILTER...]
    local sign="^$2 cases run,"
    [ $# -le 2 ] || sign='^test result: ok. [1-9]'
    as --keep-name "$1" -- "$PROGRAMS/fabric_verbs" --test-threads 4 --nocapture "${@:3}" && contains "$work/said" "$sign"
}

# Of each kind: the program of the engine's tests with the queues that the card has.
declare -A kinds=([bnxt_re]=engine_verbs [ionic]=engine_own_queues_verbs [mana]=engine_own_queues_verbs [cxgb4]='')

card() { # card CARD PROFILE DEFAULT EXPLICIT CASES: what comes of it, as carries prints it; how many cases run
    check "$1 carries data by its profile $2" carries "$1" "$2" "$3" "$4"
    if [ -n "${RPCRDMA_WHOLE:-}" ]; then
        check "$1: null calls of bench-tool" as "$1" -- "$bench" run --fabric rdma "${patient[@]}" --warmup 0 --count 100
        check "$1: 1 MiB by bench-tool" as "$1" -- "$bench" run --fabric rdma "${patient[@]}" --warmup 0 --op write --size 1MiB --count 5
        [ "$5" -eq 0 ] || check "$1: the fabric's suite, $5 cases" conforms "$1" "$5"
        [ -z "${kinds[$1]:-}" ] || check "$1: the engine's tests" as --keep-name "$1" -- "$PROGRAMS/${kinds[$1]}"
    elif [ -n "${kinds[$1]+is}" ]; then
        check "$1: cases of the fabric's suite" conforms "$1" 0 conformance::remote::rdma_ conformance::windows
    fi
}
