#!/bin/sh
# Counts instructions under callgrind and holds them to budgets: those of the codec's hot paths, and those of whole
# calls at both ends. The counts do not depend on the machine's load, only on compiler and target.
#
# usage: tests/instruction_counts.sh           counts, and fails where a budget is not kept
#        tests/instruction_counts.sh --build   builds the programs that are counted, and nothing else
#        tests/instruction_counts.sh --write   counts whole calls, and writes the budgets anew
#
# The budgets of whole calls are in tests/instruction_counts.table, and what each function had when they were written
# is in tests/instruction_counts.functions. A count above its budget fails, and so does one below it by more than the
# tolerance, so that what was gained is kept.
#
# Needs valgrind, as `./check` says when it is missing.
set -eu
cd "$(dirname "$0")/.."

codec_budget=100
codec_iterations=1000
# With another compiler than the one of the table a count may be above its budget by so many per cent.
other_rustc_tolerance=5
table=tests/instruction_counts.table
stored=tests/instruction_counts.functions
target_dir=${CARGO_TARGET_DIR:-target}
programs=$target_dir/release/examples
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

build() {
    cargo build --locked --release -p rpcrdma-protocol -p rpcrdma-engine -p bench-tool \
        --example instruction_count --example null_call --example call_forms --example bulk_call --example load_call --example facade_call "$@"
}

# --- The codec ----------------------------------------------------------------------------------

count_codec() {
    profile=$work/codec
    valgrind --quiet --tool=callgrind --callgrind-out-file="$profile" "$programs/instruction_count"

    # Inclusive cost of every measured function, per call.
    counts=$(callgrind_annotate --inclusive=yes --threshold=100 "$profile" | awk -v n="$codec_iterations" '
        match($0, /measured_[a-z0-9_]+/) {
            name = substr($0, RSTART + 9, RLENGTH - 9)
            count = $1; gsub(",", "", count)
            if (!(name in seen)) { seen[name] = 1; printf "%s %.1f\n", name, count / n }
        }' | sort)
    echo "$counts" | awk '{ printf "%-24s %8.1f instructions\n", $1, $2 }'

    # Each measured function must be in the profile: one that was inlined or folded into another measures nothing.
    measured=$(echo "$counts" | grep -c .)
    expected=$(grep -c '^fn measured_' dataplane/protocol/examples/instruction_count.rs)
    if [ "$measured" -ne "$expected" ]; then
        echo "error: instruction_counts: $measured of $expected measured functions are in the profile" >&2
        return 1
    fi

    echo "$counts" | awk -v budget="$codec_budget" '
        $1 == "v2_decode_call_whole" || $1 == "v2_encode_call" { sum += $2 }
        END {
            printf "%-24s %8.1f instructions, budget below %d\n", "decode + encode", sum, budget
            exit !(sum > 0 && sum < budget)
        }' || { echo "error: instruction_counts: decode + encode is over budget" >&2; return 1; }
}

# --- Whole calls --------------------------------------------------------------------------------

# Lines "total INSTRUCTIONS", "libc CALLS", "fn INSTRUCTIONS NAME" and "in INSTRUCTIONS FILE", each for one call. An
# instruction counts where it stands: for the function that it was compiled into, and for the file that it was written
# in. What libc does depends on its release and on the processor, so calls into it count, and its instructions do not.
breakdown() { # breakdown PROFILE PROGRAM CALLS
    awk -v program="/examples/$2" -v calls="$3" -v root="$PWD" '
        # "(ID) NAME" the first time, and "(ID)" from then on.
        function name_of(kind, text,    id) {
            id = text; sub(/\).*/, "", id)
            if (text ~ /\) /) names[kind, id] = substr(text, index(text, ") ") + 2)
            return names[kind, id]
        }
        function is_ours(object) { return substr(object, length(object) - length(program) + 1) == program }
        function short(file) {
            if (file ~ /^\/rustc\//) return "std"
            if (file ~ /\/registry\/src\//) { sub(/^.*\/registry\/src\/[^\/]*\//, "", file); sub(/\/.*/, "", file) }
            if (index(file, root "/") == 1) file = substr(file, length(root) + 2)
            return file
        }
        /^ob=/ { object = name_of("object", substr($0, 4)); next }
        /^fl=/ || /^fi=/ || /^fe=/ { file = name_of("file", substr($0, 4)); next }
        /^cfi=/ || /^cfl=/ { name_of("file", substr($0, 5)); next }
        /^fn=/ { fn = name_of("fn", substr($0, 4)); next }
        /^cob=/ { called = name_of("object", substr($0, 5)); next }
        /^cfn=/ { name_of("fn", substr($0, 5)); next }
        /^calls=/ {
            times = substr($1, 7)
            if ((getline) > 0 && $2 > 0 && called != "" && !is_ours(called) && is_ours(object)) libc += times
            called = ""
            next
        }
        /^[0-9+*-]/ && is_ours(object) { total += $2; in_fn[fn] += $2; in_file[short(file)] += $2 }
        END {
            printf "total %.1f\nlibc %.2f\n", total / calls, libc / calls
            # What is less than 0.2 % of a call explains no change that counts.
            for (name in in_fn) if (in_fn[name] * 500 >= total) printf "fn %.1f %s\n", in_fn[name] / calls, name
            for (name in in_file) if (in_file[name] * 500 >= total) printf "in %.1f %s\n", in_file[name] / calls, name
        }' "$1" | LC_ALL=C sort -k1,1 -k3
}

# Leaves the breakdown in $work/NAME.
count_calls() { # count_calls NAME PROGRAM ARGUMENT...
    name=$1 program=$2
    shift 2
    output=$(SOLO=1 valgrind --quiet --tool=callgrind --callgrind-out-file="$work/profile" \
        --toggle-collect='*iterate_both*' "$programs/$program" "$@")
    calls=$(echo "$output" | sed -n 's/.* \([0-9][0-9]*\) calls$/\1/p')
    [ -n "$calls" ] || { echo "error: instruction_counts: $program does not say how many calls it made: $output" >&2; return 1; }
    breakdown "$work/profile" "$program" "$calls" >"$work/$name"
    grep -q '^total [1-9]' "$work/$name" ||
        { echo "error: instruction_counts: iterate_both is not in the profile of $program" >&2; return 1; }
}

# The functions and files whose instructions changed most.
changes() { # changes NAME
    for kind in fn in; do
        [ $kind = fn ] && echo "    changes since the budget was written, by function that it was compiled into:" ||
            echo "    and by file of the source:"
        { sed -n "s/^$1 $kind /before $kind /p" "$stored" && cat "$work/$1"; } | awk -v kind=$kind '
            $1 == "total" { total = $2 }
            $2 == kind && $1 == "before" { name = $0; sub(/^[^ ]+ [^ ]+ [^ ]+ /, "", name); before[name] = $3; all[name] }
            $1 == kind { name = $0; sub(/^[^ ]+ [^ ]+ /, "", name); now[name] = $2; all[name] }
            END {
                for (name in all) {
                    in_both = (name in before) && (name in now)
                    change = now[name] - before[name]
                    size = change < 0 ? -change : change
                    # One of them may be missing because it was just below the limit.
                    if (size >= 2 && (in_both || size * 250 >= total)) printf "%.1f %+10.1f  %8.1f to %8.1f  %s\n", size, change, before[name], now[name], name
                }
            }' | sort -rn | head -n 6 | sed 's/^[^ ]* /    /'
    done
}

compare_calls() {
    failed=0
    rustc=$(rustc -V)
    written_with=$(sed -n 's/^rustc //p' "$table")
    is_other=0
    if [ "rustc $written_with" != "$rustc" ]; then
        is_other=1
        echo "the budgets were written with rustc $written_with, and this is $rustc: up to $other_rustc_tolerance % more pass"
    fi
    while read -r word name budget libc_budget tolerance command; do
        [ "$word" = budget ] || continue
        # shellcheck disable=SC2086 # a list of words
        count_calls "$name" $command || return
        verdict=$(awk -v budget="$budget" -v libc_budget="$libc_budget" -v tolerance="$tolerance" -v is_other=$is_other \
            -v wide=$other_rustc_tolerance '
            $1 == "total" { total = $2 }
            $1 == "libc" { libc = $2 }
            # A call into libc more or less in one call of a hundred is none.
            function differs(now, before, margin) { return now > before + margin ? 1 : now < before - margin ? -1 : 0 }
            END {
                over = is_other && wide > tolerance ? wide : tolerance
                it_is = differs(total, budget, budget * over / 100)
                libc_is = differs(libc, libc_budget, 0.01 + libc_budget * over / 100)
                verdict = it_is > 0 || libc_is > 0 ? "over" : it_is >= 0 && libc_is >= 0 ? "kept" : is_other ? "less" : "under"
                printf "%s %.1f instructions and %.2f calls into libc, budget %.1f and %.2f: %+.2f %% (tolerance %s %%)\n",
                    verdict, total, libc, budget, libc_budget, 100 * (total / budget - 1), over
            }' "$work/$name")
        printf '%-24s %s\n' "$name" "${verdict#* }"
        case $verdict in
            over*)
                failed=1
                changes "$name"
                echo "error: $name is over its budget; if that is worth it, run tests/instruction_counts.sh --write, and give the reason in the commit"
                ;;
            under*)
                failed=1
                changes "$name"
                echo "error: $name takes less than its budget; lower it, so that the gain is kept: tests/instruction_counts.sh --write"
                ;;
            less*) echo "    less than the budget, with another rustc" ;;
        esac
    done <"$table"
    return $failed
}

