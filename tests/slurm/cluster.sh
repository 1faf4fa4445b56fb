#!/bin/bash
# cluster.sh start DIR [NODES] [GPUS] | stop DIR: a real Slurm of several slurmd on this one machine, each with GPUS gres.
# Needs root and `apt-get install slurm-wlm munge`. Afterwards: export SLURM_CONF=DIR/slurm.conf; sinfo; srun -N2 --gres=gpu:4 ...
set -u; verb=$1; dir=$(mkdir -p "$2" && cd "$2" && pwd); nodes=${3:-2}; gpus=${4:-4}; last=$((nodes - 1)); host=$(hostname -s)
export SLURM_CONF=$dir/slurm.conf
if [ "$verb" = stop ]; then scontrol shutdown; [ -e "$dir/own-munged" ] && kill "$(cat /run/munge/munged.pid)"; exit; fi
mkdir -p "$dir"/{ctld,log} /run/munge /var/log/munge /var/lib/munge; chown munge: /run/munge /var/log/munge /var/lib/munge
pgrep -x munged >/dev/null || { runuser -u munge -- /usr/sbin/munged; touch "$dir/own-munged"; }
# a GPU is a device file: character devices that do nothing stand for them
for g in $(seq 0 $((gpus - 1))); do [ -e "$dir/gpu$g" ] || mknod "$dir/gpu$g" c 1 3; done
for n in $(seq 0 $last); do mkdir -p "$dir/n$n"; done
cat > "$SLURM_CONF" <<CONF
ClusterName=test
SlurmctldHost=$host(127.0.0.1)
SlurmctldPort=17098
SlurmUser=root
AuthType=auth/munge
StateSaveLocation=$dir/ctld
SlurmdSpoolDir=$dir/%n
SlurmctldPidFile=$dir/ctld.pid
SlurmdPidFile=$dir/%n.pid
SlurmctldLogFile=$dir/log/ctld.log
SlurmdLogFile=$dir/log/%n.log
ProctrackType=proctrack/pgid
TaskPlugin=task/none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
GresTypes=gpu
ReturnToService=2
SlurmdParameters=config_overrides
NodeName=n[0-$last] NodeHostname=$host NodeAddr=127.0.0.1 Port=[17100-$((17100 + last))] CPUs=$(nproc) RealMemory=2000 Gres=gpu:h200:$gpus State=UNKNOWN
PartitionName=gpu Nodes=n[0-$last] Default=YES MaxTime=INFINITE OverSubscribe=FORCE:64 State=UP
CONF
echo "NodeName=n[0-$last] Name=gpu Type=h200 File=$dir/gpu[0-$((gpus - 1))]" > "$dir/gres.conf"
setsid slurmctld -D >"$dir/log/ctld.out" 2>&1 &
sleep 2
for n in $(seq 0 $last); do setsid slurmd -D -N "n$n" >"$dir/log/n$n.out" 2>&1 & done
for i in $(seq 60); do [ "$(sinfo -h -N -t idle -o %N 2>/dev/null | wc -l)" = "$nodes" ] && { sinfo -N -o "%N %T %G"; exit 0; }; sleep .5; done
sinfo -N -o "%N %T %G %E"; exit 1
