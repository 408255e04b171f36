#!/usr/bin/env bash
# The step of action.yml: `nsysddp check` with what the inputs say, its answers as annotations, outputs and a summary.
set -uo pipefail

# Every line of a text as one word each; with patterns, the files that they stand for, or the line where there are none.
words_of() {
  local line
  while IFS= read -r line; do
    line=${line#"${line%%[![:space:]]*}"}
    line=${line%"${line##*[![:space:]]}"}
    if [ -n "$line" ]; then words+=("$line"); fi
  done <<< "$1"
}
paths_of() {
  local before=("${words[@]+"${words[@]}"}") line
  words=()
  words_of "$1"
  local lines=("${words[@]+"${words[@]}"}")
  words=("${before[@]+"${before[@]}"}")
  for line in "${lines[@]+"${lines[@]}"}"; do
    local IFS=
    # shellcheck disable=SC2206 # the pattern is to be expanded; without IFS spaces in names do not matter
    words+=($line)
  done
}

case ${UNDECIDABLE:=fail} in
  fail | pass) ;;
  *)
    echo "::error title=nsysddp check::undecidable is '$UNDECIDABLE', not fail or pass"
    exit 2
    ;;
esac

words=()
paths_of "${REPORTS:-}"
if [ -n "${CLAIMS:-}" ]; then words+=(--claims "$CLAIMS"); fi
if [ -n "${AGAINST:-}" ]; then words+=(--against "$AGAINST"); fi
if [ -n "${DB:-}" ]; then words+=(--db "$DB"); fi
if [ -n "${JUNIT:-}" ]; then words+=(--junit "$JUNIT"); fi
claims=("${words[@]+"${words[@]}"}")
words=()
words_of "${CLAIM:-}"
for claim in "${words[@]+"${words[@]}"}"; do claims+=(--claim "$claim"); done
words=("${claims[@]}")
words_of "${OPTIONS:-}"
if [ -n "${BASE:-}" ]; then
  words+=(--against)
  paths_of "$BASE"
fi

if [ -n "${JUNIT:-}" ]; then rm -f -- "$JUNIT"; fi
errors=$(mktemp)
trap 'rm -f -- "$errors"' EXIT
said=$(nsysddp check "${words[@]}" --annotations github 2> "$errors")
code=$?
cat -- "$errors" >&2
if [ -n "$said" ]; then printf '%s\n' "$said"; fi

case $code in
  0) outcome=pass ;;
  1) outcome=fail ;;
  6) outcome=undecidable ;;
  *) outcome=error ;;
esac
# 1 is also anything unforeseen: without an answer nothing was checked.
if [ $code -ne 0 ] && [ -z "$said" ]; then
  if [ $code -ne 6 ]; then outcome=error; fi
  echo "::error title=nsysddp check::$(tail -n 1 -- "$errors")"
fi
{
  echo "outcome=$outcome"
  echo "exit-code=$code"
  if [ -n "${JUNIT:-}" ] && [ -f "$JUNIT" ]; then echo "junit=$JUNIT"; else echo "junit="; fi
} >> "${GITHUB_OUTPUT:-/dev/stdout}"
if [ -n "${GITHUB_STEP_SUMMARY:-}" ]; then
  {
    echo "### nsysddp check: $outcome"
    echo
    # Claims and reasons come from files: as code they are no markup.
    printf '%s\n' "$said" | sed -n 's/`//g; s/^::[a-z]* title=\(.*\)::\(.*\)$/- `\1`: `\2`/p' \
      | sed 's/%3A/:/g; s/%2C/,/g; s/%25/%/g'
  } >> "$GITHUB_STEP_SUMMARY"
fi
if [ $outcome = undecidable ] && [ "$UNDECIDABLE" = pass ]; then exit 0; fi
exit $code
