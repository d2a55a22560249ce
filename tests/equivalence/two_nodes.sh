#!/usr/bin/env bash
# Two machines on this one, with a Ray cluster over both, and a command on the first: two_nodes.sh FOLDER PRIVATE CMD...
# Each has its own network, joined by a cable (a veth pair), its own /dev/shm and its own /tmp/ray. PRIVATE is a folder
# that the second machine does not share. Everything ends with this process. Run it in
#     unshare -Urnmpf --kill-child --mount-proc
# The second machine is reached by `nsenter -t $SECOND -n -m`, the cable is cut by `ip link set first down`.
set -e
folder=$1 private=$2
shift 2
export RAY_ADDRESS=10.77.0.1:6379 RAY_prestart_worker_first_driver=0 RAY_USAGE_STATS_ENABLED=0
export RAY_AUTH_MODE=${RAY_AUTH_MODE:-disabled} RAY_TMPDIR=/tmp/ray
ip link set lo up
mkdir -p /tmp/ray
mkfifo "$folder/up"
unshare -nm bash -c "echo > $folder/up; exec sleep infinity" &
SECOND=$!
read -r < "$folder/up"
export SECOND
second() { nsenter -t "$SECOND" -n -m -- "$@"; }
ip link add first type veth peer name second
ip link set second netns "$SECOND"
ip addr add 10.77.0.1/24 dev first
ip link set first up
second ip addr add 10.77.0.2/24 dev second
second ip link set second up
second ip link set lo up
for place in /dev/shm /tmp/ray; do
  mount -t tmpfs none "$place"
  second mount -t tmpfs none "$place"
done
second mount -t tmpfs none "$private"
start=(ray start --num-cpus 4 --object-store-memory 80000000 --disable-usage-stats)
{
  "${start[@]}" --head --include-dashboard=false --node-ip-address 10.77.0.1 --port 6379 &&
    second "${start[@]}" --node-ip-address 10.77.0.2 --address "$RAY_ADDRESS" && touch "$folder/nodes_are_up"
} > "$folder/nodes.log" 2>&1 &
"$@"
