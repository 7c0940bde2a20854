#!/bin/sh
# node.sh RECIPE NUMBER DIR [HEAD]: one node of a job of another tool. DIR is a folder of this job alone that all
# nodes share. Node 0 is also the head, which listens at the address HEAD.
recipe=$1 number=$2 dir=$3 head=$4
if [ "$number" = 0 ]; then
    meshctl launch "$recipe" --engine commands ${head:+"engine.commands.head=$head"} "run.dir=$dir" &
    launch=$!
    trap 'kill -TERM "$launch"' TERM INT
fi
for second in $(seq 300); do
    ls "$dir"/*/*/head.json >/dev/null 2>&1 && break
    [ "$number" = 0 ] && { kill -0 "$launch" 2>/dev/null || break; }
    sleep 1
done
meshctl agent --plan "$(ls -d "$dir"/*/*/ | tail -n 1)plan.json" --node "$number" --wait 300
code=$?
if [ "$number" = 0 ]; then
    wait "$launch"
    code=$?
fi
exit "$code"
