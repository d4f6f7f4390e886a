"""Starts a training run where it belongs: in this process, on several GPUs, or as a SLURM job."""
