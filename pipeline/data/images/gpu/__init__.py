"""Makes the views of whole batches on the GPU, equal to those of the CPU to the bit."""
