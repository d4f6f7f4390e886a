#!/bin/sh
# Sees to SLURM with its accounting, from which the cluster tests start daemons of their own. Nothing is configured and
# nothing is started here.
set -eu
. "$(dirname "$0")/debian.sh"

missing=
while read -r package programs; do
    for program in $programs; do
        command -v "$program" >/dev/null && continue
        missing="${missing:+$missing }$package"
        break
    done
done <<'END'
munge munged munge
slurm-wlm slurmctld slurmd sbatch srun squeue scancel scontrol sinfo
slurmdbd slurmdbd
mariadb-server mariadbd mariadb-install-db
END
[ -z "$missing" ] || install_or_explain slurm cluster "$missing"
