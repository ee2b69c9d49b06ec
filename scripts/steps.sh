# shellcheck shell=bash
# Named steps with their times. Sourced, not run.
#
#   step NAME COMMAND...   runs COMMAND under a heading, notes its time; ends the script if it fails
#   note TEXT              something the closing summary must repeat
#   steps_summary TITLE    prints the table of steps and notes
#
# A script that sources this sets `trap 'steps_summary TITLE' EXIT`, so the table is printed however
# it ends, with the step that failed marked.

step_names=()
step_seconds=()
step_verdicts=()
step_notes=()
steps_started=$SECONDS

step() {
    local name=$1
    shift
    printf '\n==> %s\n' "$name"
    step_names+=("$name")
    step_verdicts+=(FAILED)
    step_seconds+=('')
    local last=$((${#step_names[@]} - 1)) started=$SECONDS status=0
    # Not `if "$@"`: that would switch `set -e` off inside a function that is run as a step.
    set +e
    (
        set -e
        "$@"
    )
    status=$?
    set -e
    step_seconds[last]=$((SECONDS - started))
    if [ "$status" -ne 0 ]; then
        printf '==> %s failed (exit %s)\n' "$name" "$status" >&2
        exit "$status"
    fi
    step_verdicts[last]=ok
}

note() {
    printf '==> NOTE: %s\n' "$1"
    step_notes+=("$1")
}

steps_summary() {
    local status=$? i verdict=passed
    [ "$status" -eq 0 ] || verdict=FAILED
    printf '\n%s: %s in %s s\n' "$1" "$verdict" "$((SECONDS - steps_started))"
    for i in "${!step_names[@]}"; do
        printf '  %-24s %-7s %5s s\n' "${step_names[i]}" "${step_verdicts[i]}" "${step_seconds[i]:-?}"
    done
    for i in "${!step_notes[@]}"; do
        printf '  note: %s\n' "${step_notes[i]}"
    done
}
