# shellcheck shell=bash
# shellcheck disable=SC2034 # some of what is set here is for the scenarios alone
# Sourced by every scenario: a script that runs in a lone guest (one-*), or in guest a of two
# (pair-*) or five (five-*), from top to bottom. `check` tells of each thing that must hold, in the words of a test;
# the last line is the summary that ./check counts.
set -u

scenario=${SCENARIO:-$(basename "$0" .sh)}
passed=0
failed=0
work=$(mktemp -d /tmp/scenario.XXXXXX)
# Addresses of earlier scenarios are not used again.
port=$((20000 + RANDOM % 10000))

# PROGRAMS, set by tests/lab/suites, is the folder of copies of what was built on the host.
ledger=$PROGRAMS/ledger
bench=$PROGRAMS/bench-tool
# A connect has time to repeat its messages more than once: an emulated device under load loses some.
patient=(--set connect_timeout_ms=60000)

check() { # check NAME COMMAND...: something that must hold: the command succeeds
    local name=$1 status
    shift
    "$@" </dev/null
    status=$?
    if [ $status -eq 0 ]; then
        passed=$((passed + 1))
        printf 'test %s: %s ... ok\n' "$scenario" "$name"
    else
        failed=$((failed + 1))
        printf 'test %s: %s ... FAILED (%s: exit status %d)\n' "$scenario" "$name" "$*" "$status"
    fi
    return $status
}

# Whatever has become of the scenario, what it started ends, and its result is told. What `at_end` is for
# the scenario, if it has it, ends what is no job: the guest is the next scenario's as well.
finish() {
    local status=$? word=ok pid
    # A script that ended in the middle, by an unset variable say, has not tried all.
    if [ $status -ne 0 ] && [ $failed -eq 0 ]; then
        failed=1
        printf 'test %s: it ends early ... FAILED (exit status %d)\n' "$scenario" "$status"
    fi
    for pid in $(jobs -p); do kill -KILL "$pid" 2>/dev/null; done
    ! declare -F at_end >/dev/null || at_end
    [ -z "${responder:-}" ] || kill_responder
    # And what still runs in the other guests: they are the next scenario's too.
    for pid in /out/?/"$scenario"-*.pid; do
        [ -e "$pid" ] && [ ! -e "${pid%.pid}.status" ] || continue
        ask "kill -KILL $(cat "$pid")" "$(basename "${pid%/*}")"
        within 10 test -e "${pid%.pid}.status"
    done
    if [ $failed -gt 0 ] || [ $passed -eq 0 ]; then word=FAILED; fi
    printf 'test result: %s. %d passed; %d failed; 0 ignored\n' "$word" "$passed" "$failed"
    [ $word = ok ] && exit 0
    exit 1
}
trap finish EXIT

# Waits until the command succeeds, at most so long.
within() { # within SECONDS COMMAND...
    local deadline=$((SECONDS + $1))
    shift
    until "$@"; do
        [ $SECONDS -lt $deadline ] || return 1
        sleep 0.1
    done
}

# The metrics of a load or a server at HOST:PORT.
scrape() { # scrape HOST:PORT
    exec 4<>"/dev/tcp/${1/://}" || return
    printf 'GET /metrics HTTP/1.0\r\n\r\n' >&4
    cat <&4
    exec 4>&-
}

# Whether a run at whose metrics this is has made more calls.
has_made() { # has_made HOST:PORT MORE_THAN
    local made
    made=$(scrape "$1" 2>/dev/null | sed -n 's/^rpcrdma_load_calls_total{outcome="completed"} //p')
    [ "${made:-0}" -gt "$2" ] && calls_made=$made
}

contains() { grep -qE -- "$2" "$1" 2>/dev/null; } # contains FILE REGEX
lacks() { [ -r "$1" ] && ! contains "$@"; }

# --- The other guests ---------------------------------------------------------------------------

# Names what a guest is asked, and the files of its answer. Also in a subshell no name comes twice.
ask() { # ask SCRIPT [GUEST]
    answer=/out/${2:-b}/$scenario-$EPOCHREALTIME-$BASHPID
    printf '%s\n' "$1" >"$answer.new"
    mv "$answer.new" "$answer.request"
}

# Has a command line run in guest b (by guest/agent), without waiting for its end. `answer` is then
# what the names of its files begin with: .output, .status, and .pid.
start_on_b() { start_on b "$1"; } # start_on_b COMMAND_LINE
start_on() { # start_on GUEST COMMAND_LINE
    ask "echo \$\$ >\"\${0%.*}.pid\"; exec $2" "$1"
}

# Runs a command line in guest b, shows its output, and returns its exit status.
on_b() { on b "$1"; } # on_b COMMAND_LINE
on() { # on GUEST COMMAND_LINE
    local answer
    ask "$2" "$1"
    until [ -e "$answer.status" ]; do sleep 0.05; done
    cat "$answer.output"
    return "$(cat "$answer.status")"
}

# The cable is cut between the guests: neither sees its own link go down, and nothing comes through.
cut_cable() {
    local cut="tc qdisc add dev \$LAB_NETDEV root netem loss 100%"
    on_b "$cut" && eval "$cut"
}

mend_cable() {
    local mend="tc qdisc del dev \$LAB_NETDEV root"
    on_b "$mend" && eval "$mend"
}

# --- The ledger (tests/src/bin/ledger): a responder in guest b, a requester here -----------------

address=rdma:$LAB_PEER:$port
# In memory of guest b, where it outlives the responder; it is fetched at the end.
book=/dev/shm/book-$scenario

start_responder() { # start_responder [OPTION...]
    start_on_b "$ledger serve $address --book $book --connections ${connections:-64} $*"
    responder=$answer
    check "the responder listens" within 60 contains "$responder.output" '^listening on ' ||
        cat "$responder.output"
}

signal_responder() { on_b "kill -$1 $(cat "$responder.pid")"; } # signal_responder SIGNAL

kill_responder() {
    signal_responder KILL 2>/dev/null
    within 60 test -e "$responder.status"
    responder=
}

# Starts a requester in the background. It makes calls until descriptor 3 is closed, if no option
# says otherwise; what it prints goes to $work/requester.
# shellcheck disable=SC2120 # the options of some scenarios
start_requester() { # start_requester [OPTION...]
    local connect=(--connect-timeout-ms 20000)
    [[ "$*" != *--connect-timeout-ms* ]] || connect=()
    rm -f "$work/end"
    mkfifo "$work/end"
    "$ledger" call "$address" --log "$work/log" "${connect[@]}" "$@" <"$work/end" >"$work/requester" 2>&1 3>&- &
    requester=$!
    exec 3>"$work/end"
}

requester_ends_well() {
    local status=0
    exec 3>&-
    wait "$requester" || status=$?
    sed 's/^/    /' "$work/requester"
    return $status
}

entries() { on_b "wc -l <$book"; }

# Waits until the responder has executed that many more calls.
executes() { # executes MORE
    local wanted
    wanted=$(($(entries) + $1))
    within 60 entries_reach "$wanted"
}
entries_reach() { [ "$(entries)" -ge "$1" ]; }

# No call was executed twice or answered twice, and none was lost without an error.
books_agree() {
    on_b "cp $book /out/b/book" && "$ledger" check --book /out/b/book --log "$work/log"
}
