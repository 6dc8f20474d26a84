"""From displacements to Gram matrix, slope, weighted sums and control variates."""
