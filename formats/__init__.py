"""Files: find the tensors in a checkpoint; read and write the .nvckpt container."""
