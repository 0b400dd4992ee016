#!/bin/bash
# A training over two hosts under Slurm, one process on each, whose ranks are threads of it:
#   sbatch experiments/launchers/slurm.sh FILE [KEY=VALUE ...]
# On GPUs, a process for each: sbatch --ntasks-per-node=8 --gpus-per-node=8 --gpu-bind=none … (options here override those below)
# Ten minutes before its time is over it saves, ends with 75 and is queued again: it goes on from there.
#SBATCH --job-name=annulus
#SBATCH --nodes=2
#SBATCH --ntasks-per-node=1
#SBATCH --cpus-per-task=16
#SBATCH --time=24:00:00
#SBATCH --signal=B:USR1@600
#SBATCH --requeue
#SBATCH --open-mode=append

file=${1:?"a file is wanted: sbatch slurm.sh FILE [KEY=VALUE ...]"}
shift

# What joins tasks: pmix for Open MPI, pmi2 for MPICH and its kin (`srun --mpi=list` shows what there is), or mpirun, that of the path.
by=${ANNULUS_SLURM:-pmix}
if [ "$by" = mpirun ]; then
  start=(mpirun -n "$SLURM_NTASKS")
  # Open MPI gives each process one core otherwise; others do not know the variable.
  export PRTE_MCA_hwloc_default_binding_policy=none
else
  # A step has no cores of its job's tasks unless it asks for them.
  start=(srun --mpi="$by" --cpus-per-task="${SLURM_CPUS_PER_TASK:-1}")
fi

"${start[@]}" annulus train "$file" "$@" &
launcher=$!
# The signal may come to this shell alone, which passes it on.
trap 'kill -USR1 "$launcher"' USR1 TERM
# `wait` ends where the signal comes, too.
until wait "$launcher"; code=$?; ! kill -0 "$launcher" 2>/dev/null; do :; done

if [ "$code" = 75 ]; then
  scontrol requeue "$SLURM_JOB_ID"
fi
exit "$code"
