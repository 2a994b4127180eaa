// Asks for memory, says so, and does nothing on the host for as long as nobody ends it
#include <stdio.h>
#include <unistd.h>

int cudaMalloc(void **, size_t);

int main(void) {
    void *memory;
    if (cudaMalloc(&memory, 4)) return 1;
    puts("idle");
    fflush(stdout);
    alarm(120);
    pause();
    return 0;
}
