"""What GPUs a node has and how they are: by NVML, by nvidia-smi, as stated by flags, or simulated. One port for all."""
