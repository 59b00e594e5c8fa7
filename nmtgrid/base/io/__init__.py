"""Files: text read line by line, atomic writes, checksums, arrays in safetensors, workers."""
