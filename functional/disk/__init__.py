"""What is kept on disk: where, under which key, how it is written, checked and read; machine code among it."""
