#!/bin/sh
# repeats_test.sh ORBITKV_SIM: the same seeds in two processes, whose addresses and
# environments differ, end in the same digests. A number of seeds below 0 is refused, not taken for a large one.
set -eu
digests() { env "SIZE_OF_ENVIRONMENT=$2" "$1" --seed 3 --seeds 12 --ops 700 --digests --no-shrink | grep '^seed .* digest '; }
first=$(digests "$1" 0)
second=$(digests "$1" 0123456789012345678901234567890123456789)
[ "$(echo "$first" | wc -l)" = 12 ]
[ "$first" = "$second" ] || { printf '%s\nand then\n%s\n' "$first" "$second"; exit 1; }
said=$(timeout 20 "$1" --seeds -3 2>&1 || true)
case $said in *"-3 is no whole number"*) ;; *) echo "--seeds -3 is not refused: $said"; exit 1 ;; esac