# Names, tolerances, commands and comments stay as they are.
write_calls() {
    : >"$work/functions"
    while IFS= read -r line; do
        case $line in
            "budget "*)
                read -r _ name budget libc_budget tolerance command <<END
$line
END
                # shellcheck disable=SC2086 # a list of words
                count_calls "$name" $command || return
                sed -n -E "s/^(fn|in) /$name &/p" "$work/$name" >>"$work/functions"
                budget=$(sed -n 's/^total //p' "$work/$name") libc_budget=$(sed -n 's/^libc //p' "$work/$name")
                line=$(printf 'budget %-14s %8s %6s %4s  %s' "$name" "$budget" "$libc_budget" "$tolerance" "$command")
                echo "$line" >&2
                ;;
            "rustc "*) line=$(rustc -V) ;;
        esac
        printf '%s\n' "$line"
    done <"$table" >"$work/table"
    cp "$work/table" "$table"
    cp "$work/functions" "$stored"
}

is_x86_64() {
    case $(rustc -vV) in *"host: x86_64-"*) ;; *) return 1 ;; esac
}

case "${1-}" in
    --build) build ;;
    --write)
        is_x86_64 || { echo "error: instruction_counts: the budgets are those of x86-64" >&2; exit 2; }
        build --quiet
        write_calls
        ;;
    "")
        build --quiet
        status=0
        count_codec || status=1
        if is_x86_64; then
            compare_calls || status=1
        else
            echo "warning: whole calls are not counted: their budgets are those of x86-64"
        fi
        exit $status
        ;;
    *) echo "usage: tests/instruction_counts.sh [--build | --write]" >&2; exit 2 ;;
esac
