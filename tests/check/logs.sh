# shellcheck shell=bash
# shellcheck disable=SC2154 # logs is the caller's: the folder with a log for each stage
# Sourced by ./check: what the logs of its stages say. They are of four kinds: of nextest, of the standard test
# harness (also of scripts that print lines like it), of cargo, and of the lab, which has many programs in one log.

# Tests in a log: "passed failed ignored", by the summaries of the standard test harness ("test result: ... P passed;
# F failed; I ignored") and of nextest ("Summary [..] N tests run: P passed, F failed, S skipped").
counts_of() { # counts_of LOG
    awk '
        function add(word, text) { if (match(text, "[0-9]+ " word)) return substr(text, RSTART) + 0; return 0 }
        /^test result: / { p += add("passed", $0); f += add("failed", $0); i += add("ignored", $0) }
        /^ *Summary \[/ { p += add("passed", $0); f += add("failed", $0) + add("timed out", $0) + add("exec failed", $0) }
        END { print p + 0, f + 0, i + 0 }' "$1"
}

# Lines "SECONDS STAGE TEST", from both kinds of logs; of a guest's scenarios, which are scripts, their whole time.
times_of() { # times_of STAGE
    awk -v stage="$1" '
        $1 ~ /^(PASS|FAIL|TIMEOUT|SIG[A-Z]+|ABORT|LEAK)$/ && match($0, /\[ *[0-9.]+s\]/) {
            time = substr($0, RSTART + 1); name = substr($0, RSTART + RLENGTH + 1)
            sub(/^\[ *[0-9]+\/[0-9]+\] /, "", name); sub(/^\([0-9 ]+\/[0-9 ]+\) /, "", name); sub(/^ +/, "", name)
            print time + 0, stage, name
        }
        /^=== .*, in guest / { program = $2; sub(",", "", program) }
        /^test .* <[0-9.]+s>$/ { time = $NF; gsub(/[<>s]/, "", time); print time, stage, (program ? program " " : "") $2 }
        /^--- (one|iwarp|uml|pair|rails|five)-.*: [0-9]+ s$/ { name = $2; sub(":", "", name); print $3, stage, name }
    ' "$logs/$1.log"
}

# What a log says of its failures: what nextest shows after each, what test programs print between "failures:" and
# the list, and the lines before each test that failed in a guest and before errors of cargo.
failures_of() { # failures_of LOG
    local before=25 after=60 most=300
    awk -v before=$before -v after=$after '
        /^ +(PASS|SLOW|LEAK) +\[/ || /^ *Summary \[/ { showing = 0 }
        /^ +(X?FAIL|TIMEOUT|SIG[A-Z]+|ABORT|LEAK-FAIL) +\[/ { showing = after }
        showing > 0 { print; showing--; last = NR; next }
        /^failures:$/ { listing = 1 }
        /^test result: / { listing = 0 }
        listing { print; last = NR; next }
        { lines[NR % before] = $0 }
        /^test .* \.\.\. FAILED/ || /: exit status [0-9]+$/ || / ran no test$/ || /^error(\[|:)/ {
            if (NR - last >= before) print "..."
            for (i = (NR - before + 1 > last + 1 ? NR - before + 1 : last + 1); i <= NR; i++) print lines[i % before]
            last = NR
        }' "$1" | tail -n $most
}

# The failed tests of a stage, each once, in the form that `./check STAGE --only TEST` takes: of nextest "PROGRAM TEST", of
# the lab "PROGRAM TEST" or the scenario, of the standard harness the test.
failed_tests_of() { # failed_tests_of STAGE
    awk '
        function add(name) { sub(/-newest.*/, "-newest", name); if (name != "" && !(name in seen)) { seen[name]; print name } }
        $1 ~ /^(X?FAIL|TIMEOUT|SIG[A-Z]+|ABORT|LEAK-FAIL)$/ && match($0, /\[ *[0-9.]+s\] /) {
            name = substr($0, RSTART + RLENGTH)
            # Of stress runs, the round comes before the number of the test.
            sub(/^\[ *[0-9]+\/[0-9]+\] /, "", name); sub(/^\( *[0-9]+\/[0-9]+\) /, "", name); sub(/^ +/, "", name)
            add(name)
        }
        /^=== .*, in guest / { program = $2; sub(",", "", program) }
        /^test .* \.\.\. FAILED/ {
            name = substr($0, 6); sub(/ \.\.\. FAILED.*/, "", name); sub(/ - (should panic|compile fail|compile)$/, "", name)
            # What guests captured is read after they have ended.
            if (name ~ /^wireshark: /) name = "pair-captured: "
            # A check of a scenario cannot run without those before it.
            if (name ~ /^(one|iwarp|pair|five)-[^ ]*: /) { sub(/: .*/, "", name); add(name) }
            else add(program == "" ? name : program " " name)
            failed_in = program
        }
        # Ended without a result of a test: by a signal or a time limit.
        /^[^ ]+: exit status [0-9]+$/ || /^[^ ]+ ran no test$/ { name = $1; sub(":", "", name); if (name != failed_in) add(name) }
    ' "$logs/$1.log"
}
