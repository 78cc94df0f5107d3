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
# TIME: for how many seconds a condition is waited for, unless the limit is what is tried. It is far longer than anything
# takes in an emulated guest with other work beside. `eventually` fails before, where it can know.
patience_s=300
# TIME: the limits of bench-tool that a scenario is not about, for servers and clients: far longer than a guest stands
# still, with other work beside, and than a device that loses messages takes to repeat them. Soft-RoCE sends again
# without end, so that its silence alone tells of a peer that is gone: that limit is shorter than the wait for it.
patient=(--set connect_timeout_ms=300000 --set call_timeout_ms=300000 --set stall_timeout_ms=300000
    --set keep_alive_silent_ticks_max=120)

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
        eventually test -e "${pid%.pid}.status"
    done
    if [ $failed -gt 0 ] || [ $passed -eq 0 ]; then word=FAILED; fi
    printf 'test result: %s. %d passed; %d failed; 0 ignored\n' "$word" "$passed" "$failed"
    [ $word = ok ] && exit 0
    exit 1
}
trap finish EXIT

# Waits until the command succeeds. A command that returns $too_late says that it cannot any more.
too_late=77
eventually() { # eventually COMMAND...
    local deadline=$((SECONDS + patience_s)) status
    while :; do
        status=0
        "$@" || status=$?
        case $status in
            0) return 0 ;;
            "$too_late")
                printf '    it cannot come any more, because the process that does it has ended: %s\n' "$*"
                return 1
                ;;
        esac
        # TIME: the limit of all waits, and the pause between two looks.
        if [ $SECONDS -ge $deadline ]; then
            printf '    not within %d s: %s\n' $patience_s "$*"
            return 1
        fi
        sleep 0.1
    done
}

# Who may have ended: a process of this guest, by its number, or of another one, by the name of its answer.
has_ended() { # has_ended WHO
    case $1 in
        */*) [ -e "$1.status" ] ;;
        *) ! kill -0 "$1" 2>/dev/null ;;
    esac
}

# For `eventually`: whether the command succeeds. When WHO has ended and it still does not, it is too late.
while_runs() { # while_runs WHO COMMAND...
    local who=$1 status=1 inner=0
    shift
    # In this order: what it did last counts.
    ! has_ended "$who" || status=$too_late
    "$@" || inner=$?
    [ $inner -ne 0 ] || return 0
    [ $inner -ne $too_late ] || status=$too_late
    return $status
}

# Starts a program that writes to FILE, and waits until it says that it listens. Its process is $started.
listens() { # listens FILE COMMAND...
    local file=$1
    shift
    # The new shell empties the file some time later: what the program before has said is not to count.
    rm -f "$file"
    "$@" </dev/null >"$file" 2>&1 &
    started=$!
    eventually while_runs $started contains "$file" '^listening on ' || { cat "$file"; return 1; }
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
# Starts a server on a guest, and waits until it says that it listens.
listens_on() { # listens_on GUEST COMMAND_LINE
    start_on "$1" "$2"
    eventually while_runs "$answer" contains "$answer.output" '^listening on ' || { cat "$answer.output"; return 1; }
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
    check "the responder listens" listens_on b \
        "$ledger serve $address --book $book --connections ${connections:-64} $*"
    responder=$answer
}

signal_responder() { on_b "kill -$1 $(cat "$responder.pid")"; } # signal_responder SIGNAL

kill_responder() {
    signal_responder KILL 2>/dev/null
    eventually test -e "$responder.status"
    responder=
}

# Starts a requester in the background. It makes calls until descriptor 3 is closed, if no option
# says otherwise; what it prints goes to $work/requester.
# shellcheck disable=SC2120 # the options of some scenarios
start_requester() { # start_requester [OPTION...]
    rm -f "$work/end" "$work/requester"
    mkfifo "$work/end"
    "$ledger" call "$address" --log "$work/log" "$@" <"$work/end" >"$work/requester" 2>&1 3>&- &
    requester=$!
    exec 3>"$work/end"
}

# For a requester that connects again. TIME: far more seconds than a server takes to start, or a cable takes to carry again.
reconnects=(--reconnect-within 600)

requester_ends_well() {
    local status=0
    exec 3>&-
    wait "$requester" || status=$?
    # Of calls that failed, there may be many.
    grep -v '^call .* failed' "$work/requester" | sed 's/^/    /'
    return $status
}

# How many lines the requester has printed, so far, that the pattern fits.
printed() { grep -cE "$1" "$work/requester"; } # printed REGEX
has_printed_more() { [ "$(printed "$2")" -gt "$1" ]; } # has_printed_more COUNT REGEX
# Waits until the requester prints more of such lines than it had.
prints_more() { # prints_more COUNT REGEX
    eventually while_runs "$requester" has_printed_more "$@"
}

entries() { on_b "wc -l <$book"; }

# Waits until the responder has executed that many more calls.
executes() { # executes MORE
    local wanted
    wanted=$(($(entries) + $1))
    eventually while_runs "$requester" while_runs "$responder" entries_reach "$wanted"
}
entries_reach() { [ "$(entries)" -ge "$1" ]; }

# No call was executed twice or answered twice, and none was lost without an error.
books_agree() {
    on_b "cp $book /out/b/book" && "$ledger" check --book /out/b/book --log "$work/log"
}
